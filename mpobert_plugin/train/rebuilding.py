"""Whether matrices are rebuilt once for a step or for each micro-batch, by what each takes."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.locate import is_converted
from mpobert_plugin.train.data.batches import micro_batches
from mpobert_plugin.train.setup import accumulation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mpobert_plugin.train.data.batches import Batch
    from mpobert_plugin.train.engine import Engine
    from mpobert_plugin.train.setup import Parts

ONCE, EACH = "per_step", "per_micro_batch"
_WORDS = {ONCE: "once for a step", EACH: "for each micro-batch"}
# More tell no more; the first round warms up.
_MOST, _ROUNDS = 8, 3
# Rebuilding once has to be slower by more than a measurement errs.
_MARGIN = 1.05
# On a processor a run has to take this many times what measuring takes. On a GPU measuring takes
# seconds, and finds besides whether there is room for matrices that stay.
_TIMES = 20


@dataclass(frozen=True)
class Rebuilding:
    """What was found to be faster; checkpoints keep it, since it decides the last bits.

    Parameters
    ----------
    name : str
        'per_step' or 'per_micro_batch'.
    accumulation : int
        Micro-batches of a step for which that was found.
    seconds : tuple of float, optional
        What some micro-batches took with each, as the mean of all processes; None when it was not
        measured now.
    short : int
        For a run that is too short for measuring, the steps from which on it pays; else 0.

    Examples
    --------
    >>> print(Rebuilding("per_step", 4, (0.9, 1.0)).told())
    Matrices are rebuilt once for a step: 4 micro-batches took 0.900 s, and 1.00 s when they were
    rebuilt for each micro-batch.
    """

    name: str
    accumulation: int
    seconds: tuple[float, float] | None = None
    short: int = 0

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps.

        Returns
        -------
        dict
            Name and number of micro-batches.
        """
        return {"name": self.name, "accumulation": self.accumulation}

    def told(self) -> str:
        """Return a sentence for people.

        Returns
        -------
        str
            Empty when a run goes on as it was.
        """
        when = _WORDS[self.name]
        if self.short:
            return (
                f"Matrices are rebuilt {when}; runs of at least {self.short} steps measure whether "
                "for each micro-batch is faster."
            )
        if self.seconds is None:
            return ""
        if math.inf in self.seconds:
            return f"Matrices are rebuilt {when}: the device has no room for matrices that stay."
        own, other = self.seconds if self.name == ONCE else self.seconds[::-1]
        near = ", a difference within what measuring errs" if own > other else ""
        return (
            f"Matrices are rebuilt {when}: {_tried(self.accumulation)} micro-batches took "
            f"{own:#.3g} s, and {other:#.3g} s when they were rebuilt "
            f"{_WORDS[EACH if self.name == ONCE else ONCE]}{near}."
        )


def choose_rebuilding(
    parts: Parts,
    wanted: str,
    kept: Mapping[str, Any] | None = None,
    steps: float = math.inf,
    say: Callable[[str], None] | None = None,
) -> Rebuilding | None:
    """Return how matrices are rebuilt, after telling the engine; it is measured for 'auto'.

    A run on a processor that is too short for that takes 'per_step'.

    Parameters
    ----------
    parts : Parts
        Of the run; its engine is told.
    wanted : str
        'auto', 'per_step' or 'per_micro_batch'.
    kept : mapping, optional
        What a checkpoint has: a run goes on as it was, while its steps have as many micro-batches.
    steps : float
        Steps of the whole run.
    say : callable, optional
        Called with a line for people before anything is measured, which may take minutes.

    Returns
    -------
    Rebuilding or None
        None when there is nothing to choose: the model is not converted, a step has one
        micro-batch, or the setting names one.
    """
    accumulation = parts.division.accumulation
    if wanted != "auto" or accumulation == 1 or not is_converted(parts.model):
        return None
    if kept is not None and kept.get("accumulation") == accumulation:
        found = Rebuilding(str(kept["name"]), accumulation)
    elif steps < _least(accumulation) and not _is_cheap(parts.engine.processes.device):
        found = Rebuilding(ONCE, accumulation, short=_least(accumulation))
    else:
        if say is not None:
            say(_announced(accumulation))
        once, each = _measured(parts)
        name = ONCE if once <= _MARGIN * each else EACH
        found = Rebuilding(name, accumulation, (once, each))
    parts.engine.around = _context(parts, found.name, parts.engine.captured is not None)
    return found


def _tried(accumulation: int) -> int:
    return min(accumulation, _MOST)


def _least(accumulation: int) -> int:
    """Return the steps from which on measuring pays."""
    return math.ceil(_TIMES * _ROUNDS * 2 * _tried(accumulation) / accumulation)


def _is_cheap(device: torch.device) -> bool:
    return device.type == "cuda"


def _announced(accumulation: int) -> str:
    tried = _tried(accumulation)
    return (
        "Measuring how often to rebuild the matrices: "
        f"{_ROUNDS} times {tried} micro-batches each way, which change nothing."
    )


def _context(parts: Parts, name: str, lasting: bool = False) -> Callable[[], Any]:
    if name == EACH:
        return nullcontext
    return accumulation_of(parts.model, parts.division.accumulation, lasting).step


def _measured(parts: Parts) -> tuple[float, float]:
    """Return the mean seconds with each; the processes agree, since they add theirs up."""
    engine, accumulation = parts.engine, parts.division.accumulation
    contexts = {name: _context(parts, name) for name in (ONCE, EACH)}
    # As they are: what is recorded belongs to one of the two.
    captured, engine.captured = engine.captured, None
    found = micro_batches(parts.samples, parts.division, 0, 1)
    batches = [next(found) for _ in range(_tried(accumulation))]
    best = dict.fromkeys(contexts, math.inf)
    for turn in range(_ROUNDS):
        for name, around in contexts.items():
            seconds = _timed(engine, around, batches)
            if turn:
                best[name] = min(best[name], seconds)
    engine.gradients.clear()
    engine.captured = captured
    total = torch.tensor(list(best.values()), device=engine.processes.device)
    once, each = (engine.processes.add(total) / engine.processes.world_size).tolist()
    return once, each


def _timed(engine: Engine, around: Callable[[], Any], batches: Sequence[Batch]) -> float:
    """Return the seconds of some micro-batches; infinite when there is no room."""
    device, engine.around = engine.processes.device, around
    counts = torch.ones(2, dtype=torch.int64, device=device)
    _wait(device)
    start = time.perf_counter()
    try:
        engine.accumulate(batches, counts)
    except torch.OutOfMemoryError:
        return math.inf
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
