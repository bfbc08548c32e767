"""A polite end: SIGTERM and the first Ctrl-C set a flag that the loop reads in its steps."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A terminal and torchrun both send what is typed once.
_SAME = 2.0


class Wish:
    """Whether somebody asked for an end.

    Parameters
    ----------
    name : str
        Name of the signal that came; empty before.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def end_on_signal() -> Iterator[Wish]:
    """Return a context in which a signal only sets a flag; a later second one acts as usual.

    One that comes again within two seconds is the same wish: torchrun hands on what its processes
    have already got from the terminal.

    Yields
    ------
    Wish
        False until a signal comes. Outside the main thread it stays so, for Python delivers
        signals to no other.
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    came: dict[int, float] = {}

    def take(number: int, _frame: Any) -> None:
        now = time.monotonic()
        wish.name = signal.Signals(number).name
        if now - came.setdefault(number, now) >= _SAME:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, take)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
