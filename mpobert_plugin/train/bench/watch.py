"""A stopwatch for parts of a step: events on a GPU, so that nothing waits; a clock on a CPU."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.train.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

Mark = float | torch.cuda.Event


class Stopwatch:
    """Adds up what parts take, by name.

    Parameters
    ----------
    device : torch.device
        Whose time is taken.

    Examples
    --------
    >>> watch = Stopwatch(torch.device("cpu"))
    >>> with watch.lap("a sum"):
    ...     total = sum(range(1000))
    >>> list(watch.seconds())
    ['a sum']
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._laps: dict[str, list[tuple[Mark, Mark]]] = defaultdict(list)
        self._begun: dict[str, Mark] = {}

    def begin(self, name: str) -> None:
        """Begin a part.

        Parameters
        ----------
        name : str
            Its name.
        """
        self._begun[name] = self._mark()

    def end(self, name: str) -> None:
        """End a part that has begun.

        Parameters
        ----------
        name : str
            Its name.
        """
        self._laps[name].append((self._begun.pop(name), self._mark()))

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Return a context that is a part.

        Parameters
        ----------
        name : str
            Its name.
        """
        self.begin(name)
        yield
        self.end(name)

    def around(
        self,
        context: Callable[[], AbstractContextManager[object]],
        entering: str,
        inside: str,
        leaving: str,
    ) -> Callable[[], AbstractContextManager[object]]:
        """Return a maker of contexts that times the way in, what is inside, and the way out.

        Parameters
        ----------
        context : callable
            Makes the contexts.
        entering, inside, leaving : str
            Names of the three parts.

        Returns
        -------
        callable
            Makes the same contexts, timed.
        """

        @contextmanager
        def timed() -> Iterator[None]:
            self.begin(entering)
            with context():
                self.end(entering)
                with self.lap(inside):
                    yield
                self.begin(leaving)
            self.end(leaving)

        return timed

    def seconds(self) -> dict[str, float]:
        """Return what each part took so far, after waiting for the device.

        Returns
        -------
        dict of str to float
            Seconds, added up.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return {
            name: sum(_between(start, end) for start, end in laps)
            for name, laps in self._laps.items()
        }

    def clear(self) -> None:
        """Forget everything."""
        self._laps.clear()

    def _mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        # torch leaves this class without types.
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event


def _between(start: Mark, end: Mark) -> float:
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True)
class TimedProcesses(Processes):
    """Processes whose sums are timed.

    Parameters
    ----------
    rank, world_size, device
        As `Processes` has them.
    watch : Stopwatch, optional
        Where the time goes, as the part 'all_reduce'.
    """

    watch: Stopwatch | None = None

    def add(self, tensor: Tensor) -> Tensor:
        """Return a tensor summed over all processes, in place.

        Parameters
        ----------
        tensor : Tensor
            Of one shape everywhere.

        Returns
        -------
        Tensor
            The same object.
        """
        if self.watch is None or self.world_size == 1:
            return super().add(tensor)
        with self.watch.lap("all_reduce"):
            return super().add(tensor)
