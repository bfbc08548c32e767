"""The processes of a run: who this one is, sums over all of them, and the way in and out."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator

# Long enough for a slow disk, short enough that a lost process ends the job.
_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Processes:
    """The processes that train together.

    Parameters
    ----------
    rank : int
        Number of this one.
    world_size : int
        How many there are.
    device : torch.device
        Where this one computes.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Return a tensor summed over all processes, in place.

        Parameters
        ----------
        tensor : Tensor
            Of one shape everywhere.

        Returns
        -------
        Tensor
            The same object.
        """
        if self.world_size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in some process; all of them get the same answer.

        Parameters
        ----------
        flag : bool
            This one's.

        Returns
        -------
        bool
            True when one is.
        """
        if self.world_size == 1:
            return flag
        return bool(self.add(torch.tensor(int(flag), device=self.device)))

    def copy(self, tensors: list[Tensor]) -> None:
        """Give every process the values that the first one has, in place.

        Parameters
        ----------
        tensors : list of Tensor
            The same ones everywhere.
        """
        if self.world_size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, 0)

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.world_size > 1:
            distributed.barrier()


def local_device() -> torch.device:
    """Return where this process computes: its own GPU when there are some.

    Returns
    -------
    torch.device
        By ``LOCAL_RANK``, which torchrun sets.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def _meeting() -> dict[str, Any]:
    """Return where processes meet that torchrun has started again on one machine.

    Its static rendezvous, the default, has one store for all attempts. Under the same keys some
    would find addresses of processes that are gone before the new ones have written theirs.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # With several machines the attempts are not counted together, and each has a store of its own.
    if attempt == "0" or os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return {}
    store, rank, world_size = next(rendezvous("env://", timeout=_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    # torch leaves this name out of its list.
    named = distributed.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    return {"store": named, "rank": rank, "world_size": world_size}


@contextmanager
def joined(device: torch.device | None = None) -> Iterator[Processes]:
    """Return a context in which the processes that torchrun started work together.

    Without torchrun there is one. A group that exists already is used and left alone.

    Parameters
    ----------
    device : torch.device, optional
        Where this process computes; its own GPU, or the CPU, by default.

    Yields
    ------
    Processes
        Who is there.
    """
    place = device or local_device()
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if distributed.is_initialized():
        yield Processes(distributed.get_rank(), distributed.get_world_size(), place)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(0, 1, place)
        return
    backend = "nccl" if place.type == "cuda" else "gloo"
    own = place if place.type == "cuda" else None
    distributed.init_process_group(backend, timeout=_TIMEOUT, device_id=own, **_meeting())
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), place)
    finally:
        distributed.destroy_process_group()
