"""Against the published way: each layer rebuilds its matrices in its own forward."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.choice import set_strategy
from mpobert_plugin.train.bench.fitting import fitting
from mpobert_plugin.train.bench.networks import make_mpo
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import compared
from mpobert_plugin.train.bench.trained import Trained, speeds, trained

if TYPE_CHECKING:
    from mpobert_plugin.train.bench.scene import Scene, Values

OURS, THEIRS = "mpo", "reference"
# How the published way is run: nothing compiled, and autocast as the number format.
_AS_PUBLISHED = {
    "network": "autocast",
    "compile": "none",
    "graphs": "none",
    "recompute": "none",
    "reconstruction": "per_micro_batch",
}


def published(scene: Scene) -> list[Case]:
    """Return the cases: the published way with fused and unfused attention, in half and in float32.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        Forward and backward of the samples of one micro-batch; MPOBERT runs as it is pre-trained
        in the first number format. The published way takes fewer at a time where memory is short.
    """
    first = scene.formats[0]
    plan = [(first, "sdpa"), (first, "eager"), ("fp32", "eager"), ("fp32", "sdpa")]
    return [
        Case(f"{form}, attention {attention}", partial(_beside, scene, form, attention), first)
        for form, attention in dict.fromkeys(plan)
    ]


def reference_of(scene: Scene, form: str, attention: str, count: int = 1) -> Trained:
    """Return MPOBERT that is trained in the published way.

    Parameters
    ----------
    scene : Scene
        Preset, sizes, text and device.
    form : str
        Number format.
    attention : str
        'sdpa', or 'eager' for products and a softmax one by one.
    count : int
        Micro-batches of a step.

    Returns
    -------
    Trained
        Ready to be timed.
    """
    model = make_mpo(scene)
    set_strategy(model, "reference")
    made = trained(scene, model, count, precision=form, **_AS_PUBLISHED)
    # Afterwards, for a run takes fused attention whatever the model had.
    model.set_attn_implementation(attention)
    return made


def _beside(scene: Scene, form: str, attention: str) -> Values:
    first = scene.formats[0]
    run = partial(_run_once, scene, form, attention)
    theirs, size = fitting(scene.config.micro_batch, run)
    ours = trained(scene, make_mpo(scene), precision=first)
    works = {THEIRS: theirs.passes, OURS: ours.passes}
    rests = {THEIRS: theirs.rest, OURS: ours.rest}
    timed = compared(works, scene.pace, scene.processes, rests)
    samples = scene.config.micro_batch
    own, other = (scene.with_settings(precision=name) for name in (first, form))
    return {
        THEIRS: {**speeds(other, theirs.model, samples, timed[THEIRS]), "micro_batch": size},
        OURS: {**speeds(own, ours.model, samples, timed[OURS]), "micro_batch": samples},
    }


def _run_once(scene: Scene, form: str, attention: str, size: int) -> Trained:
    whole = scene.config.micro_batch
    made = reference_of(scene.with_settings(micro_batch=size), form, attention, whole // size)
    made.passes()
    return made
