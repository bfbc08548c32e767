"""HalfJoin: matrices in half precision whose backward finds their scaled operands still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.halves import exact
from mpobert_plugin.joining import Joining, Operands, Pieces, first, joined, operands
from mpobert_plugin.rejoin import Found, Rejoin, rest, second_gradients
from mpobert_plugin.unfold import gathered

_TENSORS = 5


def half_join(pieces: Pieces, how: Joining) -> tuple[Tensor, ...]:
    """Return the matrices of `join`, each by itself; backward computes the products again.

    Parameters
    ----------
    pieces : tuple of (Tensor or None)
        The five of `join`.
    how : Joining
        Sizes and order, in half precision.

    Returns
    -------
    tuple of Tensor
        (rows, cols), one for each output.

    Examples
    --------
    >>> how = Joining((2,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0, 1), 0.0, torch.float16, True)
    >>> core = torch.ones(1, 1, 2, 2, 1, requires_grad=True)
    >>> one, other = half_join((core, torch.ones(2, 1, 1), None, None, None), how)
    >>> (one.sum() + other.sum()).backward()
    >>> core.grad.unique().item()
    2.0
    """
    # torch leaves this method without types.
    found = HalfJoin.apply(*pieces, how)  # type: ignore[no-untyped-call]
    return tuple(found[: len(how.outputs)])


class HalfJoin(torch.autograd.Function):
    """`half_join`; what backward needs are further outputs, without a gradient of their own."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor | None, ...]:
        """Return the matrices, then the operands in half precision and their scales.

        Parameters
        ----------
        *inputs
            As `join` takes them.

        Returns
        -------
        tuple of (Tensor or None)
            The matrices come first.
        """
        central, left, right, up, down, how = inputs
        given = operands(central, left, right, how)
        matrices = joined(first(given, how), given, up, down, how)
        kept = (given.central, given.left, given.right, *(given.scales or ()))
        return (*matrices.unbind(0), *kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep inputs and further outputs.

        Parameters
        ----------
        ctx : object
            What backward gets.
        inputs : tuple
            As `forward` takes them.
        output : tuple
            What it has returned.
        """
        *tensors, ctx.how = inputs
        kept = output[len(ctx.how.outputs) :]
        ctx.mark_non_differentiable(*(x for x in kept if x is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands.

        Parameters
        ----------
        ctx : object
            What `setup_context` has kept.
        *grads : Tensor or None
            Gradient of each matrix, and nothing for further outputs.

        Returns
        -------
        tuple of (Tensor or None)
            One for each input.
        """
        how: Joining = ctx.how
        # Read once: what is unpacked may be computed for it.
        saved = ctx.saved_tensors
        found = [_there(grad, how, saved[0]) for grad in grads[: len(how.outputs)]]
        # Gradients of gradients follow the operands themselves, and adapters add up over matrices.
        if torch.is_grad_enabled() or saved[3] is not None or not how.in_order:
            again = _Again(saved[:_TENSORS], how, ctx.needs_input_grad)
            return Rejoin.backward(again, torch.stack(found))
        return (*_gradients(saved, found, how, ctx.needs_input_grad), None, None, None)


@dataclass(frozen=True)
class _Again:
    """What `Rejoin.backward` reads of a context."""

    saved_tensors: Sequence[Tensor | None]
    how: Joining
    needs_input_grad: Sequence[bool]


def _there(grad: Tensor | None, how: Joining, central: Tensor) -> Tensor:
    if grad is not None:
        return grad
    return torch.zeros(how.rows, how.cols, dtype=how.dtype, device=central.device)


def _gradients(
    saved: Sequence[Any], grads: list[Tensor], how: Joining, needs: Sequence[bool]
) -> Found:
    central, left, right, _, _, c, a, b, *scales = saved
    given = Operands(c, a, b, tuple(scales))
    with exact(central.device.type):
        whole, by = gathered(grads, how)
        last, d_half = second_gradients(whole, first(given, how), given, how)
        del whole
        return rest(last, d_half, by, given, (central, left, right), how, needs)
