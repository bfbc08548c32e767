"""Which chain suits a matrix: layouts, the plain SVD and the dense matrix, ranked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.bonds import chain_params
from tensornet.budget import fewest_params, least_error
from tensornet.candidates import Candidate, SearchResult, multiply_adds, ranked, table_warning
from tensornet.checks import array, describe, integer, tolerance
from tensornet.decompose import mpo
from tensornet.errors import FormatWarning, OptionError, ShapeError, complaint
from tensornet.fronts import SHARE, Front, front_of
from tensornet.gram import row_weights
from tensornet.layout import MAX_SITES, MatrixLayout
from tensornet.linalg import thin_svd
from tensornet.metric import whitened_errors
from tensornet.narrow import SAFE_SHARE
from tensornet.shapes import layouts_of
from tensornet.storage import scaled
from tensornet.truncation import tail_weights
from tensornet.typing import Array
from tensornet.unfoldings import Side, Unfoldings, sides_of, work
from tensornet.whitening import checked_metric

_Numbers = np.ndarray[Any, Any]
# Operations spent on the spectra of further layouts once each number of sites has had one.
_WORK = 3e10


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
    layouts = affordable(layouts_of(int(matrix.shape[0]), int(matrix.shape[1]), sites))
    search = _Search(W, matrix, backend, limit, batch, metric)
    fitting = [guess for guess in _guesses(search, layouts, top) if guess[3]]
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


class _Guess(NamedTuple):
    """What a layout promises, the smaller the better; no bonds where nothing fits."""

    first: float
    second: float
    layout: MatrixLayout
    bonds: tuple[int, ...]


def _guesses(search: _Search, layouts: Sequence[MatrixLayout], top: int) -> list[_Guess]:
    """Return the layouts that promise most, from spectra as right as their promises need."""
    kind, value = search.limit
    if kind == "rtol":
        return _ranked(search, layouts, value**2 / max(x.n_sites for x in layouts), top)
    found = _ranked(search, layouts, SAFE_SHARE, top)
    return found if found[0].first >= SAFE_SHARE else _ranked(search, layouts, SHARE, top)


def _ranked(
    search: _Search, layouts: Sequence[MatrixLayout], share: float, top: int
) -> list[_Guess]:
    unfoldings = Unfoldings(search.target, search.backend, share)
    unfoldings.prepare(layouts)
    fronts = [unfoldings.front(layout) for layout in layouts]
    roughly = [(_guess(front, search.limit, exact=False)[:2], k) for k, front in enumerate(fronts)]
    leading = [fronts[k] for _, k in sorted(roughly)[: 2 * top]]
    return sorted(
        (_guess(front, search.limit, exact=True) for front in leading), key=lambda g: g[:2]
    )


def affordable(layouts: Sequence[MatrixLayout]) -> list[MatrixLayout]:
    """Return the layouts whose spectra can be had in reasonable time.

    The first of each number of sites is among them in any case.

    Examples
    --------
    >>> layouts = layouts_of(4096, 4096, (2, 3))
    >>> len(layouts), len(affordable(layouts))
    (24, 10)
    """
    known: set[Side] = set()
    lengths: set[int] = set()
    room, chosen = _WORK, []
    for layout in layouts:
        new = set() if layout.padded else set(sides_of(layout)) - known
        cost = sum(work(side, layout.rows * layout.cols, known) for side in new)
        if layout.n_sites in lengths:
            if layout.padded or cost > room:
                continue
            room -= cost
        lengths.add(layout.n_sites)
        known |= new
        chosen.append(layout)
    return chosen


def _guess(front: Front, limit: tuple[str, float], *, exact: bool) -> _Guess:
    sites, tails, (kind, value) = front.layout.site_dims, front.tails, limit
    if kind == "rtol":
        bonds = fewest_params(sites, tails, value**2, front.caps, exact=exact)
        params = chain_params(sites, bonds)
        return _Guess(params, front.choice(bonds).share, front.layout, bonds)
    if value < sum(sites):
        return _Guess(math.inf, math.inf, front.layout, ())
    bonds = least_error(sites, tails, int(value), front.caps, exact=exact)
    return _Guess(front.choice(bonds).share, chain_params(sites, bonds), front.layout, bonds)


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
        self.metric, self.target = metric, matrix
        self.whitened: _Numbers | None = None
        if metric is not None:
            checked = checked_metric(metric, W, matrix, backend)
            self.whitened = whitened_errors(matrix, checked, backend)
            wide = scaled(backend.cast(matrix, work_dtype(dtype_name(matrix))), backend)[1]
            self.target = wide @ checked.root

    def dense(self) -> Candidate | None:
        """Return the matrix as it is, where the budget allows it."""
        size = self.rows * self.cols
        if self.limit[0] == "max_params" and size > self.limit[1]:
            return None
        return Candidate("dense", None, (), size, 0.0, size * self.batch)

    def low_rank(self) -> list[Candidate]:
        """Return the truncated SVD, and the whitened one where there is a metric."""
        if self._most_rank() == 0:
            return []
        forms = [("svd", self._svd_errors())]
        if self.whitened is not None:
            forms.insert(0, ("whitened svd", self.whitened))
        found = []
        for kind, errors in forms:
            rank = self._rank(errors)
            found.append(self._two_sites(kind, rank, float(errors[rank])))
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

    def _most_rank(self) -> int:
        """Return the largest rank that the budget allows; 0 where not even rank 1 fits."""
        most = min(self.rows, self.cols)
        if self.limit[0] == "max_params":
            return min(int(self.limit[1]) // (self.rows + self.cols), most)
        return most

    def _rank(self, errors: _Numbers) -> int:
        if self.limit[0] == "max_params":
            # The smallest that is as good.
            return max(int(np.argmax(errors <= errors[self._most_rank()])), 1)
        return max(int(np.argmax(errors <= self.limit[1])), 1)

    def _svd_errors(self) -> _Numbers:
        """Return the error of the plain SVD at each rank, in the metric if there is one."""
        if self.whitened is not None:
            return self._svd_errors_in_metric()
        layout = MatrixLayout((self.rows, 1), (1, self.cols))
        kind, value = self.limit
        share = min(SHARE, value**2 / 10) if kind == "rtol" else SHARE
        tail = front_of(self.matrix, layout, self.backend, share).tails[0]
        if kind != "rtol" and tail[self._most_rank()] < 10 * SHARE:
            tail = front_of(self.matrix, layout, self.backend, 0.0).tails[0]
        return np.asarray(np.sqrt(tail))

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
