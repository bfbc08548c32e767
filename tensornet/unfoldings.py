"""The spectra of many layouts of one matrix, each unfolding looked at once.

Where a chain is cut, the first factors of rows and columns go to the left. Of all that tells
layouts apart, the spectrum there depends on the products of these factors alone, so layouts share
most of their spectra; and the Gram matrix of a smaller side is a partial trace of a larger one's,
as its triangular factor is one of a larger one's, regrouped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name, n_elements, work_dtype
from tensornet.eigen import spectrum
from tensornet.fitting import NOISY_SHARE
from tensornet.fronts import SHARE, Front, cleaned, front_of
from tensornet.gram import gram_matrix
from tensornet.layout import MatrixLayout
from tensornet.limits import make_limits
from tensornet.linalg import low_rank_root, singular_values
from tensornet.narrow import NARROW, SAFE_SHARE
from tensornet.storage import carried
from tensornet.truncation import still_right, tail_weights
from tensornet.typing import Array

_Numbers = np.ndarray[Any, Any]
# Operations of an eigenvalue problem of side m over m^3, as slow as they are beside products.
_EIGEN = 10
# Those of singular values, of m x m numbers.
_SINGULAR = 20


class Side(NamedTuple):
    """The smaller side of an unfolding: left or right, and its factors of rows and columns."""

    left: bool
    rows: int
    cols: int

    @property
    def size(self) -> int:
        """Its dimension."""
        return self.rows * self.cols

    def holds(self, other: Side) -> bool:
        """Return whether the other's Gram matrix is a partial trace of this one's."""
        inside = self.rows % other.rows == 0 and self.cols % other.cols == 0
        return self.left == other.left and inside


def sides_of(layout: MatrixLayout) -> tuple[Side, ...]:
    """Return the smaller side at each inner bond of a layout without padding.

    Examples
    --------
    >>> sides_of(MatrixLayout((2, 2, 2), (2, 3, 2)))[1]
    Side(left=False, rows=2, cols=2)
    """
    sides = []
    for k in range(1, layout.n_sites):
        rows, cols = math.prod(layout.row_dims[:k]), math.prod(layout.col_dims[:k])
        other = (layout.rows // rows, layout.cols // cols)
        left = rows * cols <= math.prod(other)
        sides.append(Side(left, rows, cols) if left else Side(left, *other))
    return tuple(sides)


class Unfoldings:
    """Spectra of a matrix (rows, cols) in any layout, kept for further layouts.

    Parameters
    ----------
    matrix : Array, shape (rows, cols)
        Finite.
    backend : Backend
        Operations for the matrix.
    share : float
        Least share of the squared norm for which the spectra must be right.

    Attributes
    ----------
    single : bool
        Whether the Gram matrices are in single precision.
    trusted : float
        Least share that Gram matrices in double precision are right for.
    """

    def __init__(self, matrix: Array, backend: Backend, share: float = SHARE) -> None:
        scale, self._near_one, self._total = carried(matrix, backend)
        self._matrix, self._backend, self._share = matrix, backend, share
        self._norm = scale * math.sqrt(self._total)
        narrow = dtype_name(self._near_one) in NARROW
        self.single = share >= SAFE_SHARE and narrow
        self.trusted = NOISY_SHARE if narrow else SHARE
        self._grams: dict[Side, _Numbers] = {}
        self._tails: dict[Side, _Numbers] = {}
        self._roots: dict[Side, _Numbers] = {}
        self._exact: dict[Side, _Numbers] = {}

    def prepare(self, layouts: Iterable[MatrixLayout], share: float = SHARE) -> None:
        """Find the spectra of layouts, those of large sides first: they serve the others."""
        sides = {side for layout in layouts if self._shared(layout) for side in sides_of(layout)}
        for side in sorted(sides, key=lambda side: (-side.size, side)):
            self.tail(side, share)

    def front(self, layout: MatrixLayout, share: float | None = None) -> Front:
        """Return the front of the matrix in a layout, right down to a share of the squared norm.

        ``share`` is that of the constructor if left out.
        """
        share = self._share if share is None else share
        if not self._shared(layout):
            return front_of(self._matrix, layout, self._backend, share)
        dtype, bonds = dtype_name(self._matrix), layout.structural_bonds()
        noise = make_limits(bonds, None, dtype, self._total, forced=False).noise / self._total
        self.prepare([layout], share)
        tails = (self.tail(side, share) for side in sides_of(layout))
        return Front(layout, self._norm, tuple(cleaned(tail, noise, share) for tail in tails))

    def tail(self, side: Side, share: float) -> _Numbers:
        """Return the tail of a side as shares, noise and all, right down to a share.

        A singular value decomposition is made only where a Gram matrix may say too little.
        """
        found = self._tail(side)
        if share >= self.trusted or still_right(found, self.trusted):
            return found
        if side not in self._exact:
            values = singular_values(self._root(side))
            whole = np.zeros(side.size)
            whole[: len(values)] = values
            self._exact[side] = tail_weights(whole**2) / self._total
        return self._exact[side]

    def further_work(self, layout: MatrixLayout) -> float:
        """Return about how many operations the exact front of a layout still costs."""
        elements = layout.rows * layout.cols
        if not self._shared(layout):
            return sum(_exact_work(bond, elements) for bond in layout.structural_bonds()[1:-1])
        new = {
            side
            for side in sides_of(layout)
            if side not in self._exact and not still_right(self._tail(side), self.trusted)
        }
        held = (
            min([elements, *(r.size for k, r in self._roots.items() if k.holds(s))]) for s in new
        )
        return sum(_exact_work(side.size, size) for side, size in zip(new, held, strict=True))

    def _shared(self, layout: MatrixLayout) -> bool:
        return self._total > 0.0 and not layout.padded

    def _tail(self, side: Side) -> _Numbers:
        if side not in self._tails:
            gram = self._gram(side)
            self._tails[side] = tail_weights(spectrum(gram, backend_of(gram))) / self._total
        return self._tails[side]

    def _gram(self, side: Side) -> _Numbers:
        larger = [known for known in self._grams if known.holds(side)]
        if larger:
            nearest = min(larger, key=lambda known: known.size)
            found = _traced(self._grams[nearest], nearest, side)
        else:
            found = self._product(side)
        self._grams[side] = found
        return found

    def _root(self, side: Side) -> _Numbers:
        """Return L with L L^H the Gram matrix of a side, right to all digits of double precision.

        It comes from that of a larger side, if that has fewer elements than the matrix.
        """
        flat = self._flat(side)
        larger = [known for known in self._roots if known.holds(side)]
        nearest = min(larger, key=lambda known: self._roots[known].size, default=None)
        if nearest is not None and self._roots[nearest].size < n_elements(flat):
            source = _regrouped(self._roots[nearest], nearest, side)
        else:
            wide = self._backend.cast(flat, work_dtype(dtype_name(flat)))
            source = self._backend.numbers(wide)
        rank = int((self._tail(side)[:-1] > self.trusted).sum())
        self._roots[side] = found = low_rank_root(source, rank)
        return found

    def _product(self, side: Side) -> _Numbers:
        flat = self._flat(side)
        if self.single:
            return self._backend.numbers(flat @ self._backend.adjoint(flat))
        return self._backend.numbers(gram_matrix(flat, self._backend))

    def _flat(self, side: Side) -> Array:
        """Return the unfolding whose rows are a side."""
        tl, (rows, cols) = self._backend.tl, (int(d) for d in self._near_one.shape)
        i = side.rows if side.left else rows // side.rows
        j = side.cols if side.left else cols // side.cols
        parts = tl.reshape(self._near_one, (i, rows // i, j, cols // j))
        order = (0, 2, 1, 3) if side.left else (1, 3, 0, 2)
        return tl.reshape(tl.transpose(parts, order), (side.size, -1))


def work(side: Side, elements: int, known: Iterable[Side]) -> float:
    """Return about how many operations a spectrum costs beside those already ``known``.

    Examples
    --------
    >>> work(Side(True, 2, 2), 64, []), work(Side(True, 2, 2), 64, [Side(True, 4, 2)])
    (1152.0, 640.0)
    """
    product = 0 if any(k.holds(side) for k in known) else 2 * side.size * elements
    return float(product + _EIGEN * side.size**3)


def _exact_work(size: int, elements: int) -> float:
    return float(2 * size * elements + _SINGULAR * size**3)


def _traced(gram: _Numbers, known: Side, side: Side) -> _Numbers:
    a, b = known.rows // side.rows, known.cols // side.cols
    i, j = side.rows, side.cols
    if side.left:
        found = np.einsum("iajbkalb->ijkl", gram.reshape((i, a, j, b) * 2))
    else:
        found = np.einsum("aibjakbl->ijkl", gram.reshape((a, i, b, j) * 2))
    return np.ascontiguousarray(found.reshape(side.size, side.size))


def _regrouped(root: _Numbers, known: Side, side: Side) -> _Numbers:
    """Return a factor of the Gram matrix of a smaller side, given that of a larger one."""
    a, b = known.rows // side.rows, known.cols // side.cols
    i, j = side.rows, side.cols
    if side.left:
        parts = root.reshape(i, a, j, b, -1).transpose(0, 2, 1, 3, 4)
    else:
        parts = root.reshape(a, i, b, j, -1).transpose(1, 3, 0, 2, 4)
    return parts.reshape(side.size, -1)
