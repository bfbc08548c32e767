"""One thread for scipy's LAPACK on small matrices, where numpy has a library of its own.

The wheels of numpy and scipy each bring a linear algebra library, and each library keeps threads
that spin for a while after a call. When calls to both alternate, the threads of one take the
cores from the other: on two cores a decomposition took twice as long as on one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# Rows of a square matrix from which eigensolvers gain from threads.
_LARGE = 1024


class _Calls:
    """How many calls are under way, and the threads that the library had before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.before = 1

    def enter(self, library: Any) -> None:
        with self.lock:
            if self.number == 0:
                self.before = library.get_num_threads()
                if self.before > 1:
                    library.set_num_threads(1)
            self.number += 1

    def leave(self, library: Any) -> None:
        with self.lock:
            self.number -= 1
            if self.number == 0 and self.before > 1:
                library.set_num_threads(self.before)


_CALLS = _Calls()


@contextmanager
def one_thread(rows: int) -> Iterator[None]:
    """Let scipy's own library use one thread on a matrix with few rows.

    Calls may overlap: what was set before the first of them comes back after the last.

    Parameters
    ----------
    rows : int
        Rows of the matrix that is worked on; with many of them nothing is changed.

    Examples
    --------
    >>> with one_thread(256):
    ...     pass
    """
    library = _of_scipy() if rows < _LARGE else None
    if library is None:
        yield
        return
    _CALLS.enter(library)
    try:
        yield
    finally:
        _CALLS.leave(library)


@cache
def _of_scipy() -> Any:
    """Return what controls the library in scipy's wheel; None if scipy shares one with numpy."""
    # Imported late: it looks through the libraries of the process, which must be loaded by now.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    for library in ThreadpoolController().lib_controllers:
        folder = Path(library.filepath).parent
        own = folder.name == "scipy.libs" or folder.parts[-2:] == ("scipy", ".dylibs")
        if own and library.user_api == "blas":
            return library
    return None
