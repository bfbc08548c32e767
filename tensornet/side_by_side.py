"""Independent pieces of work on several threads, where one library call would use them badly.

The threads of a linear algebra library share one small product and wait for each other by
spinning: on matrices of a thousand rows two of them gain little, and where other programs
want the cores they lose a lot. Whole matrices, one to a thread, do not wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def each(work: Callable[[T], R], pieces: Sequence[T], size: int) -> list[R]:
    """Return what ``work`` makes of every piece, in order.

    The pieces are shared out among as many threads as the library may use, which then uses one
    for each. Results do not depend on their number.

    Parameters
    ----------
    work : callable
        Safe to be called from several threads at once.
    pieces : sequence
        What it is called with.
    size : int
        Elements of a piece; with large ones fewer are worked on at once, to save memory.

    Returns
    -------
    list
        One entry for each piece.

    Raises
    ------
    Exception
        Whatever ``work`` raised first, by the order of the pieces; what had not begun is left.

    Examples
    --------
    >>> each(lambda k: k * k, [1, 2, 3], size=2**20)
    [1, 4, 9]
    """
    most = min(len(pieces), AT_ONCE // max(size, 1))
    if most < 2 or size * len(pieces) < _WORTH or not _TURN.acquire(blocking=False):
        return [work(piece) for piece in pieces]
    try:
        return _shared_out(work, pieces, most)
    finally:
        _TURN.release()


def _shared_out(work: Callable[[T], R], pieces: Sequence[T], most: int) -> list[R]:
    # Imported late: it looks through the libraries of the process.
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas")
    threads = max((library["num_threads"] for library in libraries.info()), default=1)
    with libraries.limit(limits=1):
        if threads < 2:
            return [work(piece) for piece in pieces]
        with ThreadPoolExecutor(min(threads, most), "tensornet") as pool:
            return _gathered(pool, work, pieces)


def _gathered(pool: ThreadPoolExecutor, work: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
    # Each call sees the caller's context: how floating point errors are treated is part of it.
    futures = [pool.submit(copy_context().run, work, piece) for piece in pieces]
    try:
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
