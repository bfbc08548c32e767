"""Steps of the whole global batch by the number of processes, started by torchrun."""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from mpobert_plugin.train.bench.networks import make_mpo, make_plain
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import Pace, Timing, compared
from mpobert_plugin.train.bench.trained import Trained, speeds, trained
from mpobert_plugin.train.data.batches import Division

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpobert_plugin.train.bench.scene import Scene, Values

STEPS = 10_000
# Micro-batches of the two steps that the time of the whole one is told from.
_FEW, _MORE = 4, 12
_HOUR = 3600.0


def scaling(scene: Scene) -> list[Case]:
    """Return the cases: MPOBERT and its plain twin, in each number format.

    Parameters
    ----------
    scene : Scene
        What is measured; the global batch is that of its settings, whatever the number of
        processes.

    Returns
    -------
    list of Case
        Seconds of a step of the whole batch, told from steps of fewer micro-batches, and measured
        where there is time; efficiency beside rows with the fewest processes.
    """
    return [
        Case(f"{form}, {name}", partial(_whole_step, scene, form, name), form)
        for form in scene.formats
        for name in ("mpo", "plain")
    ]


def _whole_step(scene: Scene, form: str, name: str) -> Values:
    scene = scene.with_settings(precision=form)
    config, own = scene.config, scene.processes
    whole = Division(config.batch_size, config.micro_batch, own.rank, own.world_size).accumulation
    model = (make_mpo if name == "mpo" else make_plain)(scene)
    few, more = min(whole, _FEW), min(whole, _MORE)
    one = trained(scene, model, more)
    sizes = dict.fromkeys((few, more))
    works = {str(size): partial(_step, one, size) for size in sizes}
    timed = compared(works, scene.pace, own)
    seconds = _told(timed, few, more, whole)
    measured = _measured(scene, one, whole, seconds) if whole > more else timed[str(whole)].seconds
    best = measured or seconds
    found = speeds(scene, model, config.batch_size, Timing(best, 1.0, 1.0, 1.0, 1))
    rate = found["tokens_per_second"]
    return {
        name: {
            "tokens_per_second": rate,
            "seconds_per_step": best,
            "told_seconds_per_step": seconds,
            "measured_seconds_per_step": measured,
            "hours_to_10k_steps": STEPS * best / _HOUR,
            "tflops": found["tflops"],
            "share_of_peak": found["share_of_peak"],
            **efficiency(scene.rows, scene.model, f"{form}, {name}", own.world_size, rate),
        }
    }


def _step(one: Trained, count: int) -> None:
    one.engine.step(list(islice(cycle(one.batches), count)))


def _told(timed: Mapping[str, Timing], few: int, more: int, whole: int) -> float:
    low, high = timed[str(few)].seconds, timed[str(more)].seconds
    each = (high - low) / (more - few) if more > few else 0.0
    return high + each * (whole - more)


def _measured(scene: Scene, one: Trained, whole: int, seconds: float) -> float | None:
    """Return the seconds of a whole step when there is time for two; None otherwise."""
    own = scene.processes
    # Two are what warming up and timing run, and two are timed at least.
    if own.any(time.monotonic() + 5 * seconds > scene.pace.until):
        return None
    pace = Pace(2, 0.0, scene.pace.until)
    return compared({"whole": partial(_step, one, whole)}, pace, own)["whole"].seconds


def efficiency(
    rows: Sequence[Mapping[str, Any]], model: str, case: str, world_size: int, rate: float
) -> dict[str, Any]:
    """Return the rate of a process beside that where there were the fewest of them.

    Parameters
    ----------
    rows : sequence of mapping
        Of records.
    model, case : str
        What to compare with.
    world_size : int
        How many processes there are.
    rate : float
        Tokens per second of all of them.

    Returns
    -------
    dict
        ``efficiency`` and ``beside``, the number of processes that it is compared with; empty when
        there is nothing with fewer.

    Examples
    --------
    >>> key = {"section": "scaling", "model": "m", "case": "fp16, mpo"}
    >>> row = {**key, "world_size": 1, "values": {"mpo": {"tokens_per_second": 10.0}}}
    >>> efficiency([row], "m", "fp16, mpo", 4, 36.0)
    {'efficiency': 0.9, 'beside': 1}
    """
    rates = {}
    for row in rows:
        same = (row["section"], row["model"], row["case"]) == ("scaling", model, case)
        for values in row.get("values", {}).values() if same else ():
            rates[row["world_size"]] = values.get("tokens_per_second")
    fewer = {size: found for size, found in rates.items() if size < world_size and found}
    if not fewer:
        return {}
    least = min(fewer)
    return {"efficiency": rate / world_size / (fewer[least] / least), "beside": least}
