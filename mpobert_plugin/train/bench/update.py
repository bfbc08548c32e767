"""What the optimizer costs, clipping and loss scale included, and what LAMB usually costs."""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.bench.counted import host_waits, launches, operations
from mpobert_plugin.train.bench.networks import make_mpo
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.timing import Timing, compared
from mpobert_plugin.train.bench.trained import Trained, trained
from mpobert_plugin.train.bench.unstacked import PlainLamb, unstacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from mpobert_plugin.train.bench.scene import Scene, Values
    from mpobert_plugin.train.engine import Engine

BATCH = 4096


def update(scene: Scene) -> list[Case]:
    """Return the case: ours on stacked tensors, others on a tensor for each layer.

    Parameters
    ----------
    scene : Scene
        What is measured.

    Returns
    -------
    list of Case
        Time of an update, and its share of a step of 4096 samples on one device; what it makes the
        device and the host do. timm's LAMB takes part where timm is installed.
    """
    return [
        Case("clipping, loss scale and LAMB", partial(_timed, scene), scene.formats[0]),
        Case("operations, launches and waits", partial(_counted, scene), scene.formats[0]),
    ]


def _timed(scene: Scene) -> Values:
    one, works = _contenders(scene)
    timed = compared(works, scene.pace, scene.processes)
    passes = compared({"passes": one.passes}, scene.pace, scene.processes)["passes"]
    found = {name: _numbers(timing, passes, scene) for name, timing in timed.items()}
    return found if "timm" in found else {**found, "timm": {"absent": "timm cannot be imported"}}


def _counted(scene: Scene) -> Values:
    _, works = _contenders(scene)
    found: Values = {}
    for name, work in works.items():
        # Moments are made at the first.
        work()
        found[name] = {
            "operations": operations(work),
            "host_waits": host_waits(work, scene.device),
            "launches": launches(work, scene.device),
        }
    return found


def _contenders(scene: Scene) -> tuple[Trained, dict[str, Callable[[], object]]]:
    scene = scene.with_settings(optimizer="lamb", precision=scene.formats[0])
    one = trained(scene, make_mpo(scene))
    one.step()
    one.engine.gradients.flat.normal_(std=1e-3)
    groups = unstacked(one.engine.optimizer.param_groups)
    works: dict[str, Callable[[], object]] = {
        name: _scaled(make(unstacked(groups)), scene.device)
        for name, make in _others(scene).items()
    }
    return one, {**works, "ours": partial(_ours, one.engine)}


def _ours(engine: Engine) -> None:
    engine.update()


def _others(scene: Scene) -> dict[str, Callable[[list[dict[str, Any]]], Optimizer]]:
    config = scene.config
    options: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    found: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {}
    timm = _timm()
    if timm is not None:
        clip = config.clip or None
        found["timm"] = partial(timm, lr=config.lr, max_grad_norm=clip, **options)
        if "foreach" in timm.__init__.__code__.co_varnames:
            one_by_one = partial(timm, lr=config.lr, max_grad_norm=clip, foreach=False, **options)
            found["timm, one by one"] = one_by_one
    found["one by one"] = partial(PlainLamb, lr=config.lr, clip=config.clip, **options)
    return found


def _timm() -> Any:
    """Return timm's LAMB, or None where it cannot be imported, as without torchvision."""
    if find_spec("timm") is None:
        return None
    with suppress(ImportError):
        # By name, so that no type depends on a package that is rarely there.
        return importlib.import_module("timm.optim.lamb").Lamb
    return None


def _scaled(optimizer: Optimizer, device: torch.device) -> Callable[[], None]:
    """Return an update under torch's loss scaler, which reads back whether it overflowed."""
    # A scale of 1 leaves the gradients as they are, update after update.
    scaler = torch.amp.GradScaler(device.type, init_scale=1.0, growth_interval=10**9)
    scaler.scale(torch.zeros((), device=device))
    for group in optimizer.param_groups:
        # A rate on the device would be read back.
        group["lr"] = float(group["lr"])

    def work() -> None:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    return work


def _numbers(timing: Timing, passes: Timing, scene: Scene) -> dict[str, Any]:
    step = passes.seconds * BATCH / scene.config.micro_batch + timing.seconds
    return {
        "ms": 1e3 * timing.seconds,
        "speed": timing.ratio,
        "speed_low": timing.low,
        "speed_high": timing.high,
        "rounds": timing.rounds,
        "share_of_step": timing.seconds / step,
    }
