"""The Triton kernel that adds to a sum of another element type; imported on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 2048


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add(total, other, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add a block of entries."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    sum_ = tl.load(total + place, mask=inside) + tl.load(other + place, mask=inside).to(tl.float32)
    tl.store(total + place, sum_, mask=inside)


def add_to(total: Tensor, other: Tensor) -> None:
    """Add a tensor to a float32 one, in place.

    Parameters
    ----------
    total : Tensor of float32
        Contiguous.
    other : Tensor
        Of as many entries, contiguous.
    """
    size = total.numel()
    _add[(triton.cdiv(size, _BLOCK),)](total, other, size, BLOCK=_BLOCK)
