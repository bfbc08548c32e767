"""The folder of a run: a new or an empty one, or one that has a run already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mpobert_plugin.errors import CheckpointError, shorten
from mpobert_plugin.train.checkpoint import SEAL
from mpobert_plugin.train.journal import BOARD

if TYPE_CHECKING:
    from pathlib import Path

CONFIG, CHECKPOINTS = "config.json", "checkpoints"
# Settings that every run has written; a model's configuration has none of them.
_SETTINGS = {"steps", "batch_size", "micro_batch"}


def check_out(folder: Path) -> None:
    """Refuse a folder that holds other things than a run, before anything is computed.

    Parameters
    ----------
    folder : Path
        It need not exist.

    Raises
    ------
    CheckpointError
        When it holds anything and is no run's; some of what it holds is named. Hidden files, and
        what a run leaves that was killed at its start, do not count.
    """
    try:
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise CheckpointError(f"out must be a folder that can be read: {error}.") from error
    others = [name for name in found if not name.startswith(".") and name != BOARD]
    if others and not is_run(folder):
        raise CheckpointError(
            f"out must be a new or an empty folder, or that of a run, got {folder}, which holds "
            f"other things: {shorten(others, 4)}. Nothing was changed. Name another folder, such "
            f"as {folder / 'run'}."
        )


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run: its settings, or a checkpoint.

    Parameters
    ----------
    folder : Path
        An existing folder.

    Returns
    -------
    bool
        False for folders of models, texts and corpora.
    """
    if any((folder / CHECKPOINTS).glob(f"step-*/{SEAL}")):
        return True
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and set(settings) >= _SETTINGS
