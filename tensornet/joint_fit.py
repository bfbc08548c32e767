"""From starts to a joint decomposition: trials, of which the better half goes on, and the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tensornet.joint import Joint
from tensornet.typing import Cores

# Relaxation of all sweeps but the first of a start: see tensornet.joint.
_OMEGA = 1.9
# Sweeps after which the starts are compared, and the better half of them goes on. Ranks after a
# few sweeps say little about those at the end: those after thirty do.
_TRIALS = (5, 15, 30, 60)
# Sweeps over which progress is judged: over-relaxed ones gain in waves.
_WINDOW = 5
# Relative error that rounding alone leaves.
_ROUNDING = 1e-14


class Effort(NamedTuple):
    """When to stop, and whom to tell.

    ``max_sweeps`` in all, trials included. Sooner where the error is at most ``goal``, or where
    five sweeps lower it by less than five times the share ``tol``, or where ``told`` says True.
    """

    max_sweeps: int
    tol: float
    goal: float
    told: Callable[[int, float], bool]


class Fitted(NamedTuple):
    """Cores, the relative error of the start and after each sweep, and why it ended."""

    cores: Cores
    history: tuple[float, ...]
    converged: bool


class _Run:
    """One start and the sweeps from there; the error never rises."""

    def __init__(self, cores: Cores, problem: Joint) -> None:
        self.cores, self._problem = cores, problem
        self.history = [self._relative(problem.squared_error(cores))]
        self.stalled = self.history[0] <= _ROUNDING

    def sweep(self) -> None:
        """Sweep once, over-relaxed where that does not raise the error by its rounding."""
        # The first sweep brings cores of a start that know nothing of each other together.
        for omega in (1.0,) if len(self.history) == 1 else (_OMEGA, 1.0):
            cores, square = self._problem.swept(self.cores, omega)
            error = self._relative(square)
            if error <= self.history[-1]:
                self.cores = cores
                self.history.append(error)
                return
        self.stalled = True

    def done(self, effort: Effort) -> bool:
        """Return whether further sweeps are of no use."""
        if self.stalled or self.history[-1] <= max(effort.goal, _ROUNDING):
            return True
        if len(self.history) <= _WINDOW:
            return False
        before = self.history[-1 - _WINDOW]
        return before - self.history[-1] <= _WINDOW * effort.tol * before

    def _relative(self, square: float) -> float:
        return math.sqrt(square / self._problem.total) if self._problem.total > 0.0 else 0.0


def fit(problem: Joint, starts: Iterable[Cores], effort: Effort) -> Fitted:
    """Return the best joint decomposition that the sweeps find.

    Every start has a few trial sweeps, the better half of them more, until one goes on alone.
    """
    work = _Work(effort)
    runs: list[_Run] = []
    for start in starts:
        runs.append(_Run(start, problem))
        work.sweep(runs, runs[-1], _TRIALS[0])
        # Sides that span everything make one point of several starts.
        if any(run.history == runs[-1].history for run in runs[:-1]):
            del runs[-1]
        if work.over or _best(runs).history[-1] <= max(effort.goal, _ROUNDING):
            break
    if not runs:
        return Fitted((), (), False)
    for length in (*_TRIALS[1:], None):
        left = 1 if length is None else math.ceil(len(runs) / 2)
        runs = sorted(runs, key=lambda run: run.history[-1])[:left]
        for run in runs:
            work.sweep(runs, run, length)
        if work.over or _best(runs).history[-1] <= max(effort.goal, _ROUNDING):
            break
    best = _best(runs)
    return Fitted(best.cores, tuple(best.history), best.done(effort))


def _best(runs: list[_Run]) -> _Run:
    return min(runs, key=lambda run: run.history[-1])


class _Work:
    """Sweeps of all starts, counted and told of."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._made, self._stopped = 0, False

    @property
    def over(self) -> bool:
        """Whether no sweep is left, or somebody has stopped the work."""
        return self._stopped or self._made >= self._effort.max_sweeps

    def sweep(self, runs: list[_Run], run: _Run, length: int | None) -> None:
        """Sweep until a run is done, has made so many sweeps, or the work is over."""
        while not (self.over or run.done(self._effort)):
            if length is not None and len(run.history) > length:
                return
            run.sweep()
            self._made += 1
            self._stopped = self._effort.told(self._made, _best(runs).history[-1])
