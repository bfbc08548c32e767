"""Which chain suits a matrix: layouts, the plain SVD and the dense matrix, ranked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.budget import fewest_params, least_error
from tensornet.candidates import Candidate, SearchResult, multiply_adds, ranked, table_warning
from tensornet.checks import array, describe, integer, tolerance
from tensornet.decompose import mpo
from tensornet.errors import FormatWarning, OptionError, ShapeError, complaint
from tensornet.fronts import Front, chain_params, front_of
from tensornet.layout import MAX_SITES, MatrixLayout, matrix_layout
from tensornet.metric import whitened_errors
from tensornet.typing import Array
from tensornet.whitening import checked_metric


def search_shape(
    W: Array,
    *,
    max_params: int | None = None,
    rtol: float | None = None,
    n: int | Iterable[int] = (2, 3, 4, 5, 6),
    batch: int = 1,
    metric: Array | None = None,
    top: int = 3,
) -> SearchResult:
    """Return chains of many shapes for one matrix, the plain SVD and the dense matrix, ranked.

    Under ``max_params`` the least error comes first, under ``rtol`` the fewest parameters.
    Layouts are compared by what the spectra of their unfoldings promise; the ``top`` ones are
    decomposed, and their actual errors decide.

    Parameters
    ----------
    W : Array, shape (rows, cols)
        The matrix.
    max_params : int, optional
        Most parameters that may be stored.
    rtol : float, optional
        Largest relative error. One of the two must be given.
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
        If not exactly one limit is given, or nothing fits the budget.
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
    limit = _limit(matrix, max_params, rtol)
    sites, batch = _sites(n), integer("batch", batch, 1, ShapeError)
    top = integer("top", top, 1, OptionError)
    layouts = layouts_of(int(matrix.shape[0]), int(matrix.shape[1]), sites)
    guesses = sorted(
        (_guess(front_of(matrix, layout, backend), limit) for layout in layouts),
        key=lambda guess: guess[:2],
    )
    fitting = [guess for guess in guesses if guess[3]]
    search = _Search(W, matrix, backend, limit, batch, metric)
    found = [search.dense(), *search.low_rank()]
    found += [search.network(layout, bonds) for _, _, layout, bonds in fitting[:top]]
    rows = ranked((row for row in found if row is not None), by_params=rtol is not None)
    if not rows:
        smallest = min(sum(layout.site_dims) for layout in layouts)
        expected = f"be at least {smallest}, the parameters of the smallest chain"
        raise OptionError(complaint("max_params", expected, max_params))
    result = SearchResult(rows, (search.rows, search.cols), limit, batch, metric is not None)
    text = table_warning(result)
    if text:
        warnings.warn(text, FormatWarning, stacklevel=2)
    return result


def layouts_of(rows: int, cols: int, sites: Iterable[int]) -> list[MatrixLayout]:
    """Return balanced layouts with these numbers of sites, in several orders of the factors.

    Sizes without balanced factors are padded.

    Examples
    --------
    >>> [(layout.row_dims, layout.col_dims) for layout in layouts_of(8, 4, [2])]
    [((2, 4), (2, 2)), ((4, 2), (2, 2))]
    """
    found: dict[MatrixLayout, None] = {}
    for n in sites:
        base = matrix_layout(rows, cols, n)
        if base.padded:
            found[base] = None
            continue
        for row_dims, col_dims in zip(_orders(base.row_dims), _orders(base.col_dims), strict=True):
            found[MatrixLayout(row_dims, col_dims)] = None
    return list(found)


