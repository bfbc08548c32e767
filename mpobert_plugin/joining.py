"""How chains and central tensors become matrices: sizes and order, and the products themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from mpobert_plugin.halves import LONGEST_SUM, half_of
from mpobert_plugin.unfold import unfolded

# Central tensors, left and right chains, both parts of the adapters.
Pieces: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Joining:
    """Sizes and order of the products of chains with central tensors.

    Parameters
    ----------
    counts : tuple of int
        How many matrices use each central tensor; matrices are sorted by their central tensor.
    row_dims, col_dims : tuple of int
        Factors (left chain, central site, right chain) of the padded sizes.
    rows, cols : int
        True size of each matrix.
    left_first : bool
        Whether the central tensor meets the left chain before the right one; with one chain, which
        one there is.
    outputs : tuple of int
        Matrix of each output: one for each layer with adapters, else one for each matrix.
    alpha : float
        Factor of the adapter product.
    dtype : torch.dtype
        Element type of the matrices.
    half : bool
        Whether products are computed in float16 with sums in float32.

    Examples
    --------
    >>> how = Joining((2,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0, 1), 0.0, torch.float32)
    >>> how.one_each, how.in_order
    (False, True)
    """

    counts: tuple[int, ...]
    row_dims: tuple[int, int, int]
    col_dims: tuple[int, int, int]
    rows: int
    cols: int
    left_first: bool
    outputs: tuple[int, ...]
    alpha: float
    dtype: torch.dtype
    half: bool = False

    @property
    def one_each(self) -> bool:
        """Whether every matrix has a central tensor of its own."""
        return set(self.counts) == {1}

    @property
    def in_order(self) -> bool:
        """Whether output k is matrix k."""
        return self.outputs == tuple(range(sum(self.counts)))

    @property
    def outer(self) -> tuple[int, int]:
        """Number of rows and columns, multiplied, of the left and of the right chain."""
        return self.row_dims[0] * self.col_dims[0], self.row_dims[2] * self.col_dims[2]


def fits_half(how: Joining, bonds: tuple[int, int]) -> bool:
    """Return whether no sum over scaled operands can be too large for float16.

    Parameters
    ----------
    how : Joining
        Sizes.
    bonds : tuple of int
        Left and right bond of the central tensor.

    Returns
    -------
    bool
        False only for chains or bonds of thousands.

    Examples
    --------
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float16)
    >>> fits_half(how, (256, 256)), fits_half(how, (256, 9000))
    (True, False)
    """
    return max(*bonds, *how.outer) <= LONGEST_SUM


@dataclass(frozen=True)
class Operands:
    """What is multiplied, and what each operand was divided by; 1 without half precision."""

    central: Tensor
    left: Tensor | None
    right: Tensor | None
    scales: tuple[Tensor, Tensor, Tensor] | None


def operands(central: Tensor, left: Tensor | None, right: Tensor | None, how: Joining) -> Operands:
    """Return the operands in the element type that they are multiplied in.

    Parameters
    ----------
    central : Tensor
        (G, l, i, j, r).
    left, right : Tensor or None
        (u, m, l) and (u, r, p).
    how : Joining
        Sizes.

    Returns
    -------
    Operands
        The same tensors, or scaled ones in float16.
    """
    if not how.half:
        return Operands(central, left, right, None)
    # Divided by the length of its sums, so that the first product stays below 4.
    c, by = half_of(central, central.shape[1] if from_left(left, right, how) else central.shape[-1])
    a, left_by = (None, torch.ones_like(by)) if left is None else half_of(left)
    b, right_by = (None, torch.ones_like(by)) if right is None else half_of(right)
    return Operands(c, a, b, (by, left_by, right_by))


def from_left(left: Tensor | None, right: Tensor | None, how: Joining) -> bool:
    """Return whether the left chain is the one that meets the central tensor first."""
    return left is not None and (how.left_first or right is None)


def join(
    central: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    up: Tensor | None,
    down: Tensor | None,
    how: Joining,
) -> Tensor:
    """Return the matrices; where autograd records, it keeps the products.

    Parameters
    ----------
    central : Tensor
        (G, l, i, j, r).
    left, right : Tensor or None
        (u, m, l) and (u, r, p), one for each matrix; None at an end of the chain.
    up, down : Tensor or None
        (outputs, rows, rank) and (outputs, rank, cols) of the adapters.
    how : Joining
        Sizes and order.

    Returns
    -------
    Tensor
        (outputs, rows, cols).

    Examples
    --------
    >>> how = Joining((2,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0, 1), 0.0, torch.float32)
    >>> join(torch.ones(1, 1, 2, 2, 1), torch.ones(2, 1, 1), None, None, None, how).shape
    torch.Size([2, 2, 2])
    """
    given = operands(central, left, right, how)
    return joined(first(given, how), given, up, down, how)


def joined(
    product: Tensor, given: Operands, up: Tensor | None, down: Tensor | None, how: Joining
) -> Tensor:
    """Return the matrices of `join` from what it computes first.

    Parameters
    ----------
    product : Tensor
        What `first` returns.
    given : Operands
        What is multiplied.
    up, down, how
        As for `join`.

    Returns
    -------
    Tensor
        (outputs, rows, cols).
    """
    whole = second(product, given, how)
    if up is None or down is None:
        return _unfolded(whole, given, how.dtype, how).to(how.dtype)
    # Eight bits are too few to be rounded to twice.
    kind = torch.float32 if how.dtype == torch.bfloat16 else how.dtype
    matrices = _unfolded(whole, given, kind, how)
    if how.half:
        up, down = up.to(kind), down.to(kind)
    # A single matrix is expanded, not copied.
    single = len(matrices) == 1 and len(how.outputs) > 1
    per = matrices if how.in_order or single else torch.stack([matrices[k] for k in how.outputs])
    per = per.expand(len(how.outputs), -1, -1)
    return torch.baddbmm(per, up, down, alpha=how.alpha).to(how.dtype)


def first(given: Operands, how: Joining) -> Tensor:
    """Return each central tensor with the chain that it meets first; alone without chains."""
    central, left, right = given.central, given.left, given.right
    groups, bond, i, j, bond2 = central.shape
    if left is not None and from_left(left, right, how):
        middle = central.reshape(groups, bond, i * j * bond2)
        return left @ middle if how.one_each else _each(_below, middle, left, how)
    middle = central.reshape(groups, bond * i * j, bond2)
    if right is not None:
        return middle @ right if how.one_each else _each(_repeated, middle, right, how)
    return torch.cat([m.expand(n, -1, -1) for m, n in zip(middle, how.counts, strict=True)])


def _below(middle: Tensor, chains: Tensor) -> Tensor:
    # The chains of one group stand below one another, so that each group is one large product.
    return (chains.reshape(-1, chains.shape[2]) @ middle).view(*chains.shape[:2], -1)


def _repeated(middle: Tensor, chains: Tensor) -> Tensor:
    return middle.expand(len(chains), -1, -1) @ chains


def _each(
    work: Callable[[Tensor, Tensor], Tensor], middle: Tensor, chains: Tensor, how: Joining
) -> Tensor:
    parts = zip(middle.unbind(0), torch.split(chains, list(how.counts)), strict=True)
    made = [work(*part) for part in parts]
    return made[0] if len(made) == 1 else torch.cat(made)


def second(half: Tensor, given: Operands, how: Joining) -> Tensor:
    """Return the first products with the chain that is left."""
    central, left, right = given.central, given.left, given.right
    if from_left(left, right, how):
        return half if right is None else half.reshape(len(half), -1, central.shape[-1]) @ right
    return half if left is None else left @ half.reshape(len(half), central.shape[1], -1)


def _unfolded(whole: Tensor, given: Operands, kind: torch.dtype, how: Joining) -> Tensor:
    if given.scales is None:
        return unfolded(whole, None, whole.dtype, how)
    by, left_by, right_by = given.scales
    return unfolded(whole, by * left_by * right_by, kind, how)
