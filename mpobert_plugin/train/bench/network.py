"""What MPO itself costs: the same network with rebuilt and with plain matrices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.train.bench.networks import make_mpo, make_plain
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import compared
from mpobert_plugin.train.bench.trained import speeds, trained

if TYPE_CHECKING:
    from mpobert_plugin.train.bench.scene import Scene, Values


def network(scene: Scene) -> list[Case]:
    """Return the cases: each number format, with one micro-batch for a step and with several.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        In each, forward and backward, and whole steps with the update.
    """
    found = []
    for form in scene.formats:
        for count in dict.fromkeys((1, scene.accumulation)):
            name = f"{form}, {count} micro-batch{'es' if count > 1 else ''}"
            found.append(Case(name, partial(_beside_plain, scene, form, count), form))
    return found


def _beside_plain(scene: Scene, form: str, count: int) -> Values:
    scene = scene.with_settings(precision=form)
    made = {"plain": make_plain(scene), "mpo": make_mpo(scene)}
    both = {name: trained(scene, model, count) for name, model in made.items()}
    samples = count * scene.config.micro_batch * scene.processes.world_size
    found: Values = {}
    for label, what in (("", "passes"), (", with update", "step")):
        works = {name: getattr(one, what) for name, one in both.items()}
        rests = {name: one.rest for name, one in both.items()}
        for name, timing in compared(works, scene.pace, scene.processes, rests).items():
            found[name + label] = speeds(scene, made[name], samples, timing)
    return found
