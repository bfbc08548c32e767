"""Products of thin matrices whose gradient is a sum over a long dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    thin = max(a.shape[1:]) <= _THIN and b.shape[2] >= _LONG and b.shape[2] % _PIECE == 0
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    # A trace holds no function with a backward of its own.
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if not (thin and recorded and a.is_cuda) or traced:
        return a @ b
    # torch leaves this method without types.
    made: Tensor = ThinProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return made


class ThinProduct(torch.autograd.Function):
    """The product of two stacks, whose gradient for the first is summed in pieces.

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
        grad = grads[0]
        for_b = a.mT @ grad if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, for_b
        stack, m, n = grad.shape
        pieces = n // _PIECE
        cut = grad.reshape(stack, m, pieces, _PIECE).transpose(1, 2).flatten(0, 1)
        other = b.reshape(stack, b.shape[1], pieces, _PIECE).transpose(1, 2).flatten(0, 1)
        return (cut @ other.mT).view(stack, pieces, m, -1).sum(1), for_b
