"""Gradients in half precision are added to float32 sums in one pass over the memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mpobert_plugin.halves import HALF

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Below, the call itself takes longer than what torch loses on operands of two types.
_LARGE = 2**18


def add_wide(total: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a sum, in place.

    Parameters
    ----------
    total : Tensor
        The sum.
    gradient : Tensor
        Of the same shape, in any element type.

    Examples
    --------
    >>> import torch
    >>> total = torch.ones(2)
    >>> add_wide(total, torch.ones(2, dtype=torch.float16))
    >>> total.tolist()
    [2.0, 2.0]
    """
    large = total.is_cuda and total.numel() >= _LARGE and gradient.dtype in HALF
    kernel = _kernel() if large and total.is_contiguous() and gradient.is_contiguous() else None
    if kernel is None:
        total.add_(gradient)
    else:
        kernel(total, gradient)


@cache
def _kernel() -> Callable[[Tensor, Tensor], None] | None:
    # torch for CUDA brings triton on Linux alone.
    try:
        from mpobert_plugin.add_kernel import add_to
    except ImportError:
        return None
    return add_to
