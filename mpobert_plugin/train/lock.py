"""A folder that one process writes at a time: a lock that ends with its process, even by kill."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpobert_plugin.errors import MPOBertError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN)


@contextmanager
def held(folder: Path, error: type[MPOBertError]) -> Iterator[None]:
    """Return a context in which no other process that asks for the same folder gets it.

    Parameters
    ----------
    folder : Path
        An existing folder; a file ``.lock`` stays there.
    error : class
        What is raised when another process has it.

    Raises
    ------
    OSError
        When the folder cannot be written.
    MPOBertError
        The class that was given, when another process has it.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    with (folder / NAME).open("ab") as file:
        try:
            # Of the process and not of the file: processes that are forked do not hold it on.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            # File systems without locks say something else, and are used without.
            if failure.errno in _HELD:
                raise error(
                    f"{folder} must be written by one process at a time, got another one that "
                    "writes there now. Wait for its end, or give another folder."
                ) from failure
        yield
