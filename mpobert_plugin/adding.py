"""Gradients in half precision are added to float32 sums in one pass over the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpobert_plugin.halves import HALF
from mpobert_plugin.kernels import kernel_for

if TYPE_CHECKING:
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
    >>> total = torch.ones(2)
    >>> add_wide(total, torch.ones(2, dtype=torch.float16))
    >>> total.tolist()
    [2.0, 2.0]
    """
    kernel = None
    if total.numel() >= _LARGE and gradient.dtype in HALF and total.dtype == torch.float32:
        kernel = kernel_for("add_kernel", total, gradient.dtype)
    if kernel is None or not (total.is_contiguous() and gradient.is_contiguous()):
        total.add_(gradient)
    else:
        kernel(total, gradient)
