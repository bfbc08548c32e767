"""The Triton kernels that merge a core into a chain and back; imported on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from mpobert_plugin.merging import Merging

if TYPE_CHECKING:
    from torch import Tensor

# Entries of the core that a program takes, and its warps. On an H200 larger blocks take longer in
# the kernel that goes back, whose sums over a block are tiles of 16 x 16: more warps share less.
_MERGE = {"BLOCK": 128, "num_warps": 2}
_SPLIT = {"BLOCK": 32, "num_warps": 1}
# Triton multiplies no smaller tiles.
_LEAST = 16
# Three products of parts in TF32 keep the digits of float32 on tensor cores.
_DIGITS = tl.constexpr("tf32x3")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _places(  # type: ignore[no-untyped-def]
    number, BLOCKS,
    S: tl.constexpr, N: tl.constexpr,
    Y: tl.constexpr, SX: tl.constexpr, SY: tl.constexpr,
    N1: tl.constexpr, N2: tl.constexpr,
    NA: tl.constexpr, NB: tl.constexpr, NC: tl.constexpr,
    S_PAD: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the indices of one block and its places in the chain, (BLOCK, S).

    Right chains have their thin index innermost, so that rows of tiles are runs of memory.
    """
    stack = number // BLOCKS
    n = number % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    s, k = tl.arange(0, S_PAD), tl.arange(0, K_PAD)
    of_s = s // Y * SX + s % Y * SY
    of_n = n // (N1 * N2) * NA + n // N2 % N1 * NB + n % N2 * NC
    places = stack * (S * N) + of_s[None, :] + of_n[:, None]
    return stack, s, k, n, places, (s < S)[None, :] & (n < N)[:, None]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _merge(  # type: ignore[no-untyped-def]
    thin, long, out, BLOCKS,
    S: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    TS: tl.constexpr, TK: tl.constexpr, LK: tl.constexpr, LN: tl.constexpr,
    Y: tl.constexpr, SX: tl.constexpr, SY: tl.constexpr,
    N1: tl.constexpr, N2: tl.constexpr,
    NA: tl.constexpr, NB: tl.constexpr, NC: tl.constexpr,
    S_PAD: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write one block of products to its places in the chain."""
    stack, s, k, n, places, inside = _places(
        tl.program_id(0).to(tl.int64), BLOCKS, S, N, Y, SX, SY, N1, N2, NA, NB, NC,
        S_PAD, K_PAD, BLOCK,
    )  # fmt: skip
    a = tl.load(
        thin + stack * (S * K) + s[None, :] * TS + k[:, None] * TK,
        mask=(s < S)[None, :] & (k < K)[:, None], other=0.0,
    )  # fmt: skip
    b = tl.load(
        long + stack * (K * N) + k[None, :] * LK + n[:, None] * LN,
        mask=(k < K)[None, :] & (n < N)[:, None], other=0.0,
    )  # fmt: skip
    tl.store(out + places, tl.dot(b, a, input_precision=_DIGITS), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _split(  # type: ignore[no-untyped-def]
    grad, thin, long, d_long, parts, BLOCKS,
    S: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    TS: tl.constexpr, TK: tl.constexpr, LK: tl.constexpr, LN: tl.constexpr,
    Y: tl.constexpr, SX: tl.constexpr, SY: tl.constexpr,
    N1: tl.constexpr, N2: tl.constexpr,
    NA: tl.constexpr, NB: tl.constexpr, NC: tl.constexpr,
    S_PAD: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one block of the long core, and its part of that of the thin one."""
    number = tl.program_id(0).to(tl.int64)
    stack, s, k, n, places, inside = _places(
        number, BLOCKS, S, N, Y, SX, SY, N1, N2, NA, NB, NC, S_PAD, K_PAD, BLOCK
    )
    g = tl.load(grad + places, mask=inside, other=0.0)
    a = tl.load(
        thin + stack * (S * K) + s[:, None] * TS + k[None, :] * TK,
        mask=(s < S)[:, None] & (k < K)[None, :], other=0.0,
    )  # fmt: skip
    in_long = stack * (K * N) + k[None, :] * LK + n[:, None] * LN
    real = (k < K)[None, :] & (n < N)[:, None]
    b = tl.load(long + in_long, mask=real, other=0.0)
    tl.store(d_long + in_long, tl.dot(g, a, input_precision=_DIGITS), mask=real)
    part = tl.dot(tl.trans(b), g, input_precision=_DIGITS)
    tl.store(
        parts + number * (S * K) + s[None, :] * K + k[:, None], part,
        mask=(s < S)[None, :] & (k < K)[:, None],
    )  # fmt: skip


def probe(device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernels once, in both directions.

    Parameters
    ----------
    device : torch.device
        Where.
    dtype : torch.dtype
        Of the cores.
    """
    how = Merging(True, 1, (1, 2), 2, (1, 2, 3))
    chain = torch.zeros(1, 1, 2, 2, dtype=dtype, device=device)
    core = torch.zeros(1, 2, 1, 2, 3, dtype=dtype, device=device)
    split(merge(chain, core, how), chain, core, how)


def merge(thin: Tensor, long: Tensor, how: Merging) -> Tensor:
    """Return the chain that two neighbours make.

    Parameters
    ----------
    thin, long : Tensor of float32
        The chain so far and the core, contiguous.
    how : Merging
        Sizes.

    Returns
    -------
    Tensor
        As `merged` returns it.
    """
    out = torch.empty(how.shape, dtype=thin.dtype, device=thin.device)
    grid, blocks, sizes = _launch(how, _MERGE)
    # Triton launches on the current device, whatever its operands are on.
    with torch.cuda.device(thin.device):
        _merge[grid](thin, long, out, blocks, **sizes)
    return out


def split(grad: Tensor, thin: Tensor, long: Tensor, how: Merging) -> tuple[Tensor, Tensor]:
    """Return the gradients of both neighbours; sums are in one order, whatever runs first.

    Parameters
    ----------
    grad : Tensor of float32
        Gradient of the chain, contiguous.
    thin, long, how
        As for `merge`.

    Returns
    -------
    tuple of (Tensor, Tensor)
        Of their shapes.
    """
    grid, blocks, sizes = _launch(how, _SPLIT)
    d_long = torch.empty_like(long)
    shape = (how.stack, blocks, how.thin, how.bond)
    parts = torch.empty(shape, dtype=thin.dtype, device=thin.device)
    with torch.cuda.device(thin.device):
        _split[grid](grad, thin, long, d_long, parts, blocks, **sizes)
    d_thin = parts.sum(1)
    return (d_thin if how.from_left else d_thin.mT).reshape(thin.shape), d_long


def _launch(how: Merging, block: dict[str, int]) -> tuple[tuple[int], int, dict[str, Any]]:
    """Return the grid, the number of blocks of each stack, and what a kernel is made for.

    One axis alone, since the others have room for 65,535.
    """
    x, y = how.outer
    a, b, c = how.inner
    s, k, n = how.thin, how.bond, how.long
    if how.from_left:  # (x, y, k) and (k, a, b, c) make (x, a, y, b, c)
        own = {"TS": k, "TK": 1, "LK": n, "LN": 1}
        moved = {"SX": a * y * b * c, "SY": b * c, "NA": y * b * c, "NB": c, "NC": 1}
    else:  # (a, b, c, k) and (k, x, y) make (a, b, x, c, y)
        own = {"TS": 1, "TK": s, "LK": 1, "LN": k}
        moved = {"SX": c * y, "SY": 1, "NA": b * x * c * y, "NB": x * c * y, "NC": y}
    s_pad, k_pad = (max(triton.next_power_of_2(size), _LEAST) for size in (s, k))
    pads = {"S_PAD": s_pad, "K_PAD": k_pad}
    sizes = {"S": s, "K": k, "N": n, "Y": y, "N1": b, "N2": c, **block}
    blocks = triton.cdiv(n, block["BLOCK"])
    return (how.stack * blocks,), blocks, {**sizes, **own, **moved, **pads}
