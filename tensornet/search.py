"""Which chain suits a matrix: layouts, the plain SVD and the dense matrix, ranked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.candidates import Candidate, SearchResult, multiply_adds, ranked, table_warning
from tensornet.checks import array, integer, storage_error, tolerance
from tensornet.decompose import mpo
from tensornet.errors import FormatWarning, OptionError, ShapeError, complaint
from tensornet.fitting import below_ratio, ratio_budget
from tensornet.fronts import SHARE
from tensornet.gram import row_weights
from tensornet.layout import MAX_SITES, MatrixLayout
from tensornet.limits import noise
from tensornet.linalg import thin_svd
from tensornet.metric import decompose_metric, whitened_errors
from tensornet.prospects import Prospects, affordable
from tensornet.shapes import layouts_of
from tensornet.single import Made, Request
from tensornet.storage import scaled
from tensornet.truncation import tail_weights
from tensornet.typing import Array
from tensornet.unfoldings import Unfoldings, sides_of
from tensornet.whitening import Metric, checked_metric

_Numbers = np.ndarray[Any, Any]


def search_shape(
    W: Array,
    *,
    max_params: int | None = None,
    ratio: float | None = None,
    rtol: float | None = None,
    n: int | Iterable[int] = (2, 3, 4, 5, 6),
    batch: int = 1,
    metric: Array | None = None,
    top: int = 3,
) -> SearchResult:
    """Return chains of many shapes for one matrix, the plain SVD and the dense matrix, ranked.

    Under ``max_params`` or ``ratio`` the least error comes first, under ``rtol`` the fewest
    parameters; errors that are rounding of the element type and the solver count as none.
    Layouts are compared by what the spectra of their unfoldings promise; the ``top`` ones are
    decomposed, and their actual errors decide.

    Parameters
    ----------
    W : Array, shape (rows, cols)
        The matrix.
    max_params : int, optional
        Most parameters that may be stored.
    ratio : float, optional
        The same as a share of the elements of the matrix, in (0, 1].
    rtol : float, optional
        Largest relative error. One of the three must be given.
    n : int or iterable of int
        Numbers of sites to try.
    batch : int
        Number of vectors for which multiply-adds are counted.
    metric : Array, shape (cols, cols), optional
        Positive semidefinite metric of the inputs, as in :func:`mpo`: errors are then those in
        the metric, and the whitened SVD is a candidate too.
    top : int
        How many layouts are decomposed.

    Returns
    -------
    SearchResult
        The ranked candidates; prints as a table.

    Warns
    -----
    FormatWarning
        If an SVD or the dense matrix is better than every MPO tried.

    Raises
    ------
    OptionError
        If not exactly one limit is given, one is out of range, or nothing fits the budget.
    ToleranceError, ShapeError, NonFiniteError, ArrayTypeError, DTypeError
        As in :func:`mpo`.

    Examples
    --------
    >>> i = np.arange(8.0)
    >>> found = search_shape(np.kron(np.cos(np.outer(i, i)), np.sin(np.outer(i, i))), rtol=1e-3)
    >>> found.best.kind, found.best.bonds, found.best.n_params
    ('mpo', (1,), 128)
    """
    backend, matrix = array("W", W, 2)
    limit = _limit(matrix, max_params, ratio, rtol)
    sites, batch = _sites(n), integer("batch", batch, 1, ShapeError)
    top = integer("top", top, 1, OptionError)
    layouts = affordable(layouts_of(int(matrix.shape[0]), int(matrix.shape[1]), sites))
    search = _Search(W, matrix, backend, limit, batch, metric)
    prospects = Prospects(search.target, backend, limit, layouts, top)
    fitting = [prospect for prospect in prospects.found if prospect.bonds]
    found = [search.dense(), *search.low_rank(prospects.unfoldings)]
    found += [search.network(prospect.layout, prospect.bonds) for prospect in fitting[:top]]
    exact = _rounding(matrix, max(layout.n_sites for layout in layouts))
    forms = (row for row in found if row is not None)
    rows = ranked(forms, by_params=rtol is not None, noise=exact)
    if not rows:
        smallest = min(sum(layout.site_dims) for layout in layouts)
        if ratio is not None:
            raise below_ratio(ratio, smallest, search.rows * search.cols)
        expected = f"be at least {smallest}, the parameters of the smallest chain"
        raise OptionError(complaint("max_params", expected, max_params))
    result = SearchResult(rows, (search.rows, search.cols), limit, batch, metric is not None, exact)
    text = table_warning(result)
    if text:
        warnings.warn(text, FormatWarning, stacklevel=2)
    return result


def _limit(matrix: Array, max_params: object, ratio: object, rtol: object) -> tuple[str, float]:
    limits = {"max_params": max_params, "ratio": ratio, "rtol": rtol}
    given = [name for name, value in limits.items() if value is not None]
    if len(given) != 1:
        expected, text = "be one of max_params, ratio and rtol", " and ".join(given) or "none"
        raise OptionError(complaint("limits", expected, text))
    if ratio is not None:
        return "max_params", ratio_budget(ratio, math.prod(int(d) for d in matrix.shape))
    if rtol is None:
        return "max_params", integer("max_params", max_params, 1, OptionError)
    return "rtol", tolerance(rtol, dtype_name(matrix), 2)


def _sites(n: object) -> tuple[int, ...]:
    values = tuple(n) if isinstance(n, Iterable) and not isinstance(n, str) else (n,)
    sites = tuple(integer("n", value, 2, ShapeError) for value in values)
    if not sites or max(sites) > MAX_SITES:
        given = "none" if not sites else max(sites)
        raise ShapeError(complaint("n", f"hold numbers of sites from 2 to {MAX_SITES}", given))
    return sites


def _rounding(matrix: Array, n_sites: int) -> float:
    """Return the relative error below which a form is as good as the matrix itself."""
    dtype, side = dtype_name(matrix), math.isqrt(int(matrix.shape[0]) * int(matrix.shape[1]))
    return max(noise(dtype, side), storage_error(dtype, n_sites))


class _Search:
    """What all candidates for one matrix have in common."""

    def __init__(
        self,
        W: Array,
        matrix: Array,
        backend: Backend,
        limit: tuple[str, float],
        batch: int,
        metric: Array | None,
    ) -> None:
        self.W, self.matrix, self.backend = W, matrix, backend
        self.limit, self.batch = limit, batch
        self.rows, self.cols = (int(d) for d in matrix.shape)
        self.target = matrix
        self.metric: Metric | None = None
        self.whitened: _Numbers | None = None
        if metric is not None:
            self.metric = checked_metric(metric, W, matrix, backend)
            self.whitened = whitened_errors(matrix, self.metric, backend)
            wide = scaled(backend.cast(matrix, work_dtype(dtype_name(matrix))), backend)[1]
            self.target = wide @ self.metric.root

    def dense(self) -> Candidate | None:
        """Return the matrix as it is, where the budget allows it."""
        size = self.rows * self.cols
        if self.limit[0] == "max_params" and size > self.limit[1]:
            return None
        return Candidate("dense", None, (), size, 0.0, size * self.batch)

    def low_rank(self, unfoldings: Unfoldings) -> list[Candidate]:
        """Return the truncated SVD, and the whitened one where there is a metric.

        ``unfoldings`` are spectra that the search has found.
        """
        if self._most_rank() == 0:
            return []
        if self.whitened is None:
            return [self._plain_svd(unfoldings)]
        found = []
        for kind, errors in (
            ("whitened svd", self.whitened),
            ("svd", self._svd_errors_in_metric()),
        ):
            rank = self._rank(errors)
            found.append(self._two_sites(kind, rank, float(errors[rank])))
        return found

    def network(self, layout: MatrixLayout, bonds: tuple[int, ...]) -> Candidate:
        """Return an MPO, decomposed, with its actual error."""
        if self.metric is not None:
            made = self._in_metric(layout, self.metric)
            cores, error = made.cores, made.certificate.relative_error
            return self._chain(layout, [int(core.shape[2]) for core in cores[:-1]], error)
        shape = layout.n_sites if layout.padded else (layout.row_dims, layout.col_dims)
        limits: dict[str, Any] = {"rtol": self.limit[1]} if self.limit[0] == "rtol" else {}
        found = mpo(self.W, shape, **(limits or {"bonds": bonds}))
        error = 0.0 if found.certificate is None else found.certificate.relative_error
        return self._chain(found.layout, found.bond_dims[1:-1], error)

    def _chain(self, layout: MatrixLayout, inner: Sequence[int], error: float) -> Candidate:
        bonds = (1, *inner, 1)
        costs = multiply_adds(layout, bonds, self.batch)
        return Candidate("mpo", layout, bonds[1:-1], layout.n_params(bonds), error, costs)

    def _in_metric(self, layout: MatrixLayout, metric: Metric) -> Made:
        kind, value = self.limit
        rtol, max_params = (value, None) if kind == "rtol" else (None, int(value))
        request = Request(None, None, rtol, "central", max_params)
        return decompose_metric(self.matrix, metric, layout, request, self.backend)

    def _most_rank(self) -> int:
        """Return the largest rank that the budget allows; 0 where not even rank 1 fits."""
        most = min(self.rows, self.cols)
        if self.limit[0] == "max_params":
            return min(int(self.limit[1]) // (self.rows + self.cols), most)
        return most

    def _rank(self, errors: _Numbers) -> int:
        within = self.limit[1]
        if self.limit[0] == "max_params":
            # The smallest that is as good, or as good as the matrix.
            least = noise(dtype_name(self.matrix), min(self.rows, self.cols))
            within = max(float(errors[self._most_rank()]), least)
        return max(int(np.argmax(errors <= within)), 1)

    def _plain_svd(self, unfoldings: Unfoldings) -> Candidate:
        layout = MatrixLayout((self.rows, 1), (1, self.cols))
        tail, trusted = self._tail(layout, unfoldings)
        rank = self._rank(np.sqrt(tail))
        if trusted <= tail[rank] or rank == min(self.rows, self.cols):
            return self._two_sites("svd", rank, math.sqrt(tail[rank]))
        # So small an error is said by the decomposition itself.
        made = mpo(self.W, (layout.row_dims, layout.col_dims), bonds=(rank,))
        error = 0.0 if made.certificate is None else made.certificate.relative_error
        return self._two_sites("svd", made.bond_dims[1], error)

    def _tail(self, layout: MatrixLayout, unfoldings: Unfoldings) -> tuple[_Numbers, float]:
        """Return the shares that the plain SVD discards at each rank, and which can be trusted."""
        if not self.matrix.any():
            return np.zeros(min(self.rows, self.cols) + 1), SHARE
        if unfoldings.single:
            unfoldings = Unfoldings(self.matrix, self.backend, SHARE)
        (side,), (kind, value) = sides_of(layout), self.limit
        tail = unfoldings.tail(side, value**2 / 10 if kind == "rtol" else SHARE)
        if kind != "rtol" and tail[self._most_rank()] < 10 * SHARE:
            tail = unfoldings.tail(side, 0.0)
        return tail, unfoldings.trusted

    def _svd_errors_in_metric(self) -> _Numbers:
        """Return |(W - M) H^(1/2)| / |W H^(1/2)| for M of each rank.

        What the singular vector u_i leaves out is u_i u_i^H W, and these parts are orthogonal.
        """
        backend = self.backend
        wide = scaled(backend.cast(self.matrix, work_dtype(dtype_name(self.matrix))), backend)[1]
        vectors = thin_svd(wide, backend)[0]
        tails = tail_weights(row_weights(backend.adjoint(vectors) @ self.target, backend))
        return np.asarray(np.sqrt(tails / tails[0])) if tails[0] > 0.0 else tails

    def _two_sites(self, kind: str, rank: int, error: float) -> Candidate:
        layout = MatrixLayout((self.rows, 1), (1, self.cols))
        params = rank * (self.rows + self.cols)
        costs = multiply_adds(layout, (1, rank, 1), self.batch)
        return Candidate(kind, layout, (rank,), params, error, costs)
