"""How a matrix becomes a chain of sites: dimensions, zero padding, fold and unfold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensornet.backend import backend_of
from tensornet.bonds import structural_bonds
from tensornet.checks import integer, integers
from tensornet.errors import BondError, OptionError, ShapeError, complaint, counted
from tensornet.factorize import factorize, next_fair
from tensornet.interleave import fold, unfold
from tensornet.typing import Array, ShapeSpec

DEFAULT_SITES = 5
# Folding splits a matrix into two axes for each site, and arrays have at most 64 axes.
MAX_SITES = 32


@dataclass(frozen=True)
class MatrixLayout:
    """The split of a matrix's rows and columns over n sites, most significant factor first.

    Site k fuses row factor ``row_dims[k]`` and column factor ``col_dims[k]``. Where the true
    sizes ``rows`` and ``cols`` are smaller than the products, the matrix is padded with zeros
    at its end and cut off again on the way back.

    Parameters
    ----------
    row_dims, col_dims : sequence of int
        Factors of the (padded) numbers of rows and columns, one of each per site.
    rows, cols : int, optional
        True sizes; by default the products.

    Raises
    ------
    ShapeError
        If the numbers of factors differ, a factor is no positive integer, or a true size is
        larger than its product.

    Examples
    --------
    >>> layout = MatrixLayout((2, 3), (4, 5))
    >>> layout.shape, layout.site_dims, layout.structural_bonds()
    ((6, 20), (8, 15), (1, 8, 1))
    """

    row_dims: tuple[int, ...]
    col_dims: tuple[int, ...]
    rows: int = 0
    cols: int = 0

    def __init__(
        self,
        row_dims: Sequence[int],
        col_dims: Sequence[int],
        rows: int | None = None,
        cols: int | None = None,
    ) -> None:
        row_dims = integers("row_dims", row_dims, ShapeError)
        col_dims = integers("col_dims", col_dims, ShapeError)
        if len(row_dims) != len(col_dims) or not row_dims:
            given = f"{len(row_dims)} row factors and {len(col_dims)} column factors"
            raise ShapeError(complaint("shape", "have one row and one column factor a site", given))
        object.__setattr__(self, "row_dims", row_dims)
        object.__setattr__(self, "col_dims", col_dims)
        object.__setattr__(self, "rows", _true_size("rows", rows, row_dims))
        object.__setattr__(self, "cols", _true_size("cols", cols, col_dims))

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self.row_dims)

    @property
    def central(self) -> int:
        """Index of the central site, n // 2."""
        return self.n_sites // 2

    @property
    def site_dims(self) -> tuple[int, ...]:
        """Fused dimensions i_k * j_k of the sites."""
        return tuple(i * j for i, j in zip(self.row_dims, self.col_dims, strict=True))

    @property
    def shape(self) -> tuple[int, int]:
        """True (rows, cols) of the matrix."""
        return self.rows, self.cols

    @property
    def padded_shape(self) -> tuple[int, int]:
        """(rows, cols) with padding: the products of the factors."""
        return math.prod(self.row_dims), math.prod(self.col_dims)

    @property
    def padded(self) -> bool:
        """Whether the true matrix is smaller than the padded one."""
        return self.shape != self.padded_shape

    @property
    def transposed(self) -> MatrixLayout:
        """The layout of the transposed matrix."""
        return MatrixLayout(self.col_dims, self.row_dims, self.cols, self.rows)

    def structural_bonds(self, max_bond: int | None = None) -> tuple[int, ...]:
        """Return the n + 1 largest bonds any matrix can need, optionally capped.

        Examples
        --------
        >>> MatrixLayout((2, 2, 2, 567), (2, 2, 5, 5)).structural_bonds()
        (1, 4, 16, 160, 1)
        >>> MatrixLayout((2, 2, 2, 567), (2, 2, 5, 5)).structural_bonds(max_bond=10)
        (1, 4, 10, 10, 1)
        """
        cap = None if max_bond is None else integer("max_bond", max_bond, 1, BondError)
        return structural_bonds(self.site_dims, cap)

    def core_shapes(self, bond_dims: Sequence[int]) -> tuple[tuple[int, int, int, int], ...]:
        """Return the core shapes (left, i, j, right) for n + 1 bonds.

        Examples
        --------
        >>> MatrixLayout((2, 3), (4, 5)).core_shapes((1, 8, 1))
        ((1, 2, 4, 8), (8, 3, 5, 1))
        """
        bond_dims = integers("bond_dims", bond_dims, ShapeError)
        if len(bond_dims) != self.n_sites + 1:
            expected = f"have {self.n_sites + 1} entries for {counted(self.n_sites, 'site')}"
            raise ShapeError(complaint("bond_dims", expected, len(bond_dims)))
        return tuple(zip(bond_dims[:-1], self.row_dims, self.col_dims, bond_dims[1:], strict=True))

    def n_params(self, bond_dims: Sequence[int]) -> int:
        """Return the number of elements of all cores for n + 1 bonds.

        Examples
        --------
        >>> MatrixLayout((4, 4, 4), (4, 4, 4)).n_params((1, 16, 16, 1))
        4608
        """
        return sum(math.prod(shape) for shape in self.core_shapes(bond_dims))

    def fold(self, matrix: Array) -> Array:
        """Return the (rows, cols) matrix as a tensor (i1*j1, ..., in*jn), padded with zeros.

        Raises
        ------
        ShapeError
            If the matrix does not have the layout's true shape.
        """
        backend_of(matrix)
        self.check_formable()
        if tuple(matrix.shape) != self.shape:
            given = str(tuple(matrix.shape))
            raise ShapeError(complaint("matrix", f"have shape {self.shape}", given))
        return fold(matrix, self.row_dims, self.col_dims)

    def unfold(self, tensor: Array) -> Array:
        """Return the tensor (i1*j1, ..., in*jn) as a (rows, cols) matrix, padding cut off.

        Raises
        ------
        ShapeError
            If the tensor does not have the layout's site dimensions.
        """
        backend_of(tensor)
        self.check_formable()
        if tuple(tensor.shape) != self.site_dims:
            given = str(tuple(tensor.shape))
            raise ShapeError(complaint("tensor", f"have shape {self.site_dims}", given))
        full = unfold(tensor, self.row_dims, self.col_dims)
        return full[: self.rows, : self.cols] if self.padded else full

    def check_formable(self) -> None:
        """Raise ShapeError if there are too many sites to form the matrix."""
        if self.n_sites > MAX_SITES:
            expected = f"have at most {MAX_SITES} sites where the matrix is formed"
            raise ShapeError(complaint("shape", expected, self.n_sites))


