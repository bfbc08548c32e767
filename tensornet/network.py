"""The value class of a matrix as an MPO, and what is done with networks of any kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from tensornet import algebra, chains, lookup, norms
from tensornet.accounting import Report, account, count
from tensornet.cached import CachedMPO
from tensornet.certificate import Certificate, restored, without_padding
from tensornet.contract.apply import apply_cores, plan_cores
from tensornet.contract.chain import contract_matrix
from tensornet.contract.matrix_plan import BreakEven, break_even
from tensornet.contract.plan import Plan
from tensornet.cores import (
    conjugate,
    copies,
    operand,
    seal,
    split,
    transpose,
    validate,
)
from tensornet.errors import ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.storage import in_double
from tensornet.train import TensorTrain
from tensornet.typing import Array, Bonds, Cores
from tensornet.value import Chain, inner

__all__ = ["MPO", "TensorTrain", "account", "inner"]


class MPO(Chain):
    """A matrix as a chain of cores (left bond, i, j, right bond): a matrix product operator.

    Made by :func:`tensornet.mpo` from a matrix, or from existing cores. numpy cores are copied
    and made read-only; torch cores are kept as they are, so that gradients reach them.

    Parameters
    ----------
    cores : sequence of Array
        Core k has shape (left, i_k, j_k, right); neighbours agree in their bond; the outer
        bonds are 1; all of one library, element type and device.
    rows, cols : int, optional
        True size of the matrix where the cores represent a zero-padded one.

    Raises
    ------
    ShapeError
        If a core is not 4-dimensional or the true size exceeds the cores' one.
    BondError
        If neighbouring bonds differ or an outer bond is not 1.
    ArrayTypeError, DTypeError, NonFiniteError
        If the cores are no arrays of one kind, or hold NaN or infinity.

    Examples
    --------
    >>> m = MPO([np.ones((1, 2, 2, 1)), np.eye(3)[None, :, :, None]])
    >>> m.shape, m.bond_dims, m.n_params
    ((6, 6), (1, 1, 1), 13)
    """

    __slots__ = ("_layout",)

    _layout: MatrixLayout

    def __init__(
        self, cores: Sequence[Array], rows: int | None = None, cols: int | None = None
    ) -> None:
        owned = validate(cores, n_dims=4)
        row_dims = tuple(int(core.shape[1]) for core in owned)
        col_dims = tuple(int(core.shape[2]) for core in owned)
        object.__setattr__(self, "_layout", MatrixLayout(row_dims, col_dims, rows, cols))
        self._fill(owned, None, None)

    @classmethod
    def _from(
        cls, cores: Cores, layout: MatrixLayout, center: int | None, certificate: Certificate | None
    ) -> MPO:
        self = cls.__new__(cls)
        object.__setattr__(self, "_layout", layout)
        self._fill(seal(cores), center, certificate)
        return self

    @property
    def layout(self) -> MatrixLayout:
        """Dimensions of the sites, true and padded size."""
        return self._layout

    @property
    def row_dims(self) -> tuple[int, ...]:
        """Row factors i_k."""
        return self._layout.row_dims

    @property
    def col_dims(self) -> tuple[int, ...]:
        """Column factors j_k."""
        return self._layout.col_dims

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of the matrix."""
        return self._layout.shape

    @property
    def T(self) -> MPO:
        """The transpose, with the same bonds."""
        cores = copies(transpose(self._cores))
        return MPO._from(cores, self._layout.transposed, self.center, self.certificate)

    @property
    def H(self) -> MPO:
        """The conjugate transpose, with the same bonds."""
        cores = copies(transpose(conjugate(self._cores)))
        return MPO._from(cores, self._layout.transposed, self.center, self.certificate)

    def to_matrix(self) -> Array:
        """Return the matrix, shape (rows, cols), in the cores' element type and library.

        Raises
        ------
        RangeError
            If it does not fit half precision, as the cores do. Products with vectors, rows and
            entries, which are not looked through, have infinities there.
        """
        return contract_matrix(self._cores, self._layout)

    def __matmul__(self, x: Any) -> Any:
        """Return W @ x for a vector (cols,), a matrix (cols, batch), or another MPO.

        The product with an MPO is an MPO whose bonds are the products of the bonds; where the
        inner dimension is padded, up to twice that, so that the padding does not count.

        Raises
        ------
        ShapeError
            If the sizes do not fit, or the column factors of the one MPO are not the row
            factors of the other.
        DTypeError, ArrayTypeError
            If the element types, libraries or devices differ.
        RangeError
            If a core of a product of MPOs leaves the range of its element type.
        """
        if isinstance(x, MPO):
            return self._product(x)
        x = operand("m @ x", x, self._cores[0], self._layout.cols, axis=0)
        if x.ndim == 1:
            return apply_cores(self._cores, self._layout, x[:, None])[:, 0]
        return apply_cores(self._cores, self._layout, x)

    def __rmatmul__(self, x: Array) -> Array:
        """Return x @ W for a vector (rows,) or a matrix (batch, rows)."""
        x = operand("x @ m", x, self._cores[0], self._layout.rows, axis=-1)
        cores, layout = transpose(self._cores), self._layout.transposed
        if x.ndim == 1:
            return apply_cores(cores, layout, x[:, None])[:, 0]
        return apply_cores(cores, layout, x.T).T

    def trace(self) -> Array:
        """Return the sum of the diagonal, a 0-d array; float32 for half precision.

        From the cores, in double precision, where row and column factors are the same;
        otherwise from the entries of the diagonal. Padding does not count. A matrix that is
        not square has the trace of its square part.
        """
        if self.row_dims == self.col_dims:
            return algebra.trace(self._cores, self._layout)
        return lookup.summed(self.diagonal())

    def diagonal(self) -> Array:
        """Return the diagonal, shape (min(rows, cols),), without forming the matrix."""
        return lookup.diagonal_of(self._cores, self._layout)

    def rows(self, ids: Any) -> Array:
        """Return rows of the matrix, shape ``(*ids.shape, cols)``: a look-up in an embedding.

        Parameters
        ----------
        ids : int or array of int
            Row numbers, of any shape, 0 to rows - 1: rows of the padding do not exist.

        Raises
        ------
        ShapeError
            If a number is negative or too large; it is named.
        DTypeError
            If they are no integers.

        Examples
        --------
        >>> m = MPO([np.arange(6.0).reshape(1, 3, 2, 1), np.ones((1, 1, 1, 1))])
        >>> m.rows([2, 0]).tolist()
        [[4.0, 5.0], [0.0, 1.0]]
        """
        numbers = lookup.indices("ids", ids, self._layout.rows)
        return lookup.rows_of(self._cores, self._layout, numbers)

    def __getitem__(self, place: Any) -> Array:
        """Return m[i, j], an entry, without forming the matrix; arrays of integers broadcast.

        Negative indices and slices are refused; whole rows are ``m.rows(ids)``.

        Raises
        ------
        ShapeError
            If there are not two indices, or one is out of range.
        DTypeError
            If an index is no integer.
        """
        if not isinstance(place, tuple) or len(place) != 2:
            given = f"{len(place)}" if isinstance(place, tuple) else "one"
            raise ShapeError(complaint("m[i, j]", "have two indices", given, "See m.rows(ids)."))
        i = lookup.indices("i in m[i, j]", place[0], self._layout.rows)
        j = lookup.indices("j in m[i, j]", place[1], self._layout.cols)
        return lookup.matrix_entries(self._cores, self._layout, *lookup.together("m[i, j]", [i, j]))

    def plan(
        self,
        batch: int = 1,
        *,
        memory_limit: int | None = None,
        minimize: Literal["time", "multiply_adds", "peak", "traffic"] = "time",
    ) -> Plan:
        """Return the order in which W @ x is contracted, for x with ``batch`` columns.

        ``m @ x`` follows the plan for "time": that of the orders below which is expected to be
        the fastest, from its products and copies. ``strategy`` is "dense" (W is built first),
        "left" or "right" (cores are applied one by one) or "factorized" (some cores are joined
        first, or another order). The operands are the cores and x in shape ``(*col_dims, batch)``;
        padding counts.

        Parameters
        ----------
        batch : int
            Number of columns of x.
        memory_limit : int, optional
            Most elements alive at any moment, as for :func:`tensornet.plan`.
        minimize : {"time", "multiply_adds", "peak", "traffic"}
            What is least; the counts are exact minima for up to seven sites.

        Raises
        ------
        ShapeError, OptionError
            If ``batch`` is no positive integer, or another option is none.
        MemoryLimitError
            If no order keeps the limit; the message has the smallest peak.

        Examples
        --------
        >>> m = MPO([np.ones((1, 16, 16, 32)), np.ones((32, 16, 16, 1))])
        >>> m.plan(1).strategy, m.plan(4096).strategy
        ('right', 'dense')
        """
        return plan_cores(self._cores, self._layout, batch, memory_limit, minimize)

    def break_even(self, batch: int = 1) -> BreakEven:
        """Return the largest uniform bond at which cores beat the matrix for a batch.

        See :func:`tensornet.break_even`.
        """
        return break_even(self._layout, batch)

    def cached(self) -> CachedMPO:
        """Return this network with its matrix kept, for products at the speed of the dense one."""
        return CachedMPO(self)

    def move_center(self, site: int) -> MPO:
        """Return the same matrix with the norm in core ``site``; other cores are isometric.

        Where the norm is beyond the range of that core, every core takes a part of it, as a
        power of two; ``center`` is then None.

        Raises
        ------
        ShapeError
            If there is no such site.
        RangeError
            If all cores together cannot hold the norm.
        """
        moved = chains.moved(self._cores, self.center, site)
        certificate = restored(self.certificate, moved.storage_error)
        return MPO._from(split(moved.cores, self._layout), self._layout, moved.center, certificate)

    def round(
        self,
        *,
        max_bond: int | None = None,
        bonds: Bonds = None,
        rtol: float | None = None,
        max_params: int | None = None,
        ratio: float | None = None,
    ) -> MPO:
        """Return the network with smaller bonds; its certificate is relative to this network.

        Without limits only what is zero up to rounding is cut away. Limits as in
        :func:`tensornet.mpo`; the norm ends in the central core, or, beyond its range, as
        powers of two in all cores (``center`` is then None). What a padded network has in
        its padding is cut like the rest, but errors are relative to the matrix alone.

        Raises
        ------
        BondError, ToleranceError, OptionError
            As in :func:`tensornet.mpo`.
        """
        limits = chains.Cutting(max_bond, bonds, rtol, max_params, ratio)
        padded = self._layout.padded
        true_norm = norms.size(self._cores, self.center, self._layout) if padded else None
        cut = chains.rounded(self._cores, self.center, limits, math.prod(self.shape), true_norm)
        cores, certificate = split(cut.cores, self._layout), cut.certificate
        if padded:
            certificate = without_padding(certificate, self._distance(cores))
        return MPO._from(cores, self._layout, cut.center, certificate)

    def _product(self, other: MPO) -> MPO:
        self._same_elements("m @ m2", other)
        mine, others = self._layout, other._layout
        if mine.cols != others.rows:
            expected = "have as many columns in the first as rows in the second"
            given = f"{mine.rows}x{mine.cols} and {others.rows}x{others.cols}"
            remedy = (
                "m @ m2.T and m.T @ m2 have sizes that fit." if mine.shape == others.shape else ""
            )
            raise ShapeError(complaint("m @ m2", expected, given, remedy))
        if mine.col_dims != others.row_dims:
            expected = "have the column factors of the first equal the row factors of the second"
            given = f"{mine.cols} as {mine.col_dims} and {others.rows} as {others.row_dims}"
            remedy = "Decompose one of the two with the factors of the other."
            raise ShapeError(complaint("m @ m2", expected, given, remedy))
        inner = algebra.masked(self._cores, mine, rows=False)
        layout = MatrixLayout(mine.row_dims, others.col_dims, mine.rows, others.cols)
        return MPO._from(algebra.multiply(inner, other._cores), layout, None, None)

    def _distance(self, cores: Cores) -> float:
        """Return how far other cores in the same layout are from this matrix, relatively."""
        wide, mine = in_double(cores)[1], in_double(self._cores)[1]
        both = algebra.add(wide, algebra.scale(mine, -1.0, 0))
        norm = norms.size(mine, None, self._layout)
        return norms.distance(norms.size(both, None, self._layout), norm)

    def _sites(self) -> str:
        rows, cols = self.shape
        return f"{rows}x{cols} in sites {self.row_dims}x{self.col_dims}"

    def _padding(self) -> MatrixLayout | None:
        return self._layout

    def _fresh(
        self, cores: Cores, center: int | None = None, certificate: Certificate | None = None
    ) -> MPO:
        return MPO._from(cores, self._layout, center, certificate)

    def account(self) -> Report:
        """Return the counts of elements against the dense matrix."""
        return count([(self._cores, math.prod(self.shape))])

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "layout": self._layout}

    def __repr__(self) -> str:
        rows, cols = self.shape
        sites = f"sites {self.row_dims}x{self.col_dims}".replace(" ", "").replace("sites", "sites ")
        tall, wide = self._layout.padded_shape
        padded = f" padded to {tall}x{wide}" if self._layout.padded else ""
        return f"MPO({rows}x{cols}{padded}, {sites}, {self._summary(rows * cols)})"
