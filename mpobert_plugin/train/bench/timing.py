"""Times that contenders take in turns, so that what slows the machine slows all of them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpobert_plugin.train.processes import Processes

# Two runs as they are, and one that records.
_WARM_UPS = 3
_MOST_CALLS = 20
# Fewer say nothing about the spread.
_LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Pace:
    """How long contenders are timed.

    Parameters
    ----------
    rounds : int
        Turns of each contender at most.
    turn : float
        Seconds of a turn, about.
    until : float
        Time by `time.monotonic` after which no round begins, but for the first two.

    Examples
    --------
    >>> Pace(rounds=3).turn
    0.5
    """

    rounds: int = 7
    turn: float = 0.5
    until: float = float("inf")


@dataclass(frozen=True)
class Timing:
    """What one contender took.

    Parameters
    ----------
    seconds : float
        Median over the rounds, for one call.
    ratio, low, high : float
        Speed beside the first contender: median, smallest and largest of the rounds.
    rounds : int
        How many there were.
    """

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int


def wait(device: torch.device) -> None:
    """Wait until a device has done what it was told.

    Parameters
    ----------
    device : torch.device
        A GPU, or a CPU, which never is behind.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared(
    works: Mapping[str, Callable[[], object]],
    pace: Pace,
    processes: Processes,
    rests: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Return what each contender took, timed in turns; all processes time the same calls.

    Parameters
    ----------
    works : mapping of str to callable
        What is called; the first one is what the others are compared with.
    pace : Pace
        How long.
    processes : Processes
        Who takes part.
    rests : mapping of str to callable, optional
        What gives back the memory of a contender behind each of its turns, where they do not fit
        side by side; each turn then begins with calls that are not counted.

    Returns
    -------
    dict of str to Timing
        By the same names. The first calls, which may compile, are not counted.

    Examples
    --------
    >>> from mpobert_plugin.train.processes import Processes
    >>> works = {"nothing": lambda: None, "a sum": lambda: torch.ones(9).sum()}
    >>> timed = compared(works, Pace(rounds=2, turn=0.0), Processes())
    >>> timed["nothing"].ratio, timed["a sum"].rounds
    (1.0, 2)
    """
    rests = rests or {}
    calls = {name: _calls(work, pace, processes, rests.get(name)) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(pace.rounds):
        if number >= _LEAST_ROUNDS and processes.any(time.monotonic() > pace.until):
            break
        # The order is turned around each time, so that none is always the first.
        for name in list(works)[:: -1 if number % 2 else 1]:
            if name in rests:
                _warm_up(works[name])
            times[name].append(_timed(works[name], calls[name], processes))
            if name in rests:
                rests[name]()
    first = times[next(iter(works))]
    return {name: _timing(own, first) for name, own in times.items()}


def _timing(own: list[float], first: list[float]) -> Timing:
    ratios = sorted(other / mine for mine, other in zip(own, first, strict=True))
    middle = statistics.median(ratios)
    return Timing(statistics.median(own), middle, ratios[0], ratios[-1], len(own))


def _timed(work: Callable[[], object], calls: int, processes: Processes) -> float:
    processes.wait()
    wait(processes.device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    wait(processes.device)
    return max(time.perf_counter() - start, 1e-9) / calls


def _warm_up(work: Callable[[], object]) -> None:
    for _ in range(_WARM_UPS):
        work()


def _calls(
    work: Callable[[], object],
    pace: Pace,
    processes: Processes,
    rest: Callable[[], object] | None,
) -> int:
    """Return how many calls make a turn, the same in all processes."""
    _warm_up(work)
    took = torch.tensor(_timed(work, 1, processes), device=processes.device)
    mean = float(processes.add(took)) / processes.world_size
    if rest is not None:
        rest()
    return max(1, min(_MOST_CALLS, round(pace.turn / mean)))
