"""The Triton kernels that scale tensors by powers of two; imported on a GPU alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from mpobert_plugin.halves import EXPONENT_BITS, LEAST_POWER

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK, _TURNS = 2048, 4
_SMALLEST = tl.constexpr((127 + LEAST_POWER) << 23)
_EXPONENT = tl.constexpr(EXPONENT_BITS)
# Pointers that a kernel takes.
MANY = 8


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def picked(number, p0, p1, p2, p3, p4, p5, p6, p7):  # type: ignore[no-untyped-def]
    """Return one of the pointers."""
    p = p0
    if number == 1:
        p = p1
    if number == 2:
        p = p2
    if number == 3:
        p = p3
    if number == 4:
        p = p4
    if number == 5:
        p = p5
    if number == 6:
        p = p6
    if number == 7:
        p = p7
    return p


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def power_of(most, DIVISOR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the power of two of the largest entry, times a divisor."""
    bits = tl.maximum(tl.load(most), _SMALLEST) & _EXPONENT
    return bits.to(tl.float32, bitcast=True) * DIVISOR


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _largest(p0, p1, p2, p3, p4, p5, p6, p7, most, size,  # type: ignore[no-untyped-def]
             PARTS, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # fmt: skip
    """Take the largest of a run of entries of one tensor, by their bits: those of nan are above.

    Bits of numbers without a sign are in the order of the numbers.
    """
    number = tl.program_id(0)
    p = picked(number // PARTS, p0, p1, p2, p3, p4, p5, p6, p7)
    start = (number % PARTS).to(tl.int64) * (BLOCK * TURNS)
    found = tl.zeros((BLOCK,), tl.int32)
    for turn in range(TURNS):
        place = start + turn * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(p + place, mask=place < size, other=0.0).to(tl.float32)
        found = tl.maximum(found, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.atomic_max(most, tl.max(found, 0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scaled(x, out, most, scale, size, DIVISOR: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a block of entries in another type, divided by the scale, and the scale."""
    number = tl.program_id(0)
    by = power_of(most, DIVISOR)
    place = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * tl.math.div_rn(1.0, by)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
    if number == 0:
        tl.store(scale, by)


def probe(device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernels once.

    Parameters
    ----------
    device : torch.device
        Where.
    dtype : torch.dtype
        Of what is scaled.
    """
    out = torch.empty(4, dtype=torch.float16, device=device)
    run(torch.zeros(4, dtype=dtype, device=device), out, torch.empty(1, device=device), 1)


def run(tensor: Tensor, out: Tensor, scale: Tensor, divisor: int) -> None:
    """Write a tensor in float16, divided by a power of two, and that power.

    Parameters
    ----------
    tensor : Tensor
        Contiguous, in float32 or half precision.
    out : Tensor of float16
        Of as many entries, contiguous; written.
    scale : Tensor of float32
        (1,); written.
    divisor : int
        A power of two.
    """
    most, size = largest_of([tensor]), tensor.numel()
    grid = (max(triton.cdiv(size, _BLOCK), 1),)
    # Triton launches on the current device, whatever its operands are on.
    with torch.cuda.device(tensor.device):
        _scaled[grid](tensor, out, most, scale, size, DIVISOR=float(divisor), BLOCK=_BLOCK)


def largest_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bits of the largest entry of some tensors, without a sign.

    Parameters
    ----------
    tensors : sequence of Tensor
        Contiguous, of one size and type.

    Returns
    -------
    Tensor of int32
        (1,).
    """
    first = tensors[0]
    most = torch.zeros(1, dtype=torch.int32, device=first.device)
    size = first.numel()
    parts = max(triton.cdiv(size, _BLOCK * _TURNS), 1)
    with torch.cuda.device(first.device):
        for count, pointers in by_eights(tensors):
            _largest[(count * parts,)](*pointers, most, size, parts, BLOCK=_BLOCK, TURNS=_TURNS)
    return most


def by_eights(tensors: Sequence[Tensor]) -> list[tuple[int, list[Tensor]]]:
    """Return tensors in lists of as many as a kernel takes, filled up, each with its number.

    Parameters
    ----------
    tensors : sequence of Tensor
        At least one.

    Returns
    -------
    list of (int, list of Tensor)
        How many of a list are to be used.
    """
    starts = range(0, len(tensors), MANY)
    lists = [list(tensors[start : start + MANY]) for start in starts]
    return [(len(part), part + part[-1:] * (MANY - len(part))) for part in lists]
