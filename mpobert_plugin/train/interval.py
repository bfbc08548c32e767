"""What the log says of the steps since its last line."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.evaluation import means
from mpobert_plugin.train.flops import flops_per_sample, peak_flops
from mpobert_plugin.train.memory import memory_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

    from mpobert_plugin.train.engine import StepResult
    from mpobert_plugin.train.settings import PretrainConfig


@dataclass
class Interval:
    """Sums since the last line of the log.

    Parameters
    ----------
    numbers, counts : Tensor
        Sums of what `StepResult` has.
    since : float
        When it began, by the monotonic clock; pauses move it.
    steps : int
        Steps in it.
    waited : float
        Seconds for which the device had nothing to do, or may have had, before samples came.
    summed : int
        Steps that are in the sums.
    """

    numbers: torch.Tensor
    counts: torch.Tensor
    since: float
    steps: int = 0
    waited: float = 0.0
    summed: int = 0

    @classmethod
    def begun(cls, device: torch.device, kept: Mapping[str, Any] | None = None) -> Interval:
        """Return an interval that begins now.

        Parameters
        ----------
        device : torch.device
            Where the sums are.
        kept : mapping, optional
            Output of `state`, when the interval began before a checkpoint.

        Returns
        -------
        Interval
            Without steps, but for those that were summed before; their time is not known.
        """
        found = kept or {"numbers": [0.0] * 4, "counts": [0.0] * 2, "summed": 0}
        numbers, counts = (torch.tensor(found[k], device=device) for k in ("numbers", "counts"))
        return cls(numbers, counts, time.monotonic(), summed=found["summed"])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, so that the next line of the log is the same.

        Returns
        -------
        dict
            Sums and the number of steps in them.
        """
        sums = {"numbers": self.numbers.tolist(), "counts": self.counts.tolist()}
        return {**sums, "summed": self.summed}

    def add(self, result: StepResult, loss: float) -> None:
        """Take in a step.

        Parameters
        ----------
        result : StepResult
            What it told.
        loss : float
            Its loss; an infinite one of a step that was skipped would spoil the mean.
        """
        self.steps += 1
        if math.isfinite(loss) or not bool(result.skipped):
            self.numbers += result.numbers
            self.counts += result.counts
            self.summed += 1

    def losses(self) -> dict[str, float]:
        """Return mean losses and accuracies over the steps.

        Returns
        -------
        dict of str to float
            As `means` gives them; a loss of NaN alone when every step was lost.
        """
        return means(self.numbers, self.counts) if self.summed else {"loss": math.nan}

    def speeds(
        self, model: PreTrainedModel, config: PretrainConfig, device: torch.device, processes: int
    ) -> dict[str, float]:
        """Return how fast the steps were and what they took, as far as it is known.

        Parameters
        ----------
        model : transformers.PreTrainedModel
            What is trained.
        config : PretrainConfig
            Settings.
        device : torch.device
            Where this process computes.
        processes : int
            How many there are.

        Returns
        -------
        dict of str to float
            'tokens_per_second' of all processes; 'seconds_per_step'; 'waited', the share of the
            time in which the device stood still, at most, before samples came; 'tflops' that one
            process makes in a second, by the model's own count; 'share_of_peak' for cards whose
            peak is known; 'memory_gib' of this process where the system tells it.
        """
        seconds = max(time.monotonic() - self.since, 1e-9)
        samples = self.steps * config.batch_size / seconds
        flops = samples / processes * flops_per_sample(model, config.length, config.masked_most)
        values = {
            "tokens_per_second": samples * config.length,
            "seconds_per_step": seconds / self.steps,
            "waited": self.waited / seconds,
            "tflops": flops / 1e12,
        }
        peak, memory = peak_flops(device, config.format().dtype), memory_gib(device)
        if peak is not None:
            values["share_of_peak"] = flops / peak
        if memory is not None:
            values["memory_gib"] = memory
        return values
