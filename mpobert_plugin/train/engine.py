"""One optimizer step: micro-batches, one sum over processes, one update or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpobert_plugin.train.captured import Captured, recordable
from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.gradients import Gradients, reached
from mpobert_plugin.train.late import Sent
from mpobert_plugin.train.network import Network
from mpobert_plugin.train.objective import is_padded

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from mpobert_plugin.train.norms import KindNorms
    from mpobert_plugin.train.objective import Objective
    from mpobert_plugin.train.precision import LossScale, Precision
    from mpobert_plugin.train.processes import Processes


@dataclass(frozen=True)
class StepResult:
    """What a step tells, as tensors on the device: reading them waits for it.

    Parameters
    ----------
    numbers : Tensor
        (4,): ``Losses.numbers`` summed over the global batch.
    counts : Tensor
        (2,): masked tokens and orders of the global batch.
    flags : Tensor
        In how many processes the flag was set that was given to the step.
    norm : Tensor
        Norm of the mean gradient before clipping.
    skipped : Tensor of bool
        Whether a gradient was not finite, so that nothing was changed.
    scale : Tensor
        The loss scale of this step.
    norms : Tensor or None
        (2, kinds): norms by kind, as `KindNorms` gives them, of a step that was watched.
    """

    numbers: Tensor
    counts: Tensor
    flags: Tensor
    norm: Tensor
    skipped: Tensor
    scale: Tensor
    norms: Tensor | None = None


class Engine:
    """Trains a model step by step.

    The order is: losses as sums over the mean of the global batch, gradients added up in float32,
    summed over processes, searched for infinities, unscaled, clipped, and given to the optimizer,
    which changes nothing at all when one was not finite.

    Parameters
    ----------
    objective : Objective
        The model and its losses; float32 masters.
    optimizer : torch.optim.Optimizer
        One that takes ``found_inf`` as a tensor, as `Lamb` and torch's fused ones do.
    gradients : Gradients
        Of the parameters that are trained.
    precision : Precision
        In which numbers the network computes.
    scale : LossScale
        On the device.
    processes : Processes
        Who trains together.
    clip : float
        Largest norm of the gradient; 0 for no limit.
    around : callable, optional
        Makes a context around the micro-batches of a step, such as one that rebuilds matrices once.
    network : Network, optional
        How the network computes; by autocast without.
    captured : Captured, optional
        Records micro-batches and updates, and queues each by one call from then on.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        gradients: Gradients,
        precision: Precision,
        scale: LossScale,
        processes: Processes,
        clip: float = 1.0,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        network: Network | None = None,
        captured: Captured | None = None,
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.gradients = gradients
        self.precision = precision
        self.scale = scale
        self.processes = processes
        self.clip = clip
        self.around = around
        self.network = network or Network(precision)
        self.captured = captured
        # The flags of the step that is being made, which have come once a micro-batch is queued.
        self.asked: Sent[Tensor] | None = None

    def step(
        self,
        batches: Sequence[Batch],
        reseed: Callable[[int], None] | None = None,
        flag: bool = False,
        watch: KindNorms | None = None,
    ) -> StepResult:
        """Return what a step told, after making it.

        Parameters
        ----------
        batches : sequence of Batch
            The micro-batches of this process.
        reseed : callable, optional
            Called with the number of each micro-batch before it runs.
        flag : bool
            Counted over the processes beside the tokens, at no further cost.
        watch : KindNorms, optional
            Takes the norms of this step.

        Returns
        -------
        StepResult
            Tensors on the device.
        """
        device = self.processes.device
        own = torch.stack([batch.counts() for batch in batches]).sum(0)
        told = torch.cat([own, torch.tensor([int(flag)])]).to(device, non_blocking=True)
        counts, flags = torch.split(self.processes.add(told), [2, 1])
        self.asked = Sent(flags)
        self.gradients.clear()
        numbers = self.accumulate(batches, counts, reseed)
        self.processes.add(numbers)
        self.gradients.add_over(self.processes)
        used = self.scale.value.clone()
        before = None if watch is None else watch.before(used)
        norm, overflow = self.update()
        norms = None if watch is None or before is None else watch.after(before)
        return StepResult(numbers, counts, flags, norm, overflow, used, norms)

    def accumulate(
        self,
        batches: Sequence[Batch],
        counts: Tensor,
        reseed: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return what micro-batches of this process lose, after adding to its gradients.

        Parameters
        ----------
        batches : sequence of Batch
            Micro-batches.
        counts : Tensor
            (2,): masked tokens and orders of the global batch.
        reseed : callable, optional
            Called with the number of each micro-batch before it runs.

        Returns
        -------
        Tensor
            (4,): ``Losses.numbers``, summed.
        """
        device = self.processes.device
        numbers = torch.zeros(4, device=device)
        with self.network.computing(), self.around():
            for number, batch in enumerate(batches):
                if reseed is not None:
                    reseed(number)
                numbers += self._backward(batch, counts)
        return numbers

    def update(self) -> tuple[Tensor, Tensor]:
        """Return norm and overflow of the gradients, after the update that they ask for.

        Returns
        -------
        tuple of (Tensor, Tensor)
            Norm of the mean gradient before clipping; whether one was not finite, so that nothing
            but the loss scale was changed.
        """
        if self.captured is None:
            return self._updated()
        norm, overflow = self.captured("update", self._updated, ())
        return norm, overflow

    def losses(self, batch: Batch, padded: bool | None = None) -> Any:
        """Return the losses of a micro-batch, computed as the run computes.

        Parameters
        ----------
        batch : Batch
            On the host, so that a mask that hides nothing can be left out, or on the device.
        padded : bool, optional
            Whether it has padding, where that is known.

        Returns
        -------
        Losses
            Sums.
        """
        with self.network.computing(), self.network.casting(self.processes.device):
            return self.objective(batch, padded)

    def reached(self, batch: Batch) -> set[str]:
        """Return the names of the parameters that the losses depend on; nothing is changed.

        Parameters
        ----------
        batch : Batch
            Any micro-batch, whose first sample is looked at.

        Returns
        -------
        set of str
            Names as the gradients have them.
        """
        device = self.processes.device
        # Masters are looked for, and nothing is compiled for this: such layers keep more for
        # backward, and a whole micro-batch could need more memory than its training does.
        one = batch.first(1)
        with Network(self.precision).casting(device):
            loss = self.objective(one).mean(one.counts().to(device))
        return reached(self.gradients.parameters, loss)

    def _backward(self, batch: Batch, counts: Tensor) -> Tensor:
        if self.captured is None:
            return self._learned(batch, counts)
        padded, tensors = is_padded(batch), tuple(vars(batch).values())
        name = ("micro-batch", padded, *(tensor.shape for tensor in tensors))

        def work(*inputs: Tensor) -> tuple[Tensor]:
            *placed, own = inputs
            return (self._learned(Batch(*placed), own, padded),)

        return self.captured(name, work, (*tensors, counts))[0]

    def _learned(self, batch: Batch, counts: Tensor, padded: bool | None = None) -> Tensor:
        losses = self.losses(batch, padded)
        (losses.mean(counts) * self.scale.value).backward()
        numbers: Tensor = losses.numbers()
        return numbers

    def _updated(self) -> tuple[Tensor, Tensor]:
        norm, overflow = self._prepare_update()
        with recordable(self.optimizer):
            self.optimizer.step()
        self.scale.update(overflow)
        return norm, overflow

    def _prepare_update(self) -> tuple[Tensor, Tensor]:
        """Unscale and clip the gradients; where one is not finite, make zeros of all."""
        scaled = torch.linalg.vector_norm(self.gradients.norms())
        norm = scaled / self.scale.value
        overflow = ~torch.isfinite(scaled)
        divisor = self.scale.value
        if self.clip > 0:
            divisor = divisor * (norm / self.clip).clamp(min=1.0)
        self.gradients.multiply(torch.where(overflow, 0.0, 1.0 / divisor))
        self.optimizer.found_inf = overflow.float()  # type: ignore[attr-defined]
        return norm, overflow
