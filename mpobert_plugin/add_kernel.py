"""The Triton kernel that adds to a sum of another element type; imported on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
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


def probe(device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernel once.

    Parameters
    ----------
    device : torch.device
        Where.
    dtype : torch.dtype
        Of what is added.
    """
    run(torch.zeros(4, device=device), torch.zeros(4, dtype=dtype, device=device))


def run(total: Tensor, other: Tensor) -> None:
    """Add a tensor to a float32 one, in place.

    Parameters
    ----------
    total : Tensor of float32
        Contiguous.
    other : Tensor
        Of as many entries, contiguous.
    """
    size = total.numel()
    # Triton launches on the current device, whatever its operands are on.
    with torch.cuda.device(total.device):
        _add[(triton.cdiv(size, _BLOCK),)](total, other, size, BLOCK=_BLOCK)
