"""Products of thin matrices whose gradient is a sum over a long dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.halves import exact
from mpobert_plugin.tracing import is_traced

# Lengths from which a GPU has too few threads at work on one sum, and widths up to which.
_LONG, _THIN = 1024, 64
_PIECE = 256


def thin_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two stacks; on a GPU, long sums of its gradient are cut into pieces.

    Parameters
    ----------
    a, b : Tensor
        (stack, m, k) and (stack, k, n).

    Returns
    -------
    Tensor
        (stack, m, n).

    Examples
    --------
    >>> thin_product(torch.ones(1, 2, 3), torch.ones(1, 3, 1)).tolist()
    [[[3.0], [3.0]]]
    """
    thin = _is_long(b.shape[2], a.shape[1:]) or _is_long(a.shape[1], b.shape[1:])
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if not (thin and recorded and a.is_cuda) or is_traced():
        return a @ b
    # torch leaves this method without types.
    made: Tensor = ThinProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return made


def _is_long(length: int, other: Sequence[int]) -> bool:
    """Tell whether a factor is so long, and the other one so thin, that a sum is worth cutting."""
    return max(other) <= _THIN and length >= _LONG and length % _PIECE == 0


class ThinProduct(torch.autograd.Function):
    """The product of two stacks, whose gradient for the thin one is summed in pieces.

    Examples
    --------
    >>> a = torch.ones(1, 2, 3, requires_grad=True)
    >>> ThinProduct.apply(a, torch.ones(1, 3, 512)).sum().backward()
    >>> a.grad.unique().item()
    512.0
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """Return the product.

        Parameters
        ----------
        a, b : Tensor
            As `thin_product` takes them.

        Returns
        -------
        Tensor
            (stack, m, n).
        """
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep the factors.

        Parameters
        ----------
        ctx : object
            What backward gets.
        inputs : tuple of Tensor
            The factors.
        output : Tensor
            Not kept.
        """
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of both factors.

        Parameters
        ----------
        ctx : object
            What `setup_context` has kept.
        *grads : Tensor
            Gradient of the product.

        Returns
        -------
        tuple of (Tensor or None)
            One for each factor.
        """
        a, b = ctx.saved_tensors
        grad, (for_a, for_b) = grads[0], ctx.needs_input_grad
        with exact(grad.device.type):
            return (
                _by_columns(grad, b) if for_a else None,
                _by_rows(a, grad) if for_b else None,
            )


def _by_columns(grad: Tensor, b: Tensor) -> Tensor:
    """Return ``grad @ b.mT``; a long sum over columns in pieces."""
    stack, m, n = grad.shape
    if not _is_long(n, (m, b.shape[1])):
        return grad @ b.mT
    # Columns that belong together have to lie so for a stack of pieces.
    cut, other = (
        x.reshape(stack, x.shape[1], n // _PIECE, _PIECE).transpose(1, 2).flatten(0, 1)
        for x in (grad, b)
    )
    return (cut @ other.mT).view(stack, n // _PIECE, m, b.shape[1]).sum(1)


def _by_rows(a: Tensor, grad: Tensor) -> Tensor:
    """Return ``a.mT @ grad``; a long sum over rows in pieces."""
    stack, m, n = grad.shape
    if not _is_long(m, (a.shape[2], n)):
        return a.mT @ grad
    cut, other = (x.reshape(stack * (m // _PIECE), _PIECE, x.shape[2]) for x in (a, grad))
    return (cut.mT @ other).view(stack, m // _PIECE, a.shape[2], n).sum(1)
