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
# More tell no more; the first round warms up.
_MOST, _ROUNDS = 8, 3
# Rebuilding once has to be slower by more than a measurement errs.
_MARGIN = 1.05


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
        What a step took with each, over all processes; None when it was not measured now.

    Examples
    --------
    >>> Rebuilding("per_step", 4, (0.9, 1.0)).told()
    'Matrices are rebuilt once for a step: 0.90 of the time of once for each of 4 micro-batches.'
    """

    name: str
    accumulation: int
    seconds: tuple[float, float] | None = None

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
            Empty when nothing was measured.
        """
        if self.seconds is None:
            return ""
        once, each = self.seconds
        if math.inf in self.seconds:
            word = "the device has no room for matrices that stay"
        else:
            word = f"{once / each:.2f} of the time of once for each of {self.accumulation}"
            word += " micro-batches"
        when = "once for a step" if self.name == ONCE else "for each micro-batch"
        return f"Matrices are rebuilt {when}: {word}."


def choose_rebuilding(
    parts: Parts, wanted: str, kept: Mapping[str, Any] | None = None
) -> Rebuilding | None:
    """Return how matrices are rebuilt, after telling the engine; it is measured for 'auto'.

    Parameters
    ----------
    parts : Parts
        Of the run; its engine is told.
    wanted : str
        'auto', 'per_step' or 'per_micro_batch'.
    kept : mapping, optional
        What a checkpoint has: a run goes on as it was, while its steps have as many micro-batches.

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
    else:
        once, each = _measured(parts)
        name = ONCE if once <= _MARGIN * each else EACH
        found = Rebuilding(name, accumulation, (once, each))
    parts.engine.around = _context(parts, found.name, parts.engine.captured is not None)
    return found


def _context(parts: Parts, name: str, lasting: bool = False) -> Callable[[], Any]:
    if name == EACH:
        return nullcontext
    return accumulation_of(parts.model, parts.division.accumulation, lasting).step


def _measured(parts: Parts) -> tuple[float, float]:
    """Return the seconds of a step with each; the processes agree, since they add theirs up."""
    engine, accumulation = parts.engine, parts.division.accumulation
    contexts = {name: _context(parts, name) for name in (ONCE, EACH)}
    # As they are: what is recorded belongs to one of the two.
    captured, engine.captured = engine.captured, None
    found = micro_batches(parts.samples, parts.division, 0, 1)
    batches = [next(found) for _ in range(min(accumulation, _MOST))]
    best = dict.fromkeys(contexts, math.inf)
    for turn in range(_ROUNDS):
        for name, around in contexts.items():
            seconds = _timed(engine, around, batches)
            if turn:
                best[name] = min(best[name], seconds)
    engine.gradients.clear()
    engine.captured = captured
    total = torch.tensor(list(best.values()), device=engine.processes.device)
    once, each = engine.processes.add(total).tolist()
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
