"""Files that are there as a whole or not at all: written aside, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 20
# How `written_aside` names what it is writing.
_ASIDE = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


@contextmanager
def written_aside(target: Path) -> Iterator[IO[bytes]]:
    """Return a context with a file open for writing that takes its name when all is well.

    Parameters
    ----------
    target : Path
        The final name; what was there is replaced at the end, or kept when anything fails.

    Yields
    ------
    file
        Open for bytes, beside the target.

    Raises
    ------
    OSError
        When the operating system refuses; nothing is left behind then.
    """
    aside = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
        sync_folder(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:
    """Write a value as indented JSON, as a whole or not at all.

    Parameters
    ----------
    target : Path
        Name of the file.
    value : object
        What ``json`` can hold.

    Raises
    ------
    OSError
        When the operating system refuses.
    """
    with written_aside(target) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def clear_leftovers(folder: Path) -> None:
    """Delete what processes that were killed left half written in a folder.

    Parameters
    ----------
    folder : Path
        Nobody else may be writing there.
    """
    for path in folder.glob(".*.tmp"):
        if _ASIDE.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a power cut, where the system can do that.

    Parameters
    ----------
    folder : Path
        An existing folder.
    """
    # Some systems cannot open folders, and some file systems cannot sync them.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file.

    Parameters
    ----------
    path : Path
        An existing file.

    Returns
    -------
    str
        Hexadecimal digits.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()