def _orders(dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    rising = tuple(sorted(dims))
    return [dims, rising, rising[::-1]]


def _limit(matrix: Array, max_params: object, rtol: object) -> tuple[str, float]:
    if (max_params is None) == (rtol is None):
        given = "neither" if rtol is None else "both"
        raise OptionError(complaint("limits", "be max_params or rtol, one of them", given))
    if rtol is None:
        return "max_params", integer("max_params", max_params, 1, OptionError)
    return "rtol", tolerance(rtol, dtype_name(matrix), 2)


def _sites(n: object) -> tuple[int, ...]:
    values = tuple(n) if isinstance(n, Iterable) and not isinstance(n, str) else (n,)
    sites = tuple(integer("n", value, 2, ShapeError) for value in values)
    if not sites or max(sites) > MAX_SITES:
        given = describe(n) if not sites else max(sites)
        raise ShapeError(complaint("n", f"hold numbers of sites from 2 to {MAX_SITES}", given))
    return sites


Guess = tuple[float, float, MatrixLayout, tuple[int, ...]]


def _guess(front: Front, limit: tuple[str, float]) -> Guess:
    """Return what a layout promises, the smaller the better; no bonds where nothing fits."""
    sites, (kind, value) = front.layout.site_dims, limit
    if kind == "rtol":
        bonds = fewest_params(sites, front.tails, value**2, front.caps)
        params = chain_params(sites, bonds)
        return params, front.choice(bonds).share, front.layout, bonds
    if value < sum(sites):
        return np.inf, np.inf, front.layout, ()
    bonds = least_error(sites, front.tails, int(value), front.caps)
    return front.choice(bonds).share, chain_params(sites, bonds), front.layout, bonds


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
        self.host = backend.numbers(backend.cast(matrix, work_dtype(dtype_name(matrix))))
        self.metric = metric
        self.errors: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
        self.H: Array = None
        if metric is not None:
            checked = checked_metric(metric, W, matrix, backend)
            self.errors = whitened_errors(matrix, checked, backend)
            given = array("metric", metric, 2)[1]
            self.H = backend.numbers(backend.cast(given, work_dtype(dtype_name(given))))

    def dense(self) -> Candidate | None:
        """Return the matrix as it is, where the budget allows it."""
        size = self.rows * self.cols
        if self.limit[0] == "max_params" and size > self.limit[1]:
            return None
        return Candidate("dense", None, (), size, 0.0, size * self.batch)

    def low_rank(self) -> list[Candidate]:
        """Return the truncated SVD, and the whitened one where there is a metric."""
        layout = MatrixLayout((self.rows, 1), (1, self.cols))
        plain = np.sqrt(front_of(self.matrix, layout, self.backend).tails[0])
        found = []
        rank = self._rank(plain if self.errors is None else self.errors)
        if rank and self.errors is None:
            found.append(self._two_sites("svd", layout, rank, float(plain[rank])))
        elif rank and self.errors is not None:
            found.append(self._two_sites("whitened svd", layout, rank, float(self.errors[rank])))
            error = self._metric_error(rank)
            if self.limit[0] == "max_params" or error <= self.limit[1]:
                found.append(self._two_sites("svd", layout, rank, error))
        return found

    def network(self, layout: MatrixLayout, bonds: tuple[int, ...]) -> Candidate | None:
        """Return an MPO, decomposed, with its actual error."""
        shape = layout.n_sites if layout.padded else (layout.row_dims, layout.col_dims)
        if self.limit[0] == "rtol":
            made = mpo(self.W, shape, metric=self.metric, rtol=self.limit[1])
        elif self.metric is None:
            made = mpo(self.W, shape, bonds=bonds)
        else:
            made = mpo(self.W, shape, metric=self.metric, max_params=int(self.limit[1]))
        error = 0.0 if made.certificate is None else made.certificate.relative_error
        costs = multiply_adds(made.layout, made.bond_dims, self.batch)
        inner = made.bond_dims[1:-1]
        return Candidate("mpo", made.layout, inner, made.n_params, error, costs)

    def _rank(self, errors: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
        """Return the rank that the limit asks for; 0 where not even rank 1 fits."""
        most = min(self.rows, self.cols)
        if self.limit[0] == "max_params":
            return min(int(self.limit[1]) // (self.rows + self.cols), most)
        return max(int(np.argmax(errors <= self.limit[1])), 1)

    def _two_sites(self, kind: str, layout: MatrixLayout, rank: int, error: float) -> Candidate:
        params = rank * (self.rows + self.cols)
        costs = multiply_adds(layout, (1, rank, 1), self.batch)
        return Candidate(kind, layout, (rank,), params, error, costs)

    def _metric_error(self, rank: int) -> float:
        u, s, vh = np.linalg.svd(self.host, full_matrices=False)
        rest = (u[:, rank:] * s[rank:]) @ vh[rank:]
        whole = np.real(np.sum((self.host @ self.H) * self.host.conj()))
        part = np.real(np.sum((rest @ self.H) * rest.conj()))
        return float(np.sqrt(max(part, 0.0) / whole)) if whole > 0.0 else 0.0
