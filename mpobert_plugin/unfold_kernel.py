"""The Triton kernel that turns products into matrices and back; imported on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from mpobert_plugin.joining import Joining

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 2048


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
    BACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move one part of a tile: the entries of one outer row and one outer column index.

    A tile is one run of memory in the products and a rectangle in the matrix, so that reads and
    writes are both in pieces of at least ``C2`` and ``C0 * C2`` entries.
    """
    number = tl.program_id(0).to(tl.int64)
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
    in_matrix = matrices + (matrix * rows + row) * cols + col
    in_products = products + tile * (R0 * C0 * R2 * C2) + ((r0 * C0 + c0) * R2 + r2) * C2 + c2
    real = inside & (row < rows) & (col < cols)
    by = tl.load(factor)
    if BACK:
        value = tl.load(in_matrix, mask=real, other=0.0).to(tl.float32) * by
        tl.store(in_products, value.to(products.dtype.element_ty), mask=inside)
    else:
        value = tl.load(in_products, mask=real, other=0.0).to(tl.float32) * by
        tl.store(in_matrix, value.to(matrices.dtype.element_ty), mask=real)


def probe(device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernel once in both directions.

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
    for back in (False, True):
        run(matrices, products, torch.ones(1, device=device), how, back=back)


def run(matrices: Tensor, products: Tensor, factor: Tensor, how: Joining, *, back: bool) -> None:
    """Write products into matrices, or matrices into products, times a factor.

    Parameters
    ----------
    matrices : Tensor
        (matrices, rows, cols), contiguous.
    products : Tensor
        (matrices, entries), contiguous.
    factor : Tensor of float32
        (1,).
    how : Joining
        Sizes.
    back : bool
        Whether the products are what is written.
    """
    (r1, r0, r2), (c1, c0, c2) = how.row_dims, how.col_dims
    size = r0 * c0 * r2 * c2
    block = min(_BLOCK, triton.next_power_of_2(size))
    parts = triton.cdiv(size, block)
    sizes = (how.rows, how.cols, r1, r0, r2, c1, c0, c2)
    # Triton launches on the current device, whatever its operands are on. One axis alone, since
    # the others have room for 65,535.
    grid = (len(matrices) * r1 * c1 * parts,)
    with torch.cuda.device(matrices.device):
        _move[grid](matrices, products, factor, *sizes, PARTS=parts, BACK=back, BLOCK=block)
