"""From starts to a joint decomposition: trial sweeps, the best one kept, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tensornet.joint import Joint, squared_error, swept
from tensornet.typing import Cores

# Relaxation of all sweeps but the first of a start: see tensornet.joint.
_OMEGA = 1.9
# Sweeps after which the starts are compared.
_TRIAL = 5
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
        self.history = [self._relative(squared_error(cores, problem))]
        self.stalled = self.history[0] <= _ROUNDING

    def sweep(self) -> None:
        """Sweep once, over-relaxed where that does not raise the error by its rounding."""
        # The first sweep brings cores of a start that know nothing of each other together.
        for omega in (1.0,) if len(self.history) == 1 else (_OMEGA, 1.0):
            cores, square = swept(self.cores, self._problem, omega)
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

    Every start has a few trial sweeps; the best one goes on from there.
    """
    best: _Run | None = None
    made, stopped = 0, False
    for start in starts:
        run = _Run(start, problem)
        for _ in range(min(_TRIAL, effort.max_sweeps - made)):
            if run.done(effort) or stopped:
                break
            run.sweep()
            made += 1
            stopped = effort.told(made, min(run.history[-1], best.history[-1] if best else 1e300))
        if best is None or run.history[-1] < best.history[-1]:
            best = run
        if stopped or made >= effort.max_sweeps or best.history[-1] <= max(effort.goal, _ROUNDING):
            break
    if best is None:
        return Fitted((), (), False)
    while not (stopped or made >= effort.max_sweeps or best.done(effort)):
        best.sweep()
        made += 1
        stopped = effort.told(made, best.history[-1])
    return Fitted(best.cores, tuple(best.history), best.done(effort))
