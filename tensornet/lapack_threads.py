"""One thread for the LAPACK of numpy's and scipy's wheels on small matrices.

Each wheel brings a linear algebra library, and each library keeps threads that spin while they
wait for each other, and for a while after a call. When calls to both alternate, the threads of
one take the cores from the other: on two cores a decomposition took twice as long as on one. And
where other programs want the cores too, a factorization waits for a thread that has none: two
threads needed ten times as long as one for Cholesky factors of 256 rows, and gain nothing there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
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


_CALLS = {"numpy": _Calls(), "scipy": _Calls()}


@contextmanager
def one_thread(rows: int, wheel: str = "scipy") -> Iterator[None]:
    """Let the library in a wheel use one thread on a matrix with few rows.

    Calls may overlap: what was set before the first of them comes back after the last.

    Parameters
    ----------
    rows : int
        Rows of the matrix that is worked on; with many of them nothing is changed.
    wheel : {"scipy", "numpy"}
        Whose library it is.

    Examples
    --------
    >>> with one_thread(256):
    ...     pass
    """
    library = _library(wheel) if rows < _LARGE else None
    if library is None:
        yield
        return
    _CALLS[wheel].enter(library)
    try:
        yield
    finally:
        _CALLS[wheel].leave(library)


@cache
def _library(wheel: str) -> Any:
    """Return what controls the library in a wheel; None where the wheel brings none of its own."""
    # Imported late: it looks through the libraries of the process, which must be loaded by now.
    import_module(f"{wheel}.linalg")
    from threadpoolctl import ThreadpoolController

    for library in ThreadpoolController().lib_controllers:
        folder = Path(library.filepath).parent
        own = folder.name == f"{wheel}.libs" or folder.parts[-2:] == (wheel, ".dylibs")
        if own and library.user_api == "blas":
            return library
    return None
