"""Orthonormal bases of the small sides of many wide matrices at once.

All matrices of a stack keep as many vectors as the most demanding one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.eigen import say_failed
from tensornet.linalg import side_basis, unit_phase
from tensornet.truncation import Truncation, tail_weights
from tensornet.typing import Array

_EPS = 2.0**-52
# As for a single matrix: see tensornet.linalg.
_GRAM_MARGIN = 1e3
_SIGN_SHARE = 0.618


class StackBasis(NamedTuple):
    """The kept bases of one side of every matrix, and what was found on the way.

    ``vectors`` is (batch, m, kept), or None for identities: nothing is cut. ``discarded`` holds
    a squared weight per matrix; ``weights`` all m squared singular values per matrix, on the
    host and descending, or None where no spectrum was needed.
    """

    vectors: Array | None
    kept: int
    discarded: list[float]
    weights: list[np.ndarray[Any, Any] | None]


def stack_basis(
    a: Array, rules: Sequence[Truncation], backend: Backend, *, lossless: bool, narrow: bool
) -> StackBasis:
    """Return the leading left bases of a stack, cut where the most demanding matrix says.

    As :func:`tensornet.linalg.side_basis`, with stacked products, Cholesky factorizations and
    eigendecompositions. A matrix of full rank settles the matter for all: nothing is cut.

    Parameters
    ----------
    a : Array, shape (batch, m, n)
        In double precision (real or complex).
    rules : sequence of Truncation
        One per matrix, with one cap.
    backend : Backend
        Operations for the array's library.
    lossless : bool
        Whether the rules discard nothing but rounding noise.
    narrow : bool
        Whether the data came in single or half precision. Where the spectrum of the Gram
        matrix ends in rounding noise, its vectors are good enough for such data, and their
        weights are measured again; double precision goes through QR and SVD one by one.
    """
    batch, m, n = (int(d) for d in a.shape)
    cap = rules[0].cap
    if rules[0].forced and cap >= m:
        return _untouched(batch, m)
    if m > n:
        return _one_by_one(a, rules, backend, lossless=lossless)
    gram = a @ backend.adjoint(a)
    totals = _traces(gram, backend)
    if lossless and cap >= m and _some_full_rank(gram, totals, rules, backend):
        return _untouched(batch, m)
    try:
        values, vectors = backend.tl.eigh(gram)
    except backend.no_convergence as error:
        say_failed(f"the eigensolver on {backend.place(gram)}", gram, error)
        return _one_by_one(a, rules, backend, lossless=lossless)
    weights = np.maximum(backend.numbers(values)[:, ::-1], 0.0)
    vectors = backend.tl.flip(vectors, axis=2)
    if _drowned(weights, totals, rules):
        if not narrow:
            return _one_by_one(a, rules, backend, lossless=lossless)
        weights = _measured(vectors, a, backend)
    return _cut(vectors, weights, rules, backend)


def stack_phases(vectors: Array, backend: Backend) -> Array:
    """Return the factors (batch, 1, columns) that fix the signs of columns as for one matrix."""
    # Arithmetic on the device instead of a gather: only one number per column reaches the host.
    m = int(vectors.shape[1])
    size = backend.tl.abs(vectors)
    large = size >= _SIGN_SHARE * backend.tl.max(size, axis=1)[:, None, :]
    ramp = backend.like(np.arange(m, 0.0, -1.0), vectors)[None, :, None]
    rank = backend.cast(large, "float64") * ramp
    first = backend.cast(rank == backend.tl.max(rank, axis=1)[:, None, :], "float64")
    values = backend.numbers(backend.tl.sum(vectors * first, axis=1))
    return backend.like(unit_phase(values)[:, None, :], vectors)


def _untouched(batch: int, m: int) -> StackBasis:
    return StackBasis(None, m, [0.0] * batch, [None] * batch)


def _traces(gram: Array, backend: Backend) -> np.ndarray[Any, Any]:
    m = int(gram.shape[1])
    diagonal = backend.tl.sum(gram * backend.identity(m, gram), axis=2)
    return np.asarray(backend.numbers(diagonal).real.sum(axis=1))


def _some_full_rank(
    gram: Array, totals: np.ndarray[Any, Any], rules: Sequence[Truncation], backend: Backend
) -> bool:
    m = int(gram.shape[1])
    allowed = np.array([rule.allowed for rule in rules])
    shifts = backend.like(2.0 * allowed + 16.0 * m * _EPS * totals, gram)[:, None, None]
    exist = backend.choleskys_exist(gram - shifts * backend.identity(m, gram))
    return bool((exist & (totals > 0.0)).any())


def _drowned(
    weights: np.ndarray[Any, Any], totals: np.ndarray[Any, Any], rules: Sequence[Truncation]
) -> bool:
    """Return whether a cut falls where squaring has drowned a spectrum in rounding noise."""
    m = weights.shape[1]
    for row, total, rule in zip(weights, totals, rules, strict=True):
        cut, noise = rule.cut(row), _GRAM_MARGIN * m * _EPS * float(total)
        if cut.discarded < noise and not (cut.kept == m and row[-1] > noise):
            return True
    return False


def _measured(vectors: Array, a: Array, backend: Backend) -> np.ndarray[Any, Any]:
    # What lies along a vector is measured without squaring first, so small weights are right.
    rotated = backend.tl.abs(backend.adjoint(vectors) @ a)
    return np.asarray(backend.numbers(backend.tl.sum(rotated**2, axis=2)))


def _cut(
    vectors: Array, weights: np.ndarray[Any, Any], rules: Sequence[Truncation], backend: Backend
) -> StackBasis:
    m = weights.shape[1]
    kept = max(rule.cut(row).kept for row, rule in zip(weights, rules, strict=True))
    spectra: list[np.ndarray[Any, Any] | None] = [np.sort(row)[::-1].copy() for row in weights]
    if kept == m:
        return StackBasis(None, m, [0.0] * len(weights), spectra)
    discarded = [float(tail_weights(row)[kept]) for row in weights]
    vectors = vectors[:, :, :kept]
    return StackBasis(vectors * stack_phases(vectors, backend), kept, discarded, spectra)


def _one_by_one(
    a: Array, rules: Sequence[Truncation], backend: Backend, *, lossless: bool
) -> StackBasis:
    found = [side_basis(a[k], rule, lossless, backend) for k, rule in enumerate(rules)]
    kept = max(basis.cut.kept for basis in found)
    if kept == int(a.shape[1]):
        return StackBasis(None, kept, [0.0] * len(found), [basis.weights for basis in found])
    wide = Truncation(kept, forced=True)
    found = [
        basis if basis.cut.kept == kept else side_basis(a[k], wide, False, backend)
        for k, basis in enumerate(found)
    ]
    return StackBasis(
        backend.tl.stack([basis.vectors for basis in found]),
        kept,
        [basis.cut.discarded for basis in found],
        [basis.weights for basis in found],
    )
