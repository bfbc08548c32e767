"""A polite end: SIGTERM and the first Ctrl-C set a flag that the loop reads between steps."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    """Return a context in which a signal only sets a flag; a second Ctrl-C interrupts as usual.

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

    def take(number: int, _frame: Any) -> None:
        wish.name = signal.Signals(number).name
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, take)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
