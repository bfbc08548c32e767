"""The Triton kernels of attention over samples of given lengths; imported on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from mpobert_plugin.train.attention import LOG2_E, empty_beside

if TYPE_CHECKING:
    from torch import Tensor

# Rows of a block, columns of a step, warps, stages: of forward, of the gradients of keys and
# values, and of queries. Fixed, for other blocks sum in another order.
_FORWARD = (64, 64, 4, 3)
_KEYS = (64, 32, 4, 4)
_QUERIES = (128, 64, 8, 3)
_AGREED = 64


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _place(HEADS, LENGTH, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return block, pair, sample and head of a program; CUDA takes many along one axis alone."""
    blocks = tl.cdiv(LENGTH, SIZE)
    program = tl.program_id(0)
    pair = program // blocks
    return program % blocks, pair, (pair // HEADS).to(tl.int64), pair % HEADS


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tile(base, rows, stride, END, D: tl.constexpr, GUARDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load rows of all dimensions; those from END on are zeros where they are looked at."""
    dims = tl.arange(0, D)
    places = base + rows[:, None] * stride + dims[None, :]
    if GUARDED:
        return tl.load(places, mask=rows[:, None] < END, other=0.0)
    return tl.load(places)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _looked(q, k_base, v_base, start, k_row, v_row, m, total, acc, end, scale,  # type: ignore[no-untyped-def]
            BN: tl.constexpr, D: tl.constexpr, GUARDED: tl.constexpr):  # fmt: skip
    """Take some keys and values into the running softmax of a block of queries."""
    columns = start + tl.arange(0, BN)
    k = _tile(k_base, columns, k_row, end, D, GUARDED)
    scores = tl.dot(q, tl.trans(k)) * scale
    if GUARDED:
        scores = tl.where(columns[None, :] < end, scores, float("-inf"))
    larger = tl.maximum(m, tl.max(scores, 1))
    weights = tl.exp2(scores - larger[:, None])
    shrunk = tl.exp2(m - larger)
    total = total * shrunk + tl.sum(weights, 1)
    v = _tile(v_base, columns, v_row, end, D, GUARDED)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrunk[:, None])
    return larger, total, acc


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(q, k, v, lengths, out, logs, scale,  # type: ignore[no-untyped-def]
             q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
             HEADS, LENGTH, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Attend from a block of queries of one head to all keys within the length of the sample."""
    block, pair, batch, head = _place(HEADS, LENGTH, BM)
    end = tl.minimum(tl.load(lengths + batch), LENGTH)
    rows = block * BM + tl.arange(0, BM)
    k_base, v_base = k + batch * k_batch + head * k_head, v + batch * v_batch + head * v_head
    queries = _tile(q + batch * q_batch + head * q_head, rows, q_row, LENGTH, D, True)
    m = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    whole = end // BN * BN
    for start in range(0, whole, BN):
        m, total, acc = _looked(
            queries, k_base, v_base, start, k_row, v_row, m, total, acc, end, scale, BN, D, False
        )
    if whole < end:
        m, total, acc = _looked(
            queries, k_base, v_base, whole, k_row, v_row, m, total, acc, end, scale, BN, D, True
        )
    inside = rows < LENGTH
    dims = tl.arange(0, D)
    places = ((batch * LENGTH + rows[:, None]) * HEADS + head) * D + dims[None, :]
    found = acc / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out + places, found.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(logs + pair.to(tl.int64) * LENGTH + rows, m + tl.log2(total), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _agreed(out, grad, agreed, o_batch, o_head, o_row, g_batch, g_head, g_row, HEADS, LENGTH,  # type: ignore[no-untyped-def]
            BM: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Sum what was found times its gradient, for each query."""
    block, pair, batch, head = _place(HEADS, LENGTH, BM)
    rows = block * BM + tl.arange(0, BM)
    o = _tile(out + batch * o_batch + head * o_head, rows, o_row, LENGTH, D, True)
    g = _tile(grad + batch * g_batch + head * g_head, rows, g_row, LENGTH, D, True)
    product = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(agreed + pair.to(tl.int64) * LENGTH + rows, product, mask=rows < LENGTH)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _to_keys(q, k, v, grad, lengths, logs, agreed, dk, dv, scale, factor,  # type: ignore[no-untyped-def]
             q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
             g_batch, g_head, g_row, HEADS, LENGTH,
             BN: tl.constexpr, BM: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Sum the gradients of a block of keys and values of one head over all queries."""
    block, pair, batch, head = _place(HEADS, LENGTH, BN)
    end = tl.minimum(tl.load(lengths + batch), LENGTH)
    columns = block * BN + tl.arange(0, BN)
    q_base, g_base = q + batch * q_batch + head * q_head, grad + batch * g_batch + head * g_head
    logs += pair.to(tl.int64) * LENGTH
    agreed += pair.to(tl.int64) * LENGTH
    sum_k = tl.zeros([BN, D], tl.float32)
    sum_v = tl.zeros([BN, D], tl.float32)
    if block * BN < end:
        keys = _tile(k + batch * k_batch + head * k_head, columns, k_row, end, D, True)
        values = _tile(v + batch * v_batch + head * v_head, columns, v_row, end, D, True)
        for start in range(0, LENGTH, BM):
            rows = start + tl.arange(0, BM)
            queries = _tile(q_base, rows, q_row, LENGTH, D, not EVEN)
            g = _tile(g_base, rows, g_row, LENGTH, D, not EVEN)
            if EVEN:
                log, product = tl.load(logs + rows), tl.load(agreed + rows)
            else:
                # Queries that are not there have no weights: 2 ** -inf.
                log = tl.load(logs + rows, mask=rows < LENGTH, other=float("inf"))
                product = tl.load(agreed + rows, mask=rows < LENGTH, other=0.0)
            weights = tl.exp2(tl.dot(keys, tl.trans(queries)) * scale - log[None, :])
            sum_v = tl.dot(weights.to(g.dtype), g, sum_v)
            slopes = weights * (tl.dot(values, tl.trans(g)) - product[None, :])
            sum_k = tl.dot(slopes.to(queries.dtype), queries, sum_k)
    dims = tl.arange(0, D)
    places = ((batch * LENGTH + columns[:, None]) * HEADS + head) * D + dims[None, :]
    seen = columns[:, None] < end
    sum_k = tl.where(seen, sum_k * factor, 0.0)
    sum_v = tl.where(seen, sum_v, 0.0)
    inside = columns[:, None] < LENGTH
    tl.store(dk + places, sum_k.to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + places, sum_v.to(dv.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _from_keys(queries, g, k_base, v_base, start, k_row, v_row, log, product, acc, end, scale,  # type: ignore[no-untyped-def]
               BN: tl.constexpr, D: tl.constexpr, GUARDED: tl.constexpr):  # fmt: skip
    """Add what some keys say of the gradient of a block of queries."""
    columns = start + tl.arange(0, BN)
    keys = _tile(k_base, columns, k_row, end, D, GUARDED)
    values = _tile(v_base, columns, v_row, end, D, GUARDED)
    weights = tl.exp2(tl.dot(queries, tl.trans(keys)) * scale - log[:, None])
    if GUARDED:
        weights = tl.where(columns[None, :] < end, weights, 0.0)
    slopes = weights * (tl.dot(g, tl.trans(values)) - product[:, None])
    return tl.dot(slopes.to(keys.dtype), keys, acc)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _to_queries(q, k, v, grad, lengths, logs, agreed, dq, scale, factor,  # type: ignore[no-untyped-def]
                q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
                g_batch, g_head, g_row, HEADS, LENGTH,
                BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Sum the gradient of a block of queries of one head over all keys."""
    block, pair, batch, head = _place(HEADS, LENGTH, BM)
    end = tl.minimum(tl.load(lengths + batch), LENGTH)
    rows = block * BM + tl.arange(0, BM)
    inside = rows < LENGTH
    k_base, v_base = k + batch * k_batch + head * k_head, v + batch * v_batch + head * v_head
    queries = _tile(q + batch * q_batch + head * q_head, rows, q_row, LENGTH, D, True)
    g = _tile(grad + batch * g_batch + head * g_head, rows, g_row, LENGTH, D, True)
    place = pair.to(tl.int64) * LENGTH + rows
    log = tl.load(logs + place, mask=inside, other=float("inf"))
    product = tl.load(agreed + place, mask=inside, other=0.0)
    acc = tl.zeros([BM, D], tl.float32)
    whole = end // BN * BN
    for start in range(0, whole, BN):
        acc = _from_keys(
            queries, g, k_base, v_base, start, k_row, v_row, log, product, acc, end, scale,
            BN, D, False,
        )  # fmt: skip
    if whole < end:
        acc = _from_keys(
            queries, g, k_base, v_base, whole, k_row, v_row, log, product, acc, end, scale,
            BN, D, True,
        )  # fmt: skip
    dims = tl.arange(0, D)
    places = ((batch * LENGTH + rows[:, None]) * HEADS + head) * D + dims[None, :]
    tl.store(dq + places, (acc * factor).to(dq.dtype.element_ty), mask=inside[:, None])


def probe(device: torch.device, dtype: torch.dtype, size: int) -> None:
    """Run the kernels once.

    Parameters
    ----------
    device : torch.device
        Where.
    dtype : torch.dtype
        Of what attends.
    size : int
        Dimensions of a head; with many, blocks need more of the fast memory than some cards have.
    """
    x = torch.zeros(1, 1, 16, size, dtype=dtype, device=device)
    lengths = torch.ones(1, dtype=torch.int32, device=device)
    out, logs = forward(x, x, x, lengths, 1.0)
    backward(x, x, x, x, out, logs, lengths, 1.0)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return what queries find, and the logarithms of the sums of their weights.

    Parameters
    ----------
    q, k, v : Tensor of float16 or bfloat16
        (batch, heads, length, dimensions), 16, 32, 64 or 128 of the last, without gaps in it.
    lengths : Tensor of int32
        (batch,): how many keys of each sample are looked at, the first ones.
    scale : float
        Of the products of queries and keys.

    Returns
    -------
    out : Tensor
        Of the shape of q; heads of a place lie side by side in memory.
    logs : Tensor of float32
        (batch, heads, length), to base 2.
    """
    q, k, v, lengths = (_dense(x) for x in (q, k, v, lengths))
    batch, heads, length, size = q.shape
    out = empty_beside(q)
    logs = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    rows, columns, warps, stages = _FORWARD
    with torch.cuda.device(q.device):
        _forward[(triton.cdiv(length, rows) * batch * heads,)](
            q, k, v, lengths, out, logs, scale * LOG2_E, *_steps(q), *_steps(k), *_steps(v),
            heads, length, BM=rows, BN=columns, D=size, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out, logs


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    lengths: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values.

    Parameters
    ----------
    grad : Tensor
        Gradient of what was found.
    q, k, v : Tensor
        As forward had them.
    out, logs : Tensor
        As forward returned them.
    lengths : Tensor of int32
        (batch,).
    scale : float
        As forward had it.

    Returns
    -------
    dq, dk, dv : Tensor
        Of the shape of q; heads of a place lie side by side in memory.
    """
    q, k, v, grad, out, lengths = (_dense(x) for x in (q, k, v, grad, out, lengths))
    batch, heads, length, size = q.shape
    dq, dk, dv = empty_beside(q), empty_beside(q), empty_beside(q)
    agreed = torch.empty_like(logs)
    steps = (*_steps(q), *_steps(k), *_steps(v), *_steps(grad))
    given = (q, k, v, grad, lengths, logs, agreed)
    pairs, inner = batch * heads, scale * LOG2_E
    with torch.cuda.device(q.device):
        rows = _AGREED
        _agreed[(triton.cdiv(length, rows) * pairs,)](
            out, grad, agreed, *_steps(out), *_steps(grad), heads, length, BM=rows, D=size
        )
        columns, rows, warps, stages = _KEYS
        _to_keys[(triton.cdiv(length, columns) * pairs,)](
            *given, dk, dv, inner, scale, *steps, heads, length, BN=columns, BM=rows, D=size,
            EVEN=length % rows == 0, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        rows, columns, warps, stages = _QUERIES
        _to_queries[(triton.cdiv(length, rows) * pairs,)](
            *given, dq, inner, scale, *steps, heads, length, BM=rows, BN=columns, D=size,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return dq, dk, dv


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _steps(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)
