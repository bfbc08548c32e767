"""The Triton kernels that turn products into matrices and back; imported on a GPU alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from mpobert_plugin.half_kernel import by_eights, largest_of, picked, power_of
from mpobert_plugin.joining import Joining

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 2048


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _places(  # type: ignore[no-untyped-def]
    number,
    rows,
    cols,
    R1: tl.constexpr,
    R0: tl.constexpr,
    R2: tl.constexpr,
    C1: tl.constexpr,
    C0: tl.constexpr,
    C2: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return number, places and reality of one part of a tile: one outer row, one outer column.

    A tile is one run of memory in the products and a rectangle in the matrix, so that reads and
    writes are both in pieces of at least ``C2`` and ``C0 * C2`` entries.
    """
    tile = number // PARTS
    c1 = tile % C1
    r1 = tile // C1 % R1
    matrix = tile // (C1 * R1)
    # In the order of the matrix, so that neighbours write, or read, one row.
    place = number % PARTS * BLOCK + tl.arange(0, BLOCK)
    inside = place < R0 * C0 * R2 * C2
    c2 = place % C2
    c0 = place // C2 % C0
    r2 = place // (C2 * C0) % R2
    r0 = place // (C2 * C0 * R2)
    row = (r1 * R0 + r0) * R2 + r2
    col = (c1 * C0 + c0) * C2 + c2
    in_products = tile * (R0 * C0 * R2 * C2) + ((r0 * C0 + c0) * R2 + r2) * C2 + c2
    real = inside & (row < rows) & (col < cols)
    return matrix, row * cols + col, in_products, real, inside


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _move(  # type: ignore[no-untyped-def]
    matrices,
    products,
    factor,
    rows,
    cols,
    R1: tl.constexpr,
    R0: tl.constexpr,
    R2: tl.constexpr,
    C1: tl.constexpr,
    C0: tl.constexpr,
    C2: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move one part of a tile of the products into a matrix, times a factor."""
    matrix, in_matrix, in_products, real, _ = _places(
        tl.program_id(0).to(tl.int64), rows, cols, R1, R0, R2, C1, C0, C2, PARTS, BLOCK
    )
    in_matrix += matrix * rows * cols
    value = tl.load(products + in_products, mask=real, other=0.0).to(tl.float32) * tl.load(factor)
    tl.store(matrices + in_matrix, value.to(matrices.dtype.element_ty), mask=real)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    p0, p1, p2, p3, p4, p5, p6, p7,
    products,
    most,
    scale,
    rows,
    cols,
    R1: tl.constexpr,
    R0: tl.constexpr,
    R2: tl.constexpr,
    C1: tl.constexpr,
    C0: tl.constexpr,
    C2: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Move one part of a tile of one of some matrices into products, and write the scale."""
    number = tl.program_id(0)
    matrix, in_matrix, in_products, real, inside = _places(
        number.to(tl.int64), rows, cols, R1, R0, R2, C1, C0, C2, PARTS, BLOCK
    )
    p = picked(matrix, p0, p1, p2, p3, p4, p5, p6, p7)
    by = power_of(most, 1.0)
    value = tl.load(p + in_matrix, mask=real, other=0.0).to(tl.float32) * tl.math.div_rn(1.0, by)
    tl.store(products + in_products, value.to(products.dtype.element_ty), mask=inside)
    if number == 0:
        tl.store(scale, by)


def probe(device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernels once, in both directions.

    Parameters
    ----------
    device : torch.device
        Where.
    dtype : torch.dtype
        Of matrices; products are in float16.
    """
    how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, dtype, True)
    matrices = torch.zeros(1, 2, 2, dtype=dtype, device=device)
    products = torch.zeros(1, 4, dtype=torch.float16, device=device)
    one = torch.ones(1, device=device)
    run(matrices, products, one, how)
    gather([matrices[0]], products, one, how)


def run(matrices: Tensor, products: Tensor, factor: Tensor, how: Joining) -> None:
    """Write products into matrices, times a factor.

    Parameters
    ----------
    matrices : Tensor
        (matrices, rows, cols), contiguous; written.
    products : Tensor
        (matrices, entries), contiguous.
    factor : Tensor of float32
        (1,).
    how : Joining
        Sizes.
    """
    sizes, block, parts, tiles = _grid(how)
    # Triton launches on the current device, whatever its operands are on. One axis alone, since
    # the others have room for 65,535.
    grid = (len(matrices) * tiles,)
    with torch.cuda.device(matrices.device):
        _move[grid](matrices, products, factor, *sizes, PARTS=parts, BLOCK=block)


def gather(matrices: Sequence[Tensor], products: Tensor, scale: Tensor, how: Joining) -> None:
    """Write matrices into products, divided by one power of two, and that power.

    Parameters
    ----------
    matrices : sequence of Tensor
        (rows, cols) each, contiguous, of one type.
    products : Tensor of float16
        (matrices, entries), contiguous; written, with no entry above 2.
    scale : Tensor of float32
        (1,); written.
    how : Joining
        Sizes.
    """
    most, (sizes, block, parts, tiles) = largest_of(matrices), _grid(how)
    start = 0
    with torch.cuda.device(products.device):
        for count, pointers in by_eights(matrices):
            own = products[start : start + count]
            _gather[(count * tiles,)](
                *pointers, own, most, scale, *sizes, PARTS=parts, BLOCK=block
            )  # fmt: skip
            start += count


def _grid(how: Joining) -> tuple[tuple[int, ...], int, int, int]:
    """Return sizes, entries of a part, parts of a tile, and parts of a matrix."""
    (r1, r0, r2), (c1, c0, c2) = how.row_dims, how.col_dims
    size = r0 * c0 * r2 * c2
    block = min(_BLOCK, triton.next_power_of_2(size))
    parts = triton.cdiv(size, block)
    return (how.rows, how.cols, r1, r0, r2, c1, c0, c2), block, parts, r1 * c1 * parts
