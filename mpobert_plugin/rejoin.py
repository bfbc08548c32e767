"""Rejoin: joined matrices whose backward computes the products again instead of keeping them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.halves import exact, wide_product
from mpobert_plugin.joining import Joining, Operands, first, from_left, join, operands
from mpobert_plugin.unfold import folded, gathered

Found = tuple[Tensor | None, Tensor | None, Tensor | None]


class Rejoin(torch.autograd.Function):
    """`join`, which keeps its operands only and computes the products again in backward.

    Examples
    --------
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float32)
    >>> core = torch.ones(1, 1, 2, 2, 1, requires_grad=True)
    >>> Rejoin.apply(core, None, None, None, None, how).sum().backward()
    >>> core.grad.sum().item()
    4.0
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        """Return what `join` returns.

        Parameters
        ----------
        *inputs
            As `join` takes them.

        Returns
        -------
        Tensor
            (outputs, rows, cols).
        """
        return join(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the operands.

        Parameters
        ----------
        ctx : object
            What backward gets.
        inputs : tuple
            As `join` takes them.
        output : Tensor
            The matrices, which are not kept.
        """
        *tensors, ctx.how = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands.

        Parameters
        ----------
        ctx : object
            What `setup_context` has kept.
        *grads : Tensor
            Gradient of the matrices.

        Returns
        -------
        tuple of (Tensor or None)
            One for each input.
        """
        central, left, right, up, down = ctx.saved_tensors
        how, needs, grad = ctx.how, ctx.needs_input_grad, grads[0]
        found: Found = (None, None, None)
        with exact(grad.device.type):
            adapters = _adapter_gradients(grad, up, down, how)
            if any(needs[:3]):
                found = _gradients(_per_matrix(grad, up, how), central, left, right, how, needs)
        return (*found, *adapters, None)


class Promise(Rejoin):
    """A tensor that takes no memory and stands for the matrices in a graph.

    Its values are zeros; the gradient of the matrices is given to it, and goes on to the operands.

    Examples
    --------
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float32)
    >>> core = torch.ones(1, 1, 2, 2, 1, requires_grad=True)
    >>> promise = Promise.apply(core, None, None, None, None, how)
    >>> promise.backward(torch.ones(1, 2, 2))
    >>> promise.untyped_storage().nbytes(), core.grad.sum().item()
    (4, 4.0)
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        """Return zeros in the place of the matrices.

        Parameters
        ----------
        *inputs
            As `join` takes them.

        Returns
        -------
        Tensor
            (outputs, rows, cols), all in one place of memory.
        """
        central, how = inputs[0], inputs[-1]
        zero = torch.zeros(1, 1, 1, dtype=how.dtype, device=central.device)
        return zero.expand(len(how.outputs), how.rows, how.cols)


def _adapter_gradients(
    grad: Tensor, up: Tensor | None, down: Tensor | None, how: Joining
) -> tuple[Tensor | None, Tensor | None]:
    if up is None or down is None:
        return None, None
    kind = how.dtype if how.half else up.dtype
    given = grad.to(kind)
    d_up = wide_product(given, down.to(kind).transpose(1, 2))
    d_down = wide_product(up.to(kind).transpose(1, 2), given)
    return (how.alpha * d_up).to(up.dtype), (how.alpha * d_down).to(down.dtype)


def _per_matrix(grad: Tensor, up: Tensor | None, how: Joining) -> Tensor:
    """Return the gradient of each matrix: the sum over the outputs that were made from it."""
    if up is None or how.in_order:
        return grad
    if sum(how.counts) == 1:
        return grad.sum(0, keepdim=True)
    # Sums of views: an index in the host's memory would make it wait for the device.
    each = grad.unbind(0)
    users = [[k for k, made in enumerate(how.outputs) if made == m] for m in range(sum(how.counts))]
    return torch.stack([_sum([each[k] for k in own]) for own in users])


def _sum(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _gradients(
    grad: Tensor,
    central: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    how: Joining,
    needs: tuple[bool, ...],
) -> Found:
    given = operands(central, left, right, how)
    if given.scales is None:
        whole, by = folded(grad, None, central.dtype, how), None
    else:
        whole, by = gathered(grad, how)
    half = first(given, how)
    last, d_half = second_gradients(whole, half, given, how)
    del whole, half
    return rest(last, d_half, by, given, (central, left, right), how, needs)


def rest(
    last: Tensor | None,
    d_half: Tensor,
    by: Tensor | None,
    given: Operands,
    like: tuple[Tensor, Tensor | None, Tensor | None],
    how: Joining,
    needs: Sequence[bool],
) -> Found:
    """Return the gradients of central tensors and chains from those of the second products.

    Parameters
    ----------
    last, d_half : Tensor
        As `second_gradients` returns them.
    by : Tensor, optional
        What gradients were divided by, where products are computed in half precision.
    given : Operands
        What was multiplied.
    like : tuple of (Tensor or None)
        Central tensors, left and right chains, whose element types gradients have.
    how : Joining
        Sizes and order.
    needs : sequence of bool
        Whether central tensors need one.

    Returns
    -------
    tuple of (Tensor or None)
        One for each.
    """
    first_is_left = from_left(given.left, given.right, how)
    met, middle = _first_gradients(d_half, given, how, first_is_left, needs)
    sides = (met, last) if first_is_left else (last, met)
    made = (None if middle is None else middle.view(like[0].shape), *sides)
    scales = None if given.scales is None or by is None else (*given.scales, by)
    return _rescaled(made, like, scales)


def second_gradients(
    whole: Tensor, half: Tensor, given: Operands, how: Joining
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the chain that comes last and of the first product.

    Parameters
    ----------
    whole : Tensor
        (matrices, entries), as `folded` returns gradients.
    half : Tensor
        What `first` returns.
    given : Operands
        What was multiplied.
    how : Joining
        Sizes and order.

    Returns
    -------
    tuple of (Tensor or None, Tensor)
        None without such a chain.
    """
    first_is_left = from_left(given.left, given.right, how)
    u, chain = len(half), given.right if first_is_left else given.left
    if chain is None:
        return None, whole.view(half.shape)
    if first_is_left:
        grad, product = whole.view(u, -1, chain.shape[2]), half.view(u, -1, chain.shape[1])
        d_chain = wide_product(product.transpose(1, 2), grad)
        return d_chain, (grad @ chain.transpose(1, 2)).view(half.shape)
    grad, product = whole.view(u, chain.shape[1], -1), half.view(u, chain.shape[2], -1)
    d_chain = wide_product(grad, product.transpose(1, 2))
    return d_chain, (chain.transpose(1, 2) @ grad).view(half.shape)


def _first_gradients(
    d_half: Tensor, given: Operands, how: Joining, first_is_left: bool, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the chain that comes first and of the central tensors."""
    central, chain = given.central, given.left if first_is_left else given.right
    groups, bond, i, j, bond2 = central.shape
    shape = (groups, bond, i * j * bond2) if first_is_left else (groups, bond * i * j, bond2)
    middle = central.reshape(shape)
    if chain is None:
        return None, torch.stack([part.sum(0) for part in torch.split(d_half, list(how.counts))])
    if how.one_each:
        d_chain = _times_middle(d_half, middle, first_is_left)
        factors = (chain, d_half) if first_is_left else (d_half, chain)
        turned = (factors[0].mT, factors[1]) if first_is_left else (factors[0], factors[1].mT)
        return d_chain, wide_product(*turned) if needs[0] else None
    chains, centrals = [], []
    parts = zip(
        torch.split(d_half, list(how.counts)), torch.split(chain, list(how.counts)), strict=True
    )
    for group, (grad, own) in enumerate(parts):
        chains.append(_times_middle(grad, middle[group], first_is_left))
        if needs[0]:
            centrals.append(_summed(grad, own, first_is_left))
    return torch.cat(chains), torch.stack(centrals) if centrals else None


def _times_middle(grad: Tensor, middle: Tensor, first_is_left: bool) -> Tensor:
    if middle.dim() == 3:
        return wide_product(grad, middle.mT) if first_is_left else wide_product(middle.mT, grad)
    if first_is_left:
        return wide_product(grad.reshape(-1, grad.shape[2]), middle.mT).view(*grad.shape[:2], -1)
    return wide_product(middle.mT.expand(len(grad), -1, -1), grad)


def _summed(grad: Tensor, chain: Tensor, first_is_left: bool) -> Tensor:
    """Return the gradient of one central tensor: the sum over its matrices, as one product."""
    if first_is_left:
        return wide_product(chain.flatten(0, 1).mT, grad.flatten(0, 1))
    return wide_product(grad.transpose(0, 1).flatten(1), chain.transpose(1, 2).flatten(0, 1))


def _rescaled(
    made: Found,
    like: tuple[Tensor, Tensor | None, Tensor | None],
    scales: tuple[Tensor, ...] | None,
) -> Found:
    """Return gradients times the scales of all other operands, in the types of the operands."""

    def one(k: int) -> Tensor | None:
        gradient, operand = made[k], like[k]
        if gradient is None or operand is None:
            return None
        if scales is not None:
            a, b, c = (scale for number, scale in enumerate(scales) if number != k)
            by = a * b * c
            # In place: made just before, nobody else's, and perhaps still in the device's cache.
            own = gradient.dtype == by.dtype and not torch.is_grad_enabled()
            gradient = gradient.mul_(by) if own else gradient * by
        return gradient.to(operand.dtype)

    return one(0), one(1), one(2)
