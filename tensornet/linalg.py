"""Orthonormal bases of the small side of a wide matrix, as cheap as accuracy allows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.eigen import eigenpairs, independent_columns, low_rank_pairs, say_failed
from tensornet.gram import gram_matrix, sampled
from tensornet.lapack_threads import one_thread
from tensornet.truncation import Cut, Truncation
from tensornet.typing import Array

# Share of the squared norm that a narrower factor may miss: squares of rounding errors.
_MISSED = 1e-28
_EPS = 2.0**-52
# Weight (squared) below which a Gram matrix in double precision says nothing: its eigenvalues
# err by about m * eps * trace at most. A certificate good to seven digits needs far more.
_GRAM_MARGIN = 1e5
# Of data whose own rounding noise is at least so many times the rounding of a Gram matrix,
# nothing is lost by squaring.
_NOISE_MARGIN = 64.0
# Signs follow the first entry that is at least this share of the largest one. The share is
# no ratio that structured data would hit exactly, so libraries agree about it.
_SIGN_SHARE = 0.618


class SideBasis(NamedTuple):
    """The kept basis of one side, and what was found on the way.

    ``vectors`` is (m, kept) with orthonormal columns, or None for the identity: nothing is cut.
    Where the side was proven to be of full rank, no spectrum was computed. ``weights`` are
    squared singular values on the host, descending: all of them, or the leading ones where no
    more were needed.
    """

    vectors: Array | None
    cut: Cut
    weights: np.ndarray[Any, Any] | None


def side_basis(a: Array, rule: Truncation, lossless: bool, backend: Backend) -> SideBasis:
    """Return the leading left basis of ``a``, cut by a rule.

    A wide matrix goes through its small Gram matrix (m x m) and an eigendecomposition, unless
    the cut falls where squaring has drowned the spectrum in rounding noise: then through QR
    and an SVD of the triangular factor. A tall matrix is first reduced by QR.

    Parameters
    ----------
    a : Array, shape (m, n)
        Real or complex. Computed with in double precision, whatever its own.
    rule : Truncation
        Where to cut.
    lossless : bool
        Whether the rule discards nothing but rounding noise. Then full rank is tried first,
        which a Cholesky factorization proves without any spectrum.
    backend : Backend
        Operations for the array's library.
    """
    m, n = (int(d) for d in a.shape)
    if rule.forced and rule.cap >= m:
        return SideBasis(None, Cut(m, 0.0), None)
    if m > n:
        return _tall_basis(a, rule, backend)
    whole = lossless and rule.cap >= m
    if whole and n >= 4 * m and _proven(gram_matrix(sampled(a), backend), rule, backend):
        return SideBasis(None, Cut(m, 0.0), None)
    gram = gram_matrix(a, backend)
    if whole and _proven(gram, rule, backend):
        return SideBasis(None, Cut(m, 0.0), None)
    return gram_basis(gram, None, rule, backend) or _svd_basis(a, rule, backend)


def gram_basis(
    gram: Array,
    known: tuple[np.ndarray[Any, Any], Array] | None,
    rule: Truncation,
    backend: Backend,
) -> SideBasis | None:
    """Return the basis from a Gram matrix in double precision, or None if that says too little.

    ``known`` are its eigenpairs, if they are known.
    """
    m = int(gram.shape[0])
    total = trace(gram, backend)
    noisy = rule.noise >= _NOISE_MARGIN * _EPS * total > 0.0
    few = None
    if noisy and known is None and not rule.forced:
        few = low_rank_pairs(gram, rule.allowed / 4.0, backend)
    found = few or known or eigenpairs(gram, backend)
    if found is None:
        return None
    weights, vectors = found
    cut = rule.cut(weights, max(total - float(weights.sum()), 0.0) if few else 0.0)
    noise = _GRAM_MARGIN * m * _EPS * total
    if not noisy and cut.discarded < noise and not (cut.kept == m and weights[-1] > noise):
        return None
    if cut.kept == m:
        return SideBasis(None, cut, weights)
    return SideBasis(fix_signs(vectors[:, : cut.kept], backend), cut, weights)


def _proven(gram: Array, rule: Truncation, backend: Backend) -> bool:
    return has_full_rank(gram, trace(gram, backend), rule.allowed, backend)


def has_full_rank(gram: Array, total: float, allowed: float, backend: Backend) -> bool:
    """Return whether every eigenvalue of a Gram matrix is proven to exceed ``allowed``.

    The Cholesky factor of ``gram - shift`` exists only if the smallest eigenvalue exceeds the
    shift up to rounding, which the shift is large enough to cover. ``False`` proves nothing.
    """
    m = int(gram.shape[0])
    shift = 2.0 * allowed + 16.0 * m * _EPS * total
    return total > 0.0 and backend.cholesky_exists(gram - shift * backend.identity(m, gram))


def fix_signs(vectors: Array, backend: Backend) -> Array:
    """Return the columns with their sign (or phase) fixed, so that all libraries agree.

    The first entry of at least 0.618 of the column's largest magnitude becomes positive.
    """
    phases = backend.like(_phases(vectors, backend), vectors)
    return vectors * backend.cast(phases, dtype_name(vectors))


def positive_qr(a: Array, backend: Backend) -> tuple[Array, Array]:
    """Return the QR factors whose triangular factor has a diagonal that is not negative."""
    q, r = backend.tl.qr(a)
    phase = np.conj(unit_phase(backend.numbers(r).diagonal()))
    return q * backend.like(phase, q), backend.like(np.conj(phase), r)[:, None] * r


def revealing_qr(a: Array, backend: Backend) -> tuple[Array, Array]:
    """Return (Q, B) with a = Q B, where Q has no more orthonormal columns than ``a`` needs.

    A wide matrix is its own B. Columns that others span to 4e-8 of their length are left out of
    Q: less than what rounding to single precision costs.
    """
    m, n = (int(d) for d in a.shape)
    if m <= n:
        return backend.identity(m, a), a
    columns = independent_columns(backend.numbers(backend.adjoint(a) @ a))
    if len(columns) == n:
        return positive_qr(a, backend)
    q, _ = positive_qr(a[:, backend.like(columns, a)], backend)
    return q, backend.adjoint(q) @ a


def thin_svd(a: Array, backend: Backend) -> tuple[Array, np.ndarray[Any, Any], Array]:
    """Return (U, s, Vh) with fixed signs, the singular values on the host.

    Matrices far from square go through QR first. Where divide and conquer does not converge,
    LAPACK's older QR iteration is used, on the host, and a log line says so.
    """
    m, n = (int(d) for d in a.shape)
    if m < n:
        u, s, vh = thin_svd(backend.adjoint(a), backend)
        return (*_sign_pair(backend.adjoint(vh), s, backend.adjoint(u), backend),)
    if m > 2 * n:
        q, r = positive_qr(a, backend)
        u, s, vh = _svd(r, backend)
        return (*_sign_pair(q @ u, s, vh, backend),)
    return (*_sign_pair(*_svd(a, backend), backend),)


def lower_root(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return L of no more columns than rows with L L^H = a a^H, without forming that product.

    Examples
    --------
    >>> np.abs(lower_root(np.array([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]]))).round(6).tolist()
    [[5.0, 0.0], [0.0, 2.0]]
    """
    from scipy.linalg import qr

    rows = min(a.shape)
    with one_thread(rows):
        (r,) = qr(a.T.conj(), mode="r", check_finite=False)
    return np.asarray(r[:rows]).T.conj()


