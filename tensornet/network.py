"""The value classes: a matrix as an MPO, a tensor as a tensor train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from tensornet import chains
from tensornet.accounting import Report, count
from tensornet.cached import CachedMPO
from tensornet.certificate import Certificate, restored, without_padding
from tensornet.checks import describe
from tensornet.contract.apply import apply_cores, plan_cores
from tensornet.contract.chain import contract_matrix, contract_tensor
from tensornet.contract.matrix_plan import BreakEven, break_even
from tensornet.contract.plan import Plan
from tensornet.cores import (
    conjugate,
    contract_wide,
    copies,
    frobenius,
    operand,
    relative_distance,
    seal,
    split,
    transpose,
    validate,
)
from tensornet.errors import ArrayTypeError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.typing import Array, Bonds, Cores
from tensornet.value import Chain


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
    __array_ufunc__ = None  # so that ndarray @ MPO comes here instead of looping over elements

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
        """Return the matrix, shape (rows, cols), in the cores' element type and library."""
        return contract_matrix(self._cores, self._layout)

    def __matmul__(self, x: Array) -> Array:
        """Return W @ x for a vector (cols,) or a matrix (cols, batch)."""
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
        first, or another order). The operands are the cores and x in shape (*col_dims, batch);
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
        >>> m = MPO([np.ones((1, 8, 8, 2)), np.ones((2, 8, 8, 1))])
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

        Raises
        ------
        ShapeError
            If there is no such site.
        """
        moved = chains.moved(self._cores, self.center, site)
        certificate = restored(self.certificate, moved.storage_error)
        return MPO._from(split(moved.cores, self._layout), self._layout, int(site), certificate)

    def round(
        self, *, max_bond: int | None = None, bonds: Bonds = None, rtol: float | None = None
    ) -> MPO:
        """Return the network with smaller bonds; its certificate is relative to this network.

        Without limits only what is zero up to rounding is cut away. Limits as in
        :func:`tensornet.mpo`; the norm ends in the central core. What a padded network has in
        its padding is cut like the rest, but errors are relative to the matrix alone.

        Raises
        ------
        BondError, ToleranceError
            As in :func:`tensornet.mpo`.
        """
        limits, padded = (max_bond, bonds, rtol), self._layout.padded
        true_norm = self.norm() if padded else None
        cut = chains.rounded(self._cores, self.center, limits, true_norm)
        cores, certificate = split(cut.cores, self._layout), cut.certificate
        if padded:
            error = relative_distance(contract_wide(cores, self._layout), self._wide())
            certificate = without_padding(certificate, error)
        return MPO._from(cores, self._layout, cut.center, certificate)

    def norm(self) -> float:
        """Return the Frobenius norm: from the cores alone, unless they are padded.

        What the cores hold in the padding does not count, so the matrix is formed then.
        """
        return frobenius(self._wide()) if self._layout.padded else super().norm()

    def _wide(self) -> Array:
        return contract_wide(self._cores, self._layout)

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


class TensorTrain(Chain):
    """A tensor as a chain of cores (left bond, site, right bond).

    Made by :func:`tensornet.tt` from a tensor, or from existing cores.

    Parameters
    ----------
    cores : sequence of Array
        Core k has shape (left, d_k, right); otherwise as for :class:`MPO`.

    Raises
    ------
    ShapeError, BondError, ArrayTypeError, DTypeError, NonFiniteError
        As for :class:`MPO`.

    Examples
    --------
    >>> t = TensorTrain([np.ones((1, 2, 1)), np.ones((1, 3, 1))])
    >>> t.shape, t.to_tensor().sum().item()
    ((2, 3), 6.0)
    """

    __slots__ = ()

    def __init__(self, cores: Sequence[Array]) -> None:
        self._fill(validate(cores, n_dims=3), None, None)

    @classmethod
    def _from(
        cls, cores: Cores, center: int | None, certificate: Certificate | None
    ) -> TensorTrain:
        self = cls.__new__(cls)
        self._fill(seal(cores), center, certificate)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the tensor."""
        return tuple(int(core.shape[1]) for core in self._cores)

    def to_tensor(self) -> Array:
        """Return the tensor in the cores' element type and library."""
        return contract_tensor(self._cores)

    def move_center(self, site: int) -> TensorTrain:
        """Return the same tensor with the norm in core ``site``; see :meth:`MPO.move_center`."""
        moved = chains.moved(self._cores, self.center, site)
        certificate = restored(self.certificate, moved.storage_error)
        return TensorTrain._from(moved.cores, int(site), certificate)

    def round(
        self, *, max_bond: int | None = None, bonds: Bonds = None, rtol: float | None = None
    ) -> TensorTrain:
        """Return the train with smaller bonds; see :meth:`MPO.round`."""
        cut = chains.rounded(self._cores, self.center, (max_bond, bonds, rtol))
        return TensorTrain._from(cut.cores, cut.center, cut.certificate)

    def account(self) -> Report:
        """Return the counts of elements against the dense tensor."""
        return count([(self._cores, math.prod(self.shape))])

    def __repr__(self) -> str:
        sizes = "x".join(str(d) for d in self.shape)
        return f"TensorTrain({sizes}, {self._summary(math.prod(self.shape))})"


def account(network: MPO | TensorTrain | Sequence[MPO | TensorTrain]) -> Report:
    """Return exact counts for one network or several; a core held by several counts once.

    Parameters
    ----------
    network : MPO, TensorTrain or sequence of them
        What to count.

    Returns
    -------
    Report
        ``total``, ``unique``, ``trainable``, ``shared``, ``by_kind``, ``dense``, ``ratio``.

    Raises
    ------
    ShapeError
        If the sequence is empty.

    Examples
    --------
    >>> report = account(MPO([np.ones((1, 4, 4, 2)), np.ones((2, 4, 4, 1))]))
    >>> report.unique, report.dense, report.ratio
    (64, 256, 0.25)
    """
    several = isinstance(network, Sequence) and not isinstance(network, str)
    networks: list[object] = list(network) if several else [network]  # type: ignore[arg-type]
    if not networks:
        raise ShapeError(complaint("network", "hold at least one network", "an empty sequence"))
    return count([(n.cores, math.prod(n.shape)) for n in map(_chain, networks)])


def _chain(network: object) -> MPO | TensorTrain:
    if isinstance(network, MPO | TensorTrain):
        return network
    expected = "be an MPO, a TensorTrain or a sequence of them"
    raise ArrayTypeError(complaint("network", expected, describe(network)))
