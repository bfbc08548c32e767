"""Where the time of a step goes: loader, rebuilding, micro-batches, way back, sums, update."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from mpobert_plugin.locate import base_of, is_converted
from mpobert_plugin.train.bench.memory import peak_of_step
from mpobert_plugin.train.bench.networks import make_mpo, make_plain
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.trained import Trained, trained
from mpobert_plugin.train.bench.watch import Stopwatch, TimedProcesses
from mpobert_plugin.train.data.batches import Division, micro_batches
from mpobert_plugin.train.data.samples import Samples
from mpobert_plugin.train.late import Sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel

    from mpobert_plugin.train.bench.scene import Scene, Values
    from mpobert_plugin.train.data.batches import Batch

# What is done for each micro-batch; the rest is done once for a step.
_EACH = ("loader_wait", "micro_batches")
_MOST_STEPS = 1_000_000
# Recording begins after two steps.
_WARM_UPS = 4


def parts(scene: Scene) -> list[Case]:
    """Return the cases: MPOBERT and its plain twin, in each number format.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        Milliseconds of each part of steps of a few micro-batches, read from the loader; and those
        of a step of the whole batch, with as many micro-batches as that has.
    """
    return [
        Case(f"{form}, {name}", partial(_steps, scene, form, name), form)
        for form in scene.formats
        for name in ("mpo", "plain")
    ]


def _steps(scene: Scene, form: str, name: str) -> Values:
    scene = scene.with_settings(precision=form)
    watch = Stopwatch(scene.device)
    own = scene.processes
    timed = TimedProcesses(own.rank, own.world_size, own.device, watch)
    model = (make_mpo if name == "mpo" else make_plain)(scene)
    whole = Division(
        scene.config.batch_size, scene.config.micro_batch, own.rank, own.world_size
    ).accumulation
    count = min(scene.accumulation, whole)
    one = trained(_with_processes(scene, timed), model, count)
    _time_parts(one, watch)
    found = _run(scene, one, watch, count)
    return {name: {**_summary(found, count, whole), **peak_of_step(scene, one)}}


def _with_processes(scene: Scene, processes: TimedProcesses) -> Scene:
    from dataclasses import replace

    return replace(scene, processes=processes)


def _time_parts(one: Trained, watch: Stopwatch) -> None:
    engine = one.engine
    entering = "entering" if is_converted(one.model) else "nothing"
    engine.around = watch.around(engine.around, entering, "inside", "way_back")
    update = engine.update

    def updated() -> tuple[Tensor, Tensor]:
        with watch.lap("optimizer"):
            return update()

    engine.update = updated  # type: ignore[method-assign]
    # A recorded micro-batch tells nothing of what is in it.
    if is_converted(one.model) and engine.captured is None:
        base = base_of(one.model)
        # The hooks of the banks are between these two.
        base.register_forward_pre_hook(_beginning(watch), prepend=True)
        base.register_forward_pre_hook(_ending(watch))


def _beginning(watch: Stopwatch) -> Any:
    def hook(_base: PreTrainedModel, _args: Any) -> None:
        watch.begin("rebuilding")

    return hook


def _ending(watch: Stopwatch) -> Any:
    def hook(_base: PreTrainedModel, _args: Any) -> None:
        watch.end("rebuilding")

    return hook


def _run(scene: Scene, one: Trained, watch: Stopwatch, count: int) -> dict[str, float]:
    """Return the seconds of each part of a step, over some steps."""
    stream, steps = _stream(scene, count), 0
    for _ in range(_WARM_UPS):
        late = Sent(one.engine.step(list(islice(stream, count))))
    watch.seconds()
    watch.clear()
    waited, last = 0.0, max(2, scene.pace.rounds)
    while steps < last:
        start = time.perf_counter()
        batches = list(islice(stream, count))
        waited += time.perf_counter() - start
        with watch.lap("step"):
            result = one.engine.step(batches)
        # As the loop of a run does it: one step late, so that host and device work side by side.
        late.read()
        late = Sent(result)
        steps += 1
        if steps >= 2 and scene.processes.any(time.monotonic() > scene.pace.until):
            break
    found = {name: seconds / steps for name, seconds in watch.seconds().items()}
    return {"loader_wait": waited / steps, **found}


def _stream(scene: Scene, count: int) -> Iterator[Batch]:
    config, own = scene.config, scene.processes
    size = count * config.micro_batch * own.world_size
    division = Division(size, config.micro_batch, own.rank, own.world_size)
    return micro_batches(
        Samples(scene.corpus, config.recipe()),
        division,
        0,
        _MOST_STEPS,
        workers=config.workers,
        pin=scene.device.type == "cuda",
    )


def _summary(found: dict[str, float], count: int, whole: int) -> dict[str, Any]:
    """Return milliseconds of the measured step, and of one of the whole batch."""
    rebuilding = found.get("rebuilding", 0.0)
    named = {
        "loader_wait": found["loader_wait"],
        "rebuilding": rebuilding + found.get("entering", 0.0),
        "micro_batches": found.get("inside", 0.0) - rebuilding,
        "way_back": found.get("way_back", 0.0),
        "all_reduce": found.get("all_reduce", 0.0),
        "optimizer": found.get("optimizer", 0.0),
    }
    named["other"] = max(0.0, found["step"] - sum(named.values()) + named["loader_wait"])
    full = {
        name: seconds * (whole / count if name in _EACH else 1.0) for name, seconds in named.items()
    }
    total = sum(full.values())
    return {
        "ms": {name: 1e3 * seconds for name, seconds in named.items()},
        "ms_of_a_whole_step": {name: 1e3 * seconds for name, seconds in full.items()},
        "share_of_a_whole_step": {name: seconds / total for name, seconds in full.items()},
        "micro_batches_measured": count,
        "micro_batches_of_a_whole_step": whole,
    }