def low_rank_root(a: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """Return L with L L^H = a a^H to rounding, of few columns where the rank is low.

    The span of a random sketch is taken in place of that of all columns where it misses a share
    of 1e-28 of the squared norm at most (Halko, Martinsson and Tropp 2011).

    Parameters
    ----------
    a : ndarray, shape (m, n)
        The matrix.
    rank : int
        About how many directions have more than a share of 1e-14 of the squared norm.

    Examples
    --------
    >>> low = np.outer(np.arange(64.0), np.ones(100))
    >>> low_rank_root(low, 1).shape, low_rank_root(np.eye(64), 64).shape
    ((64, 16), (64, 64))
    """
    # Down to squares of rounding errors a decaying spectrum has about twice the rank.
    width = 3 * rank + 13
    if 4 * width > min(a.shape):
        return lower_root(a)
    sketch = a @ np.random.default_rng(0).standard_normal((a.shape[1], width))
    with one_thread(width, "numpy"):
        basis = np.linalg.qr(sketch)[0]
    inside = basis.conj().T @ a
    missing = a - basis @ inside
    if np.vdot(missing, missing).real > _MISSED * np.vdot(a, a).real:
        return lower_root(a)
    return np.asarray(basis @ lower_root(inside))


def singular_values(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the singular values of a matrix on the host, descending.

    Examples
    --------
    >>> singular_values(np.array([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    from scipy.linalg import svd

    with one_thread(min(a.shape)):
        try:
            values = svd(a, compute_uv=False, check_finite=False)
        except np.linalg.LinAlgError as error:
            say_failed("the singular values on the host", a, error)
            values = svd(a, compute_uv=False, check_finite=False, lapack_driver="gesvd")
    return np.asarray(values)


def _svd(a: Array, backend: Backend) -> tuple[Array, np.ndarray[Any, Any], Array]:
    try:
        u, s, vh = backend.tl.svd(a, full_matrices=False)
    except backend.no_convergence as error:
        from scipy.linalg import svd

        say_failed(f"the singular value decomposition on {backend.place(a)}", a, error)
        host = svd(backend.numbers(a), full_matrices=False, lapack_driver="gesvd")
        u, s, vh = (backend.like(part, a) for part in host)
    return u, backend.numbers(s), vh


def _sign_pair(
    u: Array, s: np.ndarray[Any, Any], vh: Array, backend: Backend
) -> tuple[Array, np.ndarray[Any, Any], Array]:
    phase = _phases(u, backend)
    return u * backend.like(phase, u), s, backend.like(np.conj(phase), vh)[:, None] * vh


def _phases(vectors: Array, backend: Backend) -> np.ndarray[Any, Any]:
    host = backend.numbers(vectors)
    size = np.abs(host)
    rows = np.argmax(size >= _SIGN_SHARE * size.max(axis=0, keepdims=True), axis=0)
    return unit_phase(host[rows, np.arange(host.shape[1])])


def unit_phase(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the factors of modulus 1 that make the values real and not negative.

    Examples
    --------
    >>> unit_phase(np.array([-2.0, 0.0, 3.0])).tolist()
    [-1.0, 1.0, 1.0]
    """
    if np.iscomplexobj(values):
        # Through the angle: dividing a complex number by a subnormal one overflows.
        return np.asarray(np.exp(-1j * np.angle(values)))
    return np.where(values < 0, -1.0, 1.0)


def _tall_basis(a: Array, rule: Truncation, backend: Backend) -> SideBasis:
    u, s, _ = thin_svd(_wide(a, backend), backend)
    cut = rule.cut(s**2)
    return SideBasis(u[:, : cut.kept], cut, s**2)


def _svd_basis(a: Array, rule: Truncation, backend: Backend) -> SideBasis:
    # a = (q r)^H = r^H q^H: the left vectors of a are those of the small r^H.
    _, r = backend.tl.qr(backend.adjoint(_wide(a, backend)))
    u, s, _ = thin_svd(backend.adjoint(r), backend)
    cut = rule.cut(s**2)
    return SideBasis(u[:, : cut.kept], cut, s**2)


def _wide(a: Array, backend: Backend) -> Array:
    return backend.cast(a, work_dtype(dtype_name(a)))


def trace(gram: Array, backend: Backend) -> float:
    """Return the trace of a Hermitian matrix, summed in double precision."""
    return float(backend.numbers(gram).diagonal().real.sum(dtype=np.float64))
