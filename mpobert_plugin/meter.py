"""Progress of long work: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator

# Work that is done sooner shows no bar.
_PATIENCE = 2.0


class Meter:
    """Counts finished pieces of work; a bar shows them on a terminal.

    Parameters
    ----------
    total : int
        Number of pieces.
    unit : str
        What a piece is.
    """

    def __init__(self, total: int, unit: str) -> None:
        self.total = total
        self.done = 0
        self._bar = tqdm(
            total=total,
            unit=unit,
            leave=False,
            delay=_PATIENCE,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def start(self, what: str) -> None:
        """Say what is worked on now.

        Parameters
        ----------
        what : str
            A few words.
        """
        self._bar.set_description_str(what, refresh=False)
        self._bar.set_postfix_str("", refresh=False)

    def advance(self, pieces: int = 1) -> None:
        """Count finished pieces.

        Parameters
        ----------
        pieces : int
            Their number.
        """
        self.done += pieces
        self._bar.update(pieces)

    def sweep(self, number: int, error: float) -> None:
        """Say how far an iteration has come; tensornet calls this after each sweep.

        Parameters
        ----------
        number : int
            Number of the sweep.
        error : float
            Relative error after it.
        """
        self._bar.set_postfix_str(f"sweep {number}, error {error:.4f}", refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


@contextmanager
def metered(total: int, unit: str) -> Iterator[Meter]:
    """Return a context with a meter, whose bar is gone afterwards, also after an interruption.

    Parameters
    ----------
    total : int
        Number of pieces.
    unit : str
        What a piece is.

    Returns
    -------
    context manager of Meter
        The meter.

    Examples
    --------
    >>> with metered(2, "matrix") as meter:
    ...     meter.advance()
    ...     meter.done
    1
    """
    meter = Meter(total, unit)
    try:
        yield meter
    finally:
        meter.close()
