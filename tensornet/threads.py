"""Independent pieces of work on several threads, where one library call would use them badly.

The threads of a linear algebra library share one small product and wait for each other by
spinning: on matrices of a thousand rows two of them gain little, and where other programs
want the cores they lose a lot. Whole matrices, one to a thread, do not wait for each other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Elements that are worked on at once: half a gigabyte in double precision.
AT_ONCE = 2**26
# Elements of all pieces together from which the threads are worth their start.
_WORTH = 2**20

# The number of threads of a library belongs to the process: one caller at a time changes it.
_TURN = threading.Lock()


def side_by_side(work: Callable[[T], R], pieces: Sequence[T], *, size: int) -> list[R]:
    """Return what a function makes of every piece, computed on several threads.

    There are as many threads as the linear algebra library may use, which meanwhile uses one for
    each; so does torch, if it is loaded. What comes back does not depend on their number. Called
    within a piece, it works on the thread of that piece.

    Parameters
    ----------
    work : callable
        Called with one piece; safe to be called from several threads at once.
    pieces : sequence
        Independent of each other, such as the matrices of a model.
    size : int
        Elements of the largest piece. With few elements in all there is one thread, and with
        large pieces fewer are worked on at once, to save memory.

    Returns
    -------
    list
        One entry for each piece, in order.

    Raises
    ------
    Exception
        Whatever ``work`` raised first, by the order of the pieces; what had not begun is left.

    Examples
    --------
    >>> side_by_side(lambda k: k * k, [1, 2, 3], size=2**20)
    [1, 4, 9]
    """
    most = min(len(pieces), AT_ONCE // max(size, 1))
    if most < 2 or size * len(pieces) < _WORTH or not _TURN.acquire(blocking=False):
        return [work(piece) for piece in pieces]
    try:
        with _one_each() as threads:
            if threads < 2:
                return [work(piece) for piece in pieces]
            with ThreadPoolExecutor(min(threads, most), "tensornet") as pool:
                return _gathered(pool, work, pieces)
    finally:
        _TURN.release()


@contextmanager
def _one_each() -> Iterator[int]:
    """Let libraries use one thread for each caller, and say how many they had."""
    # Imported late: it looks through the libraries of the process.
    from threadpoolctl import ThreadpoolController

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    libraries = ThreadpoolController().select(user_api="blas")
    threads = max((library["num_threads"] for library in libraries.info()), default=1)
    with libraries.limit(limits=1):
        try:
            if torch and before > 1:
                torch.set_num_threads(1)
            yield max(threads, before)
        finally:
            if torch and before > 1:
                torch.set_num_threads(before)


def _gathered(pool: ThreadPoolExecutor, work: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
    # Each call sees the caller's context: how floating point errors are treated is part of it.
    futures = [pool.submit(copy_context().run, work, piece) for piece in pieces]
    try:
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
