"""A network with the engine of pre-training, and the micro-batches that it is given."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.data.batches import Division, micro_batches
from mpobert_plugin.train.flops import flops_per_sample, peak_flops
from mpobert_plugin.train.optimizers import set_rate
from mpobert_plugin.train.setup import set_up

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from mpobert_plugin.train.bench.scene import Scene
    from mpobert_plugin.train.bench.timing import Timing
    from mpobert_plugin.train.data.batches import Batch
    from mpobert_plugin.train.engine import Engine, StepResult

_RATE = 1e-9


def let_go(device: torch.device) -> None:
    """Free the memory of a device that nothing holds any more.

    Parameters
    ----------
    device : torch.device
        A GPU, or a CPU, where nothing is to be done.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Trained:
    """A network that is trained as `pretrain` does it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The network.
    engine : Engine
        Of pre-training.
    batches : list of Batch
        Micro-batches of a step, on the host.
    counts : Tensor
        (2,): what they ask for.
    """

    model: PreTrainedModel
    engine: Engine
    batches: list[Batch]
    counts: Tensor

    def passes(self) -> None:
        """Run forwards and backwards of the micro-batches, without an update."""
        self.engine.accumulate(self.batches, self.counts)

    def rest(self) -> None:
        """Give memory back: what was recorded is forgotten, and recorded anew when it runs."""
        captured = self.engine.captured
        if captured is not None:
            captured.forget()
        let_go(self.counts.device)

    def step(self) -> StepResult:
        """Return what a whole step told.

        Returns
        -------
        StepResult
            Tensors on the device.
        """
        return self.engine.step(self.batches)


def trained(
    scene: Scene, model: PreTrainedModel, accumulation: int = 1, **settings: Any
) -> Trained:
    """Return a network with an engine for steps of some micro-batches.

    Parameters
    ----------
    scene : Scene
        Settings, text and device.
    model : transformers.PreTrainedModel
        Any that can be pre-trained.
    accumulation : int
        Micro-batches of a step in one process.
    **settings
        Settings in place of the scene's.

    Returns
    -------
    Trained
        Ready to be timed.
    """
    config = scene.with_settings(**settings).config
    size = accumulation * config.micro_batch * scene.processes.world_size
    parts = set_up(model, scene.corpus, config.replace(batch_size=size), scene.processes)
    # On the device, as a run has it; so small that weights stay what they are.
    set_rate(parts.engine.optimizer, torch.tensor(_RATE, device=scene.device))
    found = step_of_batches(scene, parts.division)
    return Trained(model, parts.engine, found, counts_of(found).to(scene.device))


def step_of_batches(scene: Scene, division: Division) -> list[Batch]:
    """Return the micro-batches of the first step of this process.

    Parameters
    ----------
    scene : Scene
        Settings, text and device.
    division : Division
        Which samples are this process's.

    Returns
    -------
    list of Batch
        On the host, pinned for a GPU.
    """
    from mpobert_plugin.train.data.samples import Samples

    samples = Samples(scene.corpus, scene.config.recipe())
    found = micro_batches(samples, division, 0, 1)
    batches = list(islice(found, division.accumulation))
    return [batch.pin_memory() for batch in batches] if scene.device.type == "cuda" else batches


def counts_of(batches: list[Batch]) -> Tensor:
    """Return how many tokens and orders micro-batches ask for.

    Parameters
    ----------
    batches : list of Batch
        On the host.

    Returns
    -------
    Tensor of int64
        (2,).
    """
    return torch.stack([batch.counts() for batch in batches]).sum(0)


def speeds(
    scene: Scene, model: PreTrainedModel, samples: int, timing: Timing, asked: int | None = None
) -> dict[str, Any]:
    """Return the numbers of a contender from what its call took.

    Parameters
    ----------
    scene : Scene
        Settings and device.
    model : transformers.PreTrainedModel
        Whose operations are counted.
    samples : int
        Samples of a call, over all processes.
    timing : Timing
        Of a call.
    asked : int, optional
        Positions at which the head runs; the settings' by default.

    Returns
    -------
    dict
        Milliseconds, tokens per second, model TFLOP/s of one device, share of the peak (None
        where the peak is unknown), speed beside the first contender and its spread.
    """
    config, seconds = scene.config, timing.seconds
    positions = min(config.masked_most, config.length) if asked is None else asked
    work = samples * flops_per_sample(model, config.length, positions) / scene.processes.world_size
    peak = peak_flops(scene.device, config.format().dtype)
    return {
        "ms": 1e3 * seconds,
        "tokens_per_second": samples * config.length / seconds,
        "speed": timing.ratio,
        "speed_low": timing.low,
        "speed_high": timing.high,
        "rounds": timing.rounds,
        "tflops": work / seconds / 1e12,
        "share_of_peak": None if peak is None else work / seconds / peak,
    }
