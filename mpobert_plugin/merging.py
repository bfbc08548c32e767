"""Two neighbours of a chain as one: a product whose rows and columns end up in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.halves import exact
from mpobert_plugin.kernels import PLAIN, module_for, works
from mpobert_plugin.tracing import is_traced, is_transformed

# Widths up to which the kernels keep the thin neighbour at hand.
_THIN = 64


@dataclass(frozen=True)
class Merging:
    """Sizes of a chain and of the core that it is merged with.

    Parameters
    ----------
    from_left : bool
        Whether the chain stands left of the core.
    stack : int
        How many of each there are.
    outer : tuple of int
        Rows and columns of the chain.
    bond : int
        What is summed over.
    inner : tuple of int
        The other dimensions of the core, in their order.

    Examples
    --------
    >>> how = Merging(True, 1, (2, 3), 4, (5, 6, 7))
    >>> how.thin, how.long, how.shape
    (6, 210, (1, 10, 18, 7))
    """

    from_left: bool
    stack: int
    outer: tuple[int, int]
    bond: int
    inner: tuple[int, int, int]

    @property
    def thin(self) -> int:
        """Entries of the chain for one index of the bond."""
        return math.prod(self.outer)

    @property
    def long(self) -> int:
        """Entries of the core for one index of the bond."""
        return math.prod(self.inner)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the longer chain."""
        (x, y), (a, b, c) = self.outer, self.inner
        return (self.stack, x * a, y * b, c) if self.from_left else (self.stack, a, b * x, c * y)


def merged_left(chain: Tensor, core: Tensor) -> Tensor:
    """Return a chain and the core right of it as one chain.

    Parameters
    ----------
    chain : Tensor
        (stack, rows, cols, bond).
    core : Tensor
        (stack, bond, i, j, right).

    Returns
    -------
    Tensor
        (stack, rows * i, cols * j, right).

    Examples
    --------
    >>> merged_left(torch.ones(1, 2, 1, 3), torch.ones(1, 3, 1, 2, 4)).shape
    torch.Size([1, 2, 2, 4])
    """
    stack, rows, cols, bond = chain.shape
    i, j, right = core.shape[2:]
    return _merged(chain, core, Merging(True, stack, (rows, cols), bond, (i, j, right)))


def merged_right(core: Tensor, chain: Tensor) -> Tensor:
    """Return a core and the chain right of it as one chain.

    Parameters
    ----------
    core : Tensor
        (stack, left, i, j, bond).
    chain : Tensor
        (stack, bond, rows, cols).

    Returns
    -------
    Tensor
        (stack, left, i * rows, j * cols).

    Examples
    --------
    >>> merged_right(torch.ones(1, 4, 1, 2, 3), torch.ones(1, 3, 2, 1)).shape
    torch.Size([1, 4, 2, 2])
    """
    stack, bond, rows, cols = chain.shape
    left, i, j = core.shape[1:4]
    return _merged(chain, core, Merging(False, stack, (rows, cols), bond, (left, i, j)))


def _merged(chain: Tensor, core: Tensor, how: Merging) -> Tensor:
    if not _by_kernel(chain, core, how):
        return _plainly(chain, core, how)
    # torch leaves this method without types.
    made: Tensor = Merge.apply(chain, core, how)  # type: ignore[no-untyped-call]
    return made


def _by_kernel(chain: Tensor, core: Tensor, how: Merging) -> bool:
    """Tell whether the kernels take both, and nothing follows the operations themselves."""
    if max(how.thin, how.bond) > _THIN or {chain.dtype, core.dtype} != {torch.float32}:
        return False
    if not (chain.is_cuda and type(chain) in PLAIN and type(core) in PLAIN):
        return False
    if not (chain.numel() and core.numel()):
        return False
    if torch.compiler.is_compiling() or is_traced() or is_transformed():
        return False
    return works("merge_kernel", chain.device, chain.dtype)


def _plainly(chain: Tensor, core: Tensor, how: Merging) -> Tensor:
    (x, y), (a, b, c) = how.outer, how.inner
    if how.from_left:
        product = chain.flatten(1, 2) @ core.flatten(2)
        return product.view(-1, x, y, a, b, c).transpose(2, 3).reshape(how.shape)
    product = core.flatten(1, 3) @ chain.flatten(2)
    return product.view(-1, a, b, c, x, y).transpose(3, 4).reshape(how.shape)


class Merge(torch.autograd.Function):
    """`merged_left` or `merged_right` by kernels, which neither copy nor keep the product."""

    @staticmethod
    def forward(chain: Tensor, core: Tensor, how: Merging) -> Tensor:
        """Return the longer chain.

        Parameters
        ----------
        chain, core : Tensor
            In float32 on a GPU.
        how : Merging
            Sizes.

        Returns
        -------
        Tensor
            Of the shape ``how.shape``.
        """
        made: Tensor = module_for("merge_kernel").merge(chain.contiguous(), core.contiguous(), how)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the neighbours.

        Parameters
        ----------
        ctx : object
            What backward gets.
        inputs : tuple
            As `forward` takes them.
        output : Tensor
            Not kept.
        """
        *neighbours, ctx.how = inputs
        ctx.save_for_backward(*neighbours)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of both.

        Parameters
        ----------
        ctx : object
            What `setup_context` has kept.
        *grads : Tensor
            Gradient of the longer chain.

        Returns
        -------
        tuple of (Tensor or None)
            One for each input.
        """
        (chain, core), how, grad = ctx.saved_tensors, ctx.how, grads[0]
        if torch.is_grad_enabled() or type(grad) not in PLAIN:
            # Gradients of gradients follow operations that are torch's own.
            with exact(grad.device.type):
                found = _plain_gradients(grad, chain, core, how)
        else:
            tensors = (each.contiguous() for each in (grad, chain, core))
            found = module_for("merge_kernel").split(*tensors, how)
        needs = ctx.needs_input_grad
        return (found[0] if needs[0] else None, found[1] if needs[1] else None, None)


def _plain_gradients(
    grad: Tensor, chain: Tensor, core: Tensor, how: Merging
) -> tuple[Tensor, Tensor]:
    (x, y), (a, b, c) = how.outer, how.inner
    if how.from_left:
        product = grad.reshape(-1, x, a, y, b, c).transpose(2, 3).reshape(-1, how.thin, how.long)
        d_chain, d_core = product @ core.flatten(2).mT, chain.flatten(1, 2).mT @ product
    else:
        product = grad.reshape(-1, a, b, x, c, y).transpose(3, 4).reshape(-1, how.long, how.thin)
        d_chain, d_core = core.flatten(1, 3).mT @ product, product @ chain.flatten(2).mT
    return d_chain.reshape(chain.shape), d_core.reshape(core.shape)
