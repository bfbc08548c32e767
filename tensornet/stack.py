"""The value class of many matrices as MPOs with common bonds: stacked cores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, overload

from tensornet import interleave, retyped
from tensornet.accounting import Report, count
from tensornet.backend import Backend, backend_of, dtype_name, n_elements
from tensornet.certificate import Certificate
from tensornet.checks import integer
from tensornet.contract.chain import join_order, rounded
from tensornet.cores import seal
from tensornet.errors import ArrayTypeError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.network import MPO
from tensornet.typing import Array, Cores
from tensornet.value import versions


class MPOBatch:
    """Matrices of one shape as MPOs with common bonds, in stacked cores. Immutable.

    Made by :func:`tensornet.mpo` from a 3-D array. Indexing and iteration give single
    :class:`tensornet.MPO` values, which are views of the stacked cores.

    Examples
    --------
    >>> import tensornet as tn
    >>> batch = tn.mpo(np.ones((3, 6, 6)), 2)
    >>> batch.shape, batch.bond_dims, batch[0].shape
    ((3, 6, 6), (1, 1, 1), (6, 6))
    """

    __slots__ = ("_center", "_certificates", "_cores", "_layout", "_versions")

    _cores: Cores
    _layout: MatrixLayout
    _center: int | None
    _certificates: tuple[Certificate, ...] | None
    _versions: tuple[int, ...]

    @classmethod
    def _from(
        cls,
        cores: Cores,
        layout: MatrixLayout,
        center: int | None,
        certificates: tuple[Certificate, ...] | None,
    ) -> MPOBatch:
        self = cls.__new__(cls)
        fields = {"cores": seal(cores), "layout": layout, "center": center}
        fields |= {"certificates": certificates, "versions": versions(cores)}
        for name, value in fields.items():
            object.__setattr__(self, f"_{name}", value)
        return self

    def __init__(self) -> None:
        remedy = "Call tn.mpo with a 3-D array."
        raise ArrayTypeError(complaint("MPOBatch", "be made from matrices", "a call", remedy))

    @property
    def cores(self) -> Cores:
        """The stacked cores, each (batch, left bond, i, j, right bond)."""
        return self._cores

    @property
    def layout(self) -> MatrixLayout:
        """Dimensions of the sites, true and padded size of each matrix."""
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
    def shape(self) -> tuple[int, int, int]:
        """(batch, rows, cols)."""
        return (len(self), *self._layout.shape)

    @property
    def bond_dims(self) -> tuple[int, ...]:
        """The n + 1 bond dimensions that all matrices have; first and last are 1."""
        return (*(int(core.shape[1]) for core in self._cores), 1)

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self._cores)

    @property
    def dtype(self) -> Any:
        """Element type of the cores, as their library writes it."""
        return self._cores[0].dtype

    @property
    def n_params(self) -> int:
        """Number of stored elements, of all matrices together."""
        return sum(n_elements(core) for core in self._cores)

    @property
    def central(self) -> Array:
        """The stacked central core: the middle one, whatever the gauge."""
        return self._cores[len(self._cores) // 2]

    @property
    def auxiliary(self) -> Cores:
        """All stacked cores but the central one."""
        middle = len(self._cores) // 2
        return self._cores[:middle] + self._cores[middle + 1 :]

    @property
    def center(self) -> int | None:
        """The site where the norms sit; None in the symmetric gauge or after changes in place."""
        return self._center if self._untouched() else None

    @property
    def certificates(self) -> tuple[Certificate, ...] | None:
        """One certificate per matrix; None once torch cores were changed in place."""
        return self._certificates if self._untouched() else None

    @property
    def relative_error(self) -> float | None:
        """Error of all matrices together (relative, Frobenius), or None as ``certificates``."""
        if self.certificates is None:
            return None
        largest = max(c.norm for c in self.certificates) or 1.0
        errors = sum((c.norm / largest * c.relative_error) ** 2 for c in self.certificates)
        total = sum((c.norm / largest) ** 2 for c in self.certificates)
        return math.sqrt(errors / total) if total > 0.0 else 0.0

    def to_matrices(self) -> Array:
        """Return all matrices, shape (batch, rows, cols), in the cores' type and library.

        Raises
        ------
        RangeError
            If they do not fit half precision.
        """
        backend, dtype = backend_of(*self._cores), dtype_name(self._cores[0])
        wide = self._cores
        if dtype in ("float16", "bfloat16"):
            wide = tuple(backend.cast(core, "float32") for core in wide)
        made = contract_stack(wide, self._layout, backend)
        full = rounded("the matrices", made, self._cores, backend)
        # The only core of a single site is the matrix: give a copy, not a view of it.
        return backend.copy(full) if self.n_sites == 1 else full

    def astype(self, dtype: Any) -> MPOBatch:
        """Return the matrices in another element type; see :meth:`tensornet.MPO.astype`."""
        mine, name = dtype_name(self._cores[0]), retyped.wanted_type(dtype, self._cores[0])
        if name == mine:
            return self
        cores, known = retyped.converted(self._cores, name), self.certificates
        found = []
        for k in range(len(self)):
            one, own = (tuple(core[k] for core in both) for both in (cores, self._cores))
            certificate = None if known is None else known[k]
            found.append(retyped.certified(certificate, retyped.lost(one, own)))
        some = tuple(c for c in found if c is not None)
        center = retyped.kept(self.center, mine, name)
        return MPOBatch._from(cores, self._layout, center, some if len(some) == len(self) else None)

    def account(self) -> Report:
        """Return the counts of elements against the dense matrices."""
        return count([(self._cores, math.prod(self.shape))])

    def __len__(self) -> int:
        return int(self._cores[0].shape[0])

    @overload
    def __getitem__(self, index: int) -> MPO: ...

    @overload
    def __getitem__(self, index: slice) -> MPOBatch: ...

    def __getitem__(self, index: int | slice) -> MPO | MPOBatch:
        """Return one matrix as an MPO, or several as a batch; the cores are views.

        Raises
        ------
        ShapeError
            If there is no such matrix, or a slice leaves none.
        """
        certificates = self.certificates
        if isinstance(index, slice):
            # torch has no steps backwards, and ranges say the same for all libraries.
            chosen = list(range(len(self)))[index]
            if not chosen:
                raise ShapeError(complaint("batch[...]", "keep at least one matrix", index))
            some = None if certificates is None else tuple(certificates[k] for k in chosen)
            cores = tuple(core[chosen] for core in self._cores)
            return MPOBatch._from(cores, self._layout, self.center, some)
        k = integer("index", index, -len(self), ShapeError)
        if k >= len(self):
            raise ShapeError(complaint("index", f"be -{len(self)} to {len(self) - 1}", k))
        own = None if certificates is None else certificates[k]
        return MPO._from(tuple(core[k] for core in self._cores), self._layout, self.center, own)

    def __iter__(self) -> Iterator[MPO]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        batch, rows, cols = self.shape
        ratio = self.n_params / math.prod(self.shape)
        text = f"MPOBatch({batch} of {rows}x{cols}, bonds {list(self.bond_dims[1:-1])}, "
        text += f"{dtype_name(self._cores[0])}, {self.n_params:,} parameters ({ratio:.4g} of dense"
        text += ": larger)" if ratio > 1 else ")"
        if self.certificates is not None:
            worst = max(c.relative_error for c in self.certificates)
            text += f", largest relative error {worst:.3g}"
        return text + ")"

    def __array__(self, *_args: object, **_kwargs: object) -> Any:
        """Refuse: numpy would otherwise wrap the matrices in an array of objects."""
        remedy = "Call .to_matrices()."
        given = "an MPOBatch"
        raise ArrayTypeError(complaint("the array", "be an array of numbers", given, remedy))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MPOBatch is immutable; {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"MPOBatch is immutable; {name} cannot be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._cores, self._layout, self.center, self.certificates)
        return MPOBatch._from, state

    def _untouched(self) -> bool:
        if any(getattr(core, "requires_grad", False) for core in self._cores):
            return False
        return self._versions == versions(self._cores)


def fold_stack(matrices: Array, layout: MatrixLayout, backend: Backend) -> Array:
    """Return matrices (batch, rows, cols) as tensors (batch, i1*j1, ..., in*jn), zero-padded."""
    layout.check_formable()
    return interleave.fold_stack(matrices, layout.row_dims, layout.col_dims, backend)


def split_stack(cores: Cores, layout: MatrixLayout, backend: Backend) -> Cores:
    """Return cores (batch, left, i * j, right) as (batch, left, i, j, right)."""
    dims = zip(cores, layout.row_dims, layout.col_dims, strict=True)
    return tuple(
        backend.tl.reshape(core, (*(int(d) for d in core.shape[:2]), i, j, int(core.shape[3])))
        for core, i, j in dims
    )


def contract_stack(cores: Cores, layout: MatrixLayout, backend: Backend) -> Array:
    """Return the matrices (batch, rows, cols) of cores (batch, left, i, j, right)."""
    layout.check_formable()
    batch, n, tl = int(cores[0].shape[0]), layout.n_sites, backend.tl
    bonds = (*(int(core.shape[1]) for core in cores), 1)
    order = join_order(layout.site_dims, bonds)

    def joined(start: int, stop: int) -> Array:
        if stop - start == 1:
            return tl.reshape(cores[start], (batch, bonds[start], -1, bonds[stop]))
        middle = order.split[start, stop]
        left, right = joined(start, middle), joined(middle, stop)
        product = tl.reshape(left, (batch, -1, bonds[middle])) @ tl.reshape(
            right, (batch, bonds[middle], -1)
        )
        return tl.reshape(product, (batch, bonds[start], -1, bonds[stop]))

    full = interleave.unfold_stack(joined(0, n), layout.row_dims, layout.col_dims, backend)
    return full[:, : layout.rows, : layout.cols] if layout.padded else full
