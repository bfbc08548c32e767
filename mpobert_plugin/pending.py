"""Matrices that are rebuilt when a layer is reached, dropped after it, and rebuilt in backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from mpobert_plugin.errors import ChangedTensorError
from mpobert_plugin.halves import AUTOCAST_DEVICES, exact
from mpobert_plugin.joining import Joining, Pieces, join
from mpobert_plugin.lazy import Lazy, Parts, Values
from mpobert_plugin.rejoin import Promise


class Source:
    """The matrices of a few layers: rebuilt when one is asked for, dropped when all were.

    Parameters
    ----------
    operands : tuple of (Tensor or None)
        The five of `join`.
    how : Joining
        Sizes and order.
    users : int
        How many layers ask for a matrix in a forward, and again in a backward.

    Examples
    --------
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float32)
    >>> source = Source((torch.ones(1, 1, 2, 2, 1), None, None, None, None), how, users=1)
    >>> source.matrix(0).sum().item()
    4.0
    """

    def __init__(self, operands: Pieces, how: Joining, users: int) -> None:
        central, *others = operands
        left, right, up, down = (None if t is None else t.detach() for t in others)
        self.operands: Pieces = (central.detach(), left, right, up, down)
        self.how = how
        self.users = users
        self._versions = self._now()
        self._live: Tensor | None = None
        self._left = 0

    def matrix(self, number: int) -> Tensor:
        """Return a matrix.

        Parameters
        ----------
        number : int
            Which of the outputs of `join`.

        Returns
        -------
        Tensor
            (rows, cols), without gradient.

        Raises
        ------
        ChangedTensorError
            When a core was modified in place since the forward.
        """
        live = self._live
        if live is None:
            if self._now() != self._versions:
                raise ChangedTensorError(
                    "tensors that backward needs must not be modified after the forward, got a "
                    "core or adapter that was. Run backward before changing the bank, or run the "
                    "forward again."
                )
            with torch.no_grad(), exact(self.operands[0].device.type):
                live = join(*self.operands, self.how)
            self._live, self._left = live, self.users
        self._left -= 1
        if self._left == 0:
            self._live = None
        return live[number]

    def _now(self) -> list[int]:
        known = [t for t in self.operands if t is not None and not t.is_inference()]
        return [tensor._version for tensor in known]


class PendingLinear(torch.autograd.Function):
    """``x @ W.T + b`` that asks a source for W now and again in backward.

    Examples
    --------
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float32)
    >>> core = torch.ones(1, 1, 2, 2, 1, requires_grad=True)
    >>> pending = Pending.alone(how, (core, None, None, None, None, None))
    >>> pending.linear(torch.ones(3, 2)).sum().backward()
    >>> core.grad.sum().item()
    12.0
    """

    @staticmethod
    def forward(
        x: Tensor,
        promise: Tensor,  # noqa: ARG004
        bias: Tensor | None,
        source: Source,
        number: int,
    ) -> Tensor:
        """Return the product; the promise only stands for the matrix in the graph.

        Parameters
        ----------
        x : Tensor
            (..., in_features).
        promise : Tensor
            Stands for the matrix in the graph.
        bias : Tensor or None
            (out_features,).
        source : Source
            Who has the matrix.
        number : int
            Which one.

        Returns
        -------
        Tensor
            (..., out_features).
        """
        return linear(x, source.matrix(number), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the input, and who has the matrix.

        Parameters
        ----------
        ctx : object
            What backward gets.
        inputs : tuple
            Those of `forward`.
        output : Tensor
            The product, which is not kept.
        """
        x, _, _, ctx.source, ctx.number = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, matrix and bias.

        Parameters
        ----------
        ctx : object
            What `setup_context` has kept.
        *grads : Tensor
            Gradient of the product.

        Returns
        -------
        tuple of (Tensor or None)
            One for each input.
        """
        (x,) = ctx.saved_tensors
        grad, needs = grads[0], ctx.needs_input_grad
        with exact(grad.device.type):
            flat = grad.reshape(-1, grad.shape[-1])
            d_x = grad @ ctx.source.matrix(ctx.number) if needs[0] else None
            d_matrix = flat.mT @ x.reshape(-1, x.shape[-1]) if needs[1] else None
            d_bias = flat.sum(0) if needs[2] else None
        return d_x, d_matrix, d_bias, None, None


class Pending(Lazy):
    """A layer's share of the matrices that a source rebuilds.

    Parameters
    ----------
    how : Joining
        How the layer's own matrix is rebuilt without the others of its source.
    own : sequence of (Tensor or None)
        The layer's own operands for that, and its bias.
    source : Source
        Who has the matrix.
    number : int
        Which one.
    promise : Tensor
        Stands for the matrix in the graph.
    """

    def __init__(
        self, how: Joining, own: Parts, source: Source, number: int, promise: Tensor
    ) -> None:
        self.how = how
        self.own = own
        self.source = source
        self.number = number
        self.promise = promise

    @classmethod
    def alone(cls, how: Joining, own: Parts) -> Pending:
        """Return a layer's share that has a source of its own.

        Parameters
        ----------
        how : Joining
            How the matrix is rebuilt.
        own : sequence of (Tensor or None)
            Operands and bias.

        Returns
        -------
        Pending
            It rebuilds one matrix.
        """
        central, left, right, up, down, _ = own
        if central is None:
            raise TypeError("a layer must be handed a central tensor, got None.")
        operands = (central, left, right, up, down)
        # torch leaves this method without types.
        promise: Tensor = Promise.apply(*operands, how)  # type: ignore[no-untyped-call]
        return cls(how, own, Source(operands, how, users=1), 0, promise[0])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.promise.device

    def linear(self, x: Tensor) -> Tensor:
        """Return ``x @ W.T + b``.

        Parameters
        ----------
        x : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """
        bias, kind = self.own[-1], x.device.type
        if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
            # Cast here, so that what is kept for backward is the narrow input.
            x = x.to(self.promise.dtype)
            bias = None if bias is None else bias.to(x.dtype)
        # torch leaves this method without types.
        return PendingLinear.apply(x, self.promise, bias, self.source, self.number)  # type: ignore[no-untyped-call, no-any-return]

    def values(self) -> Values:
        """Return weight and bias, rebuilt for this call.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        central, left, right, up, down, bias = self.own
        if central is None:
            raise TypeError("a layer must be handed a central tensor, got None.")
        with exact(self.promise.device.type):
            return join(central, left, right, up, down, self.how)[0], bias

    def parts(self) -> Parts:
        """Return operands and bias of the layer.

        Returns
        -------
        sequence of (Tensor or None)
            Six.
        """
        return self.own

    def maker(self) -> Callable[[Parts], Pending]:
        """Return a function from operands and bias to such an object.

        Returns
        -------
        callable
            It holds no tensor.
        """
        return partial(Pending.alone, self.how)
