"""Tensors saved for backward that a checkpoint around them does not count."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import saved_tensors_hooks

from mpobert_plugin.errors import ChangedTensorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@contextmanager
def uncounted() -> Iterator[None]:
    """Return a context whose saved tensors stay out of an enclosing non-reentrant checkpoint.

    A checkpoint compares what is saved when its function runs and when it runs again. A layer may
    be handed its matrix the first time and have to rebuild it the second time, so rebuilding must
    not count.

    Examples
    --------
    >>> weight = torch.ones(2, requires_grad=True)
    >>> with uncounted():
    ...     total = (weight * weight).sum()
    >>> torch.autograd.grad(total, weight)[0]
    tensor([2., 2.])
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        yield
        return
    with ExitStack() as stack:
        # Function transforms such as torch.func.grad allow no hooks, and no checkpoints.
        with suppress(RuntimeError):
            stack.enter_context(saved_tensors_hooks(_pack, _unpack))
        yield


def _pack(tensor: Tensor) -> tuple[Tensor, int]:
    return tensor, tensor._version


def _unpack(packed: tuple[Tensor, int]) -> Tensor:
    tensor, version = packed
    # With hooks, torch leaves this check to them.
    if tensor._version != version:
        raise ChangedTensorError(
            f"tensors that backward needs must not be modified after the forward, got version "
            f"{tensor._version} of a {tuple(tensor.shape)} tensor saved at version {version}. "
            "Run backward before changing the bank, or run the forward again."
        )
    return tensor
