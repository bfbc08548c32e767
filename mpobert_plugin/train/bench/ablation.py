"""The paper's table: fused computation and half precision, each on and off, at small batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.train.bench.memory import peak_of_step
from mpobert_plugin.train.bench.networks import make_mpo
from mpobert_plugin.train.bench.published import reference_of
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import compared
from mpobert_plugin.train.bench.trained import Trained, speeds, trained

if TYPE_CHECKING:
    from mpobert_plugin.train.bench.scene import Scene, Values

BATCHES = (4, 8)
STEPS, BATCH = 10_000, 4096
# Samples of a measured step: enough that what is done once for a step weighs little.
_SAMPLES = 64
_DAY = 86_400.0


def ablation(scene: Scene) -> list[Case]:
    """Return the cases: fused on and off, half precision on and off, micro-batches of 4 and 8.

    Parameters
    ----------
    scene : Scene
        What is measured. Fused is how it is pre-trained; unfused is the published way: attention
        one product after the other, nothing compiled, each layer rebuilding its matrices.

    Returns
    -------
    list of Case
        Whole steps of 64 samples, each alone on the device: speed, memory, and days of one device
        for 10,000 steps of 4096 samples at that speed.
    """
    half = scene.formats[0]
    return [
        Case(
            f"batch {size}, {form}, {'fused' if fused else 'unfused'}",
            partial(_measured, scene, size, form, fused),
            form,
        )
        for size in BATCHES
        for form in dict.fromkeys((half, "fp32"))
        for fused in (True, False)
    ]


def _measured(scene: Scene, size: int, form: str, fused: bool) -> Values:
    scene = scene.with_settings(precision=form, micro_batch=size)
    count = max(1, _SAMPLES // size)
    one = _fused(scene, form, count) if fused else reference_of(scene, form, "eager", count)
    timed = compared({"mpo": one.step}, scene.pace, scene.processes)["mpo"]
    found = speeds(scene, one.model, count * size, timed)
    seconds = timed.seconds / (count * size)
    days = {"days_to_10k_steps": STEPS * BATCH * seconds / _DAY}
    return {"mpo": {**found, **days, **peak_of_step(scene, one)}}


def _fused(scene: Scene, form: str, count: int) -> Trained:
    return trained(scene, make_mpo(scene), count, precision=form)
