"""The folder of a corpus: a new or an empty one, or one that has a corpus already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mpobert_plugin.errors import DataError, shorten
from mpobert_plugin.train.data import store

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ".parts"
_FILES = {store.MANIFEST, store.TOKENIZER, store.TOKENS, store.SENTENCES, store.DOCUMENTS}


def check_out(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds other things than a corpus, or one that is not to be replaced.

    Parameters
    ----------
    folder : Path
        It need not exist.
    overwrite : bool
        Whether a corpus may be replaced; other things never are.

    Raises
    ------
    DataError
        When it holds anything and is no corpus, or a corpus that must stay. Hidden files do not
        count, and an unfinished corpus goes on.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_out(Path("a-folder-that-is-not-there"), overwrite=False)
    """
    try:
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"out must be a folder that can be read: {error}.") from error
    visible = [name for name in found if not name.startswith(".")]
    # Whoever was killed may have left some of the files, but not what they were made of.
    if not visible or (PARTS in found and store.MANIFEST not in found):
        return
    if not _is_corpus(folder, visible):
        raise DataError(
            f"out must be a new or an empty folder, or that of a corpus, got {folder}, which holds "
            f"other things: {shorten(visible, 4)}. Nothing was changed. Name another folder, such "
            f"as {folder / 'corpus'}."
        )
    if not overwrite:
        raise DataError(
            f"out must be a new folder, got {folder}, which holds a prepared corpus. Give another "
            "name, or overwrite=True."
        )


def _is_corpus(folder: Path, names: list[str]) -> bool:
    """Tell a corpus by its manifest; a damaged one by having the files of a corpus alone."""
    if store.TOKENS in names and set(names) <= _FILES:
        return True
    try:
        manifest = json.loads((folder / store.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == store.FORMAT
