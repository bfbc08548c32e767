"""What the whole stack gives: MPOBERT beside transformers' own BERT of the same size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.train.bench.fitting import fitting
from mpobert_plugin.train.bench.networks import make_bert, make_mpo
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import compared
from mpobert_plugin.train.bench.trained import let_go, speeds, trained
from mpobert_plugin.train.bench.usual import Usual, compile_model, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpobert_plugin.train.bench.scene import Scene, Values

OURS, THEIRS = "mpo", "BertForPreTraining"
_HEADS = {True: "head at all positions", False: "head at masked positions"}


def host(scene: Scene) -> list[Case]:
    """Return the cases: transformers' model compiled or not, its head at all or masked positions.

    Parameters
    ----------
    scene : Scene
        What is measured. Nothing is compiled when its settings say ``compile=none``.

    Returns
    -------
    list of Case
        Forward and backward of the micro-batches of one step, attention by SDPA; theirs takes
        fewer samples at a time where memory is short. MPOBERT runs as it is pre-trained, its head
        at masked positions, and rebuilds its matrices once for them; one case gives transformers'
        model the same loop.
    """
    form = scene.formats[0]
    compiling = scene.config.compile != "none"
    plan = [("layers", True), ("layers", False)] if compiling else []
    plan += [("none", True)]
    # A whole model takes minutes to compile.
    plan += [("model", True), ("model", False)] if compiling else []
    found = [
        Case(
            f"{form} autocast, compiled: {what}, {_HEADS[everywhere]}",
            partial(_usual, scene, form, what, everywhere),
            form,
        )
        for what, everywhere in plan
    ]
    same = Case(f"{form}, the same loop, {_HEADS[False]}", partial(_same_loop, scene, form), form)
    return [*found[:2], same, *found[2:]]


def _usual(scene: Scene, form: str, what: str, everywhere: bool) -> Values:
    scene = scene.with_settings(precision=form)
    theirs, ours = make_bert(scene).train(), make_mpo(scene)
    one = trained(scene, ours, scene.accumulation)
    compile_model(theirs, what, everywhere)

    def run_once(size: int) -> Usual:
        pieces = [piece for batch in one.batches for piece in pieces_of(batch, size)]
        made = Usual(theirs, pieces, one.counts, scene.config.format().dtype, everywhere)
        made.passes()
        return made

    usual, size = fitting(scene.config.micro_batch, run_once)
    works = {THEIRS: usual.passes, OURS: one.passes}
    rests: dict[str, Callable[[], object]] = {
        THEIRS: partial(let_go, scene.device),
        OURS: one.rest,
    }
    timed = compared(works, scene.pace, scene.processes, rests)
    config = scene.config
    samples = scene.accumulation * config.micro_batch
    asked = config.length if everywhere else None
    return {
        THEIRS: {**speeds(scene, theirs, samples, timed[THEIRS], asked), "micro_batch": size},
        OURS: {**speeds(scene, ours, samples, timed[OURS]), "micro_batch": config.micro_batch},
    }


def _same_loop(scene: Scene, form: str) -> Values:
    scene = scene.with_settings(precision=form)
    made = {THEIRS: make_bert(scene), OURS: make_mpo(scene)}
    both = {name: trained(scene, model, scene.accumulation) for name, model in made.items()}
    works = {name: one.passes for name, one in both.items()}
    rests = {name: one.rest for name, one in both.items()}
    timed = compared(works, scene.pace, scene.processes, rests)
    samples = scene.accumulation * scene.config.micro_batch
    return {name: speeds(scene, made[name], samples, timing) for name, timing in timed.items()}
