"""Micro-batches of a step for a process: the same samples for any number of processes."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.samples import IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpobert_plugin.train.data.samples import Sample, Samples


@dataclass(frozen=True)
class Batch:
    """Samples as tensors.

    Parameters
    ----------
    input_ids, token_type_ids : Tensor of int64
        (batch, length).
    sizes : Tensor of int64
        (batch,): tokens of each sample that are no padding.
    positions, labels : Tensor of int64
        (batch, most): where tokens are asked for, and which; -100 where a place is not used.
    orders : Tensor of int64
        (batch,): 0 in order, 1 swapped, -100 for single segments.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    sizes: Tensor
    positions: Tensor
    labels: Tensor
    orders: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device; copies from pinned memory do not wait.

        Parameters
        ----------
        device : torch.device or str
            Where to.

        Returns
        -------
        Batch
            A new one.
        """
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    def pin_memory(self) -> Batch:
        """Return the batch in pinned memory; torch's loader asks for it.

        Returns
        -------
        Batch
            A new one.
        """
        return Batch(*(tensor.pin_memory() for tensor in vars(self).values()))

    def first(self, count: int) -> Batch:
        """Return the first samples of the batch.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        Batch
            Views of this one.
        """
        return Batch(*(tensor[:count] for tensor in vars(self).values()))

    @property
    def attention_mask(self) -> Tensor:
        """(batch, length), 1 at tokens and 0 at padding."""
        places = torch.arange(self.input_ids.shape[1], device=self.sizes.device)
        return (places < self.sizes[:, None]).long()

    def counts(self) -> Tensor:
        """Return how many tokens and how many orders are asked for.

        Returns
        -------
        Tensor of int64
            (2,), by which the sums of the losses are to be divided over a global batch.
        """
        return torch.stack([(self.labels != IGNORED).sum(), (self.orders != IGNORED).sum()])


def collate(samples: Sequence[Sample]) -> Batch:
    """Return samples as one batch.

    Parameters
    ----------
    samples : sequence of Sample
        At least one, of one recipe.

    Returns
    -------
    Batch
        On the CPU.
    """

    def stacked(name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(sample, name) for sample in samples]))

    return Batch(
        stacked("input_ids"),
        stacked("token_type_ids"),
        torch.tensor([sample.size for sample in samples]),
        stacked("positions"),
        stacked("labels"),
        torch.tensor([sample.order for sample in samples]),
    )


@dataclass(frozen=True)
class Division:
    """How the samples of a step are divided over processes and micro-batches.

    Process r works on the r-th part of the step's samples, one micro-batch after the other, so
    that any division adds up the same samples.

    Parameters
    ----------
    batch_size : int
        Samples of an optimizer step, over all processes.
    micro_batch : int
        Samples that one process computes at a time.
    rank, world_size : int
        Number of this process, and how many there are.

    Raises
    ------
    DataError
        When the numbers do not divide.
    """

    batch_size: int
    micro_batch: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batch", "world_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise DataError(f"{name} must be an integer >= 1, got {value!r}.")
        if not 0 <= self.rank < self.world_size:
            raise DataError(f"rank must be 0 to {self.world_size - 1}, got {self.rank!r}.")
        if self.batch_size % (self.micro_batch * self.world_size):
            raise DataError(
                f"batch_size must be a multiple of micro_batch times processes, got "
                f"{self.batch_size} for {self.micro_batch} x {self.world_size}. The nearest are "
                f"{self._nearest()}."
            )

    def _nearest(self) -> str:
        unit = self.micro_batch * self.world_size
        below = self.batch_size // unit * unit
        return " and ".join(str(size) for size in (below, below + unit) if size)

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step in one process."""
        return self.batch_size // (self.micro_batch * self.world_size)

    def indices(self, number: int) -> range:
        """Return the samples of a micro-batch.

        Parameters
        ----------
        number : int
            Micro-batch of this process, counted over all steps.

        Returns
        -------
        range
            Numbers of samples.
        """
        step, part = divmod(number, self.accumulation)
        own = self.batch_size // self.world_size
        start = step * self.batch_size + self.rank * own + part * self.micro_batch
        return range(start, start + self.micro_batch)


# How torch begins what it says of the processes that prepare batches.
FROM_WORKER = "DataLoader worker"


class MicroBatches(Dataset[Batch]):
    """Micro-batches of one process by their number.

    Parameters
    ----------
    samples : Samples
        Where samples come from.
    division : Division
        Which of them are this process's.
    """

    def __init__(self, samples: Samples, division: Division) -> None:
        self.samples = samples
        self.division = division

    def __getitem__(self, number: int) -> Batch:
        """Return a micro-batch.

        Parameters
        ----------
        number : int
            Counted over all steps.

        Returns
        -------
        Batch
            On the CPU.
        """
        return collate([self.samples[index] for index in self.division.indices(number)])


def micro_batches(
    samples: Samples,
    division: Division,
    start_step: int,
    end_step: int,
    *,
    workers: int = 0,
    pin: bool = False,
) -> Iterator[Batch]:
    """Return an iterator over the micro-batches of some steps, in order.

    Parameters
    ----------
    samples : Samples
        Where samples come from.
    division : Division
        Which of them are this process's.
    start_step, end_step : int
        First step and the one behind the last. Seeking costs nothing.
    workers : int
        Processes that prepare batches ahead; 0 prepares them when they are asked for. Batches do
        not depend on it.
    pin : bool
        Whether to put them into pinned memory, for a GPU.

    Returns
    -------
    iterator of Batch
        ``division.accumulation`` for each step.
    """
    each = division.accumulation
    loader = DataLoader(
        MicroBatches(samples, division),
        batch_size=None,
        sampler=range(start_step * each, end_step * each),
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_signals,
    )
    return _with_an_end(iter(loader), workers)


def _with_an_end(found: Iterator[Batch], workers: int) -> Iterator[Batch]:
    """Yield what is found, and let the workers go at the end, whatever comes before it.

    torch raises the death of a worker in whatever runs at the time, as long as its iterator
    lives; the traceback of a first error would keep it alive.
    """
    try:
        while True:
            try:
                batch = next(found)
            except StopIteration:
                return
            except (OSError, EOFError) as error:
                if not workers or FROM_WORKER in str(error):
                    raise
                # It ended while it handed a batch over.
                raise RuntimeError(f"{FROM_WORKER} ended: {type(error).__name__}.") from error
            yield batch
    finally:
        let_go = getattr(found, "_shutdown_workers", None)
        if let_go is not None:
            let_go()


def _leave_signals(_worker: int) -> None:
    """Leave SIGTERM and Ctrl-C, which a whole group gets, to the process that ends politely.

    A worker ends when that one no longer needs it, or is gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
