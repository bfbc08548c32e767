"""Attention over samples of given lengths, as an operation of torch with a gradient of its own.

A mask that hides the ends of samples makes torch's fused attention read a number for every pair of
a query and a key. Lengths say the same, and what lies behind them is not read at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.halves import exact
from mpobert_plugin.kernels import module_for, works

KERNELS = "train.attention_kernel"
# Dimensions of a head for which there are kernels.
SIZES = (16, 32, 64, 128)
LOG2_E = 1.4426950408889634


def kernels_for(size: int, device: torch.device) -> bool:
    """Return whether there are kernels for heads of a size, and a device runs them.

    Parameters
    ----------
    size : int
        Dimensions of a head.
    device : torch.device
        Any.

    Returns
    -------
    bool
        On a GPU they are tried once.

    Examples
    --------
    >>> kernels_for(64, torch.device("cpu"))
    False
    """
    return size in SIZES and works(KERNELS, device, torch.float16, size)


@torch.library.custom_op(
    "mpobert::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor lengths, float scale) -> (Tensor, Tensor)",
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return what queries find among the first keys of their samples.

    Parameters
    ----------
    q, k, v : Tensor
        (batch, heads, length, dimensions).
    lengths : Tensor of int32
        (batch,): how many keys of each sample are looked at; without any, zeros are found.
    scale : float
        Of the products of queries and keys.

    Returns
    -------
    out : Tensor
        Of the shape of q; heads of a place lie side by side in memory, as the next product takes
        them.
    logs : Tensor of float32
        (batch, heads, length): logarithms to base 2 of the sums of the weights, for backward.

    Raises
    ------
    ConfigError
        When queries, keys and values differ in shape, or lengths are not one for each sample.

    Notes
    -----
    Blocks of keys are taken one after the other, with a running maximum [1]_. On a GPU by kernels
    of Triton, which need 16, 32, 64 or 128 dimensions; the same bits each time, for nothing is
    summed by whoever comes first. Elsewhere by torch's operations.

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
       Partitioning", arXiv:2307.08691, 2023.

    Examples
    --------
    >>> x = torch.eye(2)[None, None]
    >>> attention(x, x, x, torch.tensor([1], dtype=torch.int32), 1.0)[0].tolist()
    [[[[1.0, 0.0], [1.0, 0.0]]]]
    """
    _check(q, k, v, lengths)
    if q.is_cuda:
        kernels: Any = module_for(KERNELS)
        found: tuple[Tensor, Tensor] = kernels.forward(q, k, v, lengths, scale)
        return found
    with exact(q.device.type):
        scores = _scores(q, k, lengths, scale)
        logs = torch.logsumexp(scores, -1)
        out = _weights(scores, logs) @ _wide(v)
    return _beside(out.to(q.dtype)), logs.float() * LOG2_E


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float  # noqa: ARG001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _check(q, k, v, lengths)
    return empty_beside(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


_BACKWARD = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs, Tensor lengths, "
    "float scale) -> (Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("mpobert::attention_backward", mutates_args=(), schema=_BACKWARD)
def attention_backward(
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
        As `attention` had them.
    out, logs : Tensor
        As it returned them.
    lengths : Tensor of int32
        (batch,).
    scale : float
        As it had it.

    Returns
    -------
    dq, dk, dv : Tensor
        Of the shape of q; heads of a place lie side by side in memory.
    """
    if q.is_cuda:
        kernels: Any = module_for(KERNELS)
        found: tuple[Tensor, Tensor, Tensor] = kernels.backward(
            grad, q, k, v, out, logs, lengths, scale
        )
        return found
    with exact(q.device.type):
        weights = _weights(_scores(q, k, lengths, scale), logs / LOG2_E)
        g = _wide(grad)
        agreed = (g * _wide(out)).sum(-1, keepdim=True)
        slopes = weights * (g @ _wide(v).mT - agreed) * scale
        dq, dk, dv = slopes @ _wide(k), slopes.mT @ _wide(q), weights.mT @ g
    return tuple(_beside(x.to(q.dtype)) for x in (dq, dk, dv))  # type: ignore[return-value]


@attention_backward.register_fake
def _(grad: Tensor, q: Tensor, *_others: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    return empty_beside(q), empty_beside(q), empty_beside(q)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, lengths, scale = inputs
    ctx.save_for_backward(q, k, v, *output, lengths)
    ctx.mark_non_differentiable(output[1])
    ctx.scale = scale


def _gradients(ctx: Any, grad: Tensor, _logs: Any) -> tuple[Tensor | None, ...]:
    return *attention_backward(grad, *ctx.saved_tensors, ctx.scale), None, None


attention.register_autograd(_gradients, setup_context=_keep)


def _check(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> None:
    if q.ndim != 4 or not q.shape == k.shape == v.shape or lengths.shape != q.shape[:1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v, lengths))
        raise ConfigError(
            "q, k and v must have one shape (batch, heads, length, width) and lengths (batch,), "
            f"got {shapes}. Use torch's scaled_dot_product_attention for others."
        )


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _scores(q: Tensor, k: Tensor, lengths: Tensor, scale: float) -> Tensor:
    seen = torch.arange(k.shape[-2], device=k.device) < lengths[:, None, None, None]
    scores = _wide(q) @ _wide(k).transpose(-1, -2) * scale
    return scores.masked_fill(~seen, float("-inf"))


def _weights(scores: Tensor, logs: Tensor) -> Tensor:
    # Nothing is looked at where the sum is zero, and -inf less -inf would be no number.
    return (scores - logs.masked_fill(logs == float("-inf"), 0.0)[..., None]).exp()


def _beside(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def empty_beside(x: Tensor) -> Tensor:
    """Return room for as many numbers, with the heads of a place side by side in memory.

    Parameters
    ----------
    x : Tensor
        (batch, heads, length, dimensions), of any strides.

    Returns
    -------
    Tensor
        Of the same shape and element type.

    Examples
    --------
    >>> empty_beside(torch.zeros(1, 2, 3, 4)).stride()
    (24, 4, 8, 1)
    """
    batch, heads, length, size = x.shape
    return x.new_empty(batch, length, heads, size).transpose(1, 2)
