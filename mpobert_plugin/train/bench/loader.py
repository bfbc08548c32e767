"""How fast batches are prepared, by the number of worker processes."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.train.bench.record import fastest
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.data.batches import Division, micro_batches
from mpobert_plugin.train.data.samples import Samples

if TYPE_CHECKING:
    from mpobert_plugin.train.bench.scene import Scene, Values

_SECONDS = 5.0
# What workers have ready before the clock starts, for each of them.
_READY = 6
_MOST_STEPS = 1_000_000


def loader(scene: Scene) -> list[Case]:
    """Return the cases: numbers of workers up to the processors of the machine.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        Tokens per second, and how many times the fastest measured training of this model.
    """
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [0, *(count for count in (1, 2, 4, 8, 16, 32) if count <= most)]
    return [Case(f"{count} workers", partial(_prepared, scene, count)) for count in counts]


def _prepared(scene: Scene, workers: int) -> Values:
    config, seconds = scene.config, min(_SECONDS, 10 * scene.pace.turn)
    samples = Samples(scene.corpus, config.recipe())
    division = Division(config.micro_batch, config.micro_batch)
    pin = scene.device.type == "cuda"
    found = micro_batches(samples, division, 0, _MOST_STEPS, workers=workers, pin=pin)
    for _ in range(max(1, _READY * workers)):
        next(found)
    start, batches = time.perf_counter(), 0
    while not batches or time.perf_counter() - start < seconds:
        next(found)
        batches += 1
    rate = batches * config.micro_batch * config.length / (time.perf_counter() - start)
    training = fastest(scene.rows, scene.model, "mpo")
    times = None if training is None else rate / training
    return {"loader": {"tokens_per_second": rate, "times_training": times}}
