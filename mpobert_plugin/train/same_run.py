"""A run goes on with its own settings and text, or not at all."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train.settings import PretrainConfig

if TYPE_CHECKING:
    from mpobert_plugin.train.checkpoint import Checkpoint


def check_same_run(checkpoint: Checkpoint, extra: dict[str, Any]) -> None:
    """Refuse a checkpoint of a run with other settings or text.

    Parameters
    ----------
    checkpoint : Checkpoint
        A whole one.
    extra : dict
        What this run keeps in its own.

    Raises
    ------
    CheckpointError
        With the names of what differs.
    """
    found = checkpoint.state.get("config", {})
    free = {entry.name for entry in fields(PretrainConfig) if entry.metadata["free"]}
    changed = [
        f"{name} {found.get(name)!r} -> {value!r}"
        for name, value in extra["config"].items()
        if name not in free and found.get(name) != value
    ]
    if checkpoint.state.get("corpus") != extra["corpus"]:
        changed.append("another text")
    if changed:
        raise CheckpointError(
            f"the run in {checkpoint.folder.parent} must go on with its own settings, got "
            f"{', '.join(changed)}. Give out= another folder, and the checkpoint as the model, to "
            "start a new run from its weights."
        )