def matrix_layout(
    rows: int, cols: int, shape: ShapeSpec = None, *, pad: bool = True
) -> MatrixLayout:
    """Return the layout for a matrix of the given size.

    Parameters
    ----------
    rows, cols : int
        Size of the matrix.
    shape : None, int, (row_dims, col_dims) or MatrixLayout
        ``None``: five sites with balanced factors; an integer: so many sites; a pair: the
        factors themselves, whose products must be the sizes; a layout, padded or not, whose
        true shape must be the size.
    pad : bool
        Whether a size without a fair factorization may be padded with zeros.

    Returns
    -------
    MatrixLayout
        Its true shape is (rows, cols).

    Raises
    ------
    ShapeError
        If factors do not multiply to the sizes, counts differ, or ``pad=False`` and a size
        has no fair factorization.

    Examples
    --------
    >>> matrix_layout(768, 3072).row_dims
    (3, 4, 4, 4, 4)
    >>> matrix_layout(103, 32, 3).padded_shape
    (105, 32)
    """
    rows, cols = integer("rows", rows, 1, ShapeError), integer("cols", cols, 1, ShapeError)
    if not isinstance(pad, bool):
        raise OptionError(complaint("pad", "be True or False", repr(pad)))
    if isinstance(shape, MatrixLayout):
        return _fitting(shape, rows, cols)
    if shape is None or not _is_pair(shape):
        n = DEFAULT_SITES if shape is None else integer("shape", shape, 1, ShapeError)
        if n > MAX_SITES:
            raise ShapeError(complaint("shape", f"have at most {MAX_SITES} sites", n))
        row_dims, col_dims = (_balanced("rows", rows, n, pad), _balanced("cols", cols, n, pad))
        return MatrixLayout(row_dims, col_dims, rows, cols)
    layout = MatrixLayout(*shape)  # type: ignore[misc]
    _must_multiply("row_dims", layout.row_dims, "rows", rows)
    _must_multiply("col_dims", layout.col_dims, "columns", cols)
    return layout


def _fitting(layout: MatrixLayout, rows: int, cols: int) -> MatrixLayout:
    if layout.shape != (rows, cols):
        expected = f"be a layout of a {rows} x {cols} matrix"
        raise ShapeError(complaint("shape", expected, f"one of {layout.shape}"))
    return layout


def _is_pair(shape: Any) -> bool:
    if not isinstance(shape, tuple | list | np.ndarray):
        return False
    if len(shape) != 2 or any(not isinstance(part, Sequence | np.ndarray) for part in shape):
        expected = "be a number of sites or a pair (row_dims, col_dims)"
        raise ShapeError(complaint("shape", expected, repr(shape)))
    return True


def _true_size(argument: str, size: int | None, dims: tuple[int, ...]) -> int:
    product = math.prod(dims)
    if size is None:
        return product
    size = integer(argument, size, 1, ShapeError)
    if size > product:
        expected = f"be at most {product}, the product of {dims}"
        raise ShapeError(complaint(argument, expected, size))
    return size


def _must_multiply(argument: str, dims: tuple[int, ...], what: str, size: int) -> None:
    product = math.prod(dims)
    if product == size:
        return
    expected = f"multiply to the number of {what} {size}"
    remedy = f"Use tn.factorize({size}, {len(dims)})"
    fair = next_fair(size, len(dims))
    if product > size:
        remedy += ", or a MatrixLayout with the true size to pad with zeros"
    elif fair != size:
        remedy = f"{size} has no {len(dims)} balanced factors; shape={len(dims)} pads it to {fair}"
    raise ShapeError(complaint(argument, expected, f"{dims} with product {product}", remedy + "."))


def _balanced(argument: str, size: int, n: int, pad: bool) -> tuple[int, ...]:
    fair = next_fair(size, n)
    if fair != size and not pad:
        remedy = f"Let it be padded with zeros to {fair} (pad=True), or give the factors."
        expected = f"have {n} balanced factors when pad=False"
        raise ShapeError(complaint(argument, expected, size, remedy))
    return factorize(fair, n)
