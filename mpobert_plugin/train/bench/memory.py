"""Memory of a step: MPOBERT and its plain twin, each alone on the device."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.bench.networks import make_mpo, make_plain
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import wait
from mpobert_plugin.train.bench.trained import Trained, trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpobert_plugin.train.bench.scene import Scene, Values

_GIB = 2**30


def memory(scene: Scene) -> list[Case]:
    """Return the cases: both networks, with one micro-batch for a step and with several.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        The most memory of a step, on a GPU; on a CPU, what stays between steps alone.
    """
    makers = {"plain": make_plain, "mpo": make_mpo}
    return [
        Case(
            f"{scene.formats[0]}, {count} in a step, {name}",
            partial(_alone, scene, name, count),
            scene.formats[0],
        )
        for count in dict.fromkeys((1, scene.accumulation))
        for name in makers
    ]


def _alone(scene: Scene, name: str, count: int) -> Values:
    scene = scene.with_settings(precision=scene.formats[0])
    model = (make_plain if name == "plain" else make_mpo)(scene)
    one = trained(scene, model, count)
    for _ in range(2):
        one.step()
    found = {"stays_gib": stays(one) / _GIB, **peak_of_step(scene, one)}
    return {name: found}


def stays(one: Trained) -> int:
    """Return the bytes of parameters, gradients and moments.

    Parameters
    ----------
    one : Trained
        After a step.

    Returns
    -------
    int
        Copies in half precision are not among them.
    """
    parameters = list(one.model.parameters())
    moments = [
        value
        for state in one.engine.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    tensors = [*parameters, *moments, *(p.grad for p in parameters if p.grad is not None)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def peak_of_step(scene: Scene, one: Trained) -> dict[str, Any]:
    """Return the most memory of a step.

    Parameters
    ----------
    scene : Scene
        Where.
    one : Trained
        After its first steps.

    Returns
    -------
    dict
        GiB at the peak, and above what was there before; empty on a CPU.
    """
    _forget_recorded(one)
    with _peak(scene.device) as found:
        one.step()
    return found


def _forget_recorded(one: Trained) -> None:
    """Run steps as they are from now on: a recorded one keeps its memory, unseen by the counts."""
    one.rest()
    one.engine.captured = None


@contextmanager
def _peak(device: torch.device) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    if device.type != "cuda":
        yield found
        return
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield found
    wait(device)
    most = torch.cuda.max_memory_allocated(device)
    found |= {"memory_gib": most / _GIB, "above_gib": (most - before) / _GIB}
