"""Eigenvectors of Hermitian matrices, all or the leading ones, with a second driver in reserve."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.lapack_threads import one_thread
from tensornet.typing import Array

_log = logging.getLogger("tensornet")
# Finding some eigenvectors by themselves costs less than finding all of them by divide and
# conquer only where they are few.
_FEW = 5
# Squared length (relative) of what is left of a column at which it counts as spanned by others.
_SPANNED = 2.0**-49
# Share of the trace at which a Gram matrix in single precision is noise, and of a row at which
# what other rows leave of it is.
_NOISE, _DEPENDENT = 1e-6, 1e-5
# Smaller matrices have their eigenvectors at once.
_WORTHWHILE = 64


def eigenpairs(
    gram: Array, backend: Backend, count: int | None = None
) -> tuple[np.ndarray[Any, Any], Array] | None:
    """Return the largest eigenvalues on the host, descending, and their eigenvectors.

    Negative eigenvalues of a positive semidefinite matrix are rounding errors: they come back
    as zero. Where the library's driver does not converge, which drivers on GPUs are known for
    when eigenvalues are repeated, the drivers of LAPACK are tried in turn, and a log line of
    the logger ``tensornet`` says so.

    Parameters
    ----------
    gram : Array, shape (m, m)
        Hermitian, positive semidefinite up to rounding.
    backend : Backend
        Operations for the array's library.
    count : int, optional
        How many at least; all of them by default.

    Returns
    -------
    (values, vectors) or None
        Shapes (k,) and (m, k) with ``count`` <= k <= m, in the precision of ``gram``; None
        where no driver converges.
    """
    m = int(gram.shape[0])
    few = None if count is None or count * _FEW > m else count
    if backend.place(gram) == "cpu":
        found = _on_host(gram, backend, few)
    else:
        found = _by_library(gram, backend) or _on_host(gram, backend, few)
    if found is None:
        return None
    values, vectors = found
    return np.maximum(values.astype(np.float64), 0.0), vectors


def hermitian_pairs(a: Array, backend: Backend) -> tuple[np.ndarray[Any, Any], Array]:
    """Return all eigenvalues of a Hermitian matrix on the host, descending, and eigenvectors.

    As :func:`eigenpairs`, but negative eigenvalues come back as they are.

    Raises
    ------
    numpy.linalg.LinAlgError
        If no driver converges, which is not known to happen to finite numbers.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> hermitian_pairs(np.diag([1.0, -2.0]), load_backend("numpy"))[0].tolist()
    [1.0, -2.0]
    """
    on_device = backend.place(a) != "cpu"
    found = (_by_library(a, backend) if on_device else None) or _on_host(a, backend, None)
    if found is None:
        raise np.linalg.LinAlgError("no driver for eigenvalues converged")
    return found


def eigenvalues(gram: Array, backend: Backend) -> np.ndarray[Any, Any] | None:
    """Return all eigenvalues on the host, descending, not negative; None without convergence."""
    from scipy.linalg import eigh

    try:
        with one_thread(int(gram.shape[0])):
            values = eigh(
                backend.numbers(gram), eigvals_only=True, driver="evr", check_finite=False
            )
    except np.linalg.LinAlgError:
        found = eigenpairs(gram, backend)
        return None if found is None else found[0]
    return np.asarray(np.maximum(values[::-1].astype(np.float64), 0.0))


def spectrum(gram: Array, backend: Backend) -> np.ndarray[Any, Any]:
    """Return all eigenvalues as :func:`eigenvalues`, by an SVD where no driver converges.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> spectrum(np.diag([1.0, 4.0]), load_backend("numpy")).tolist()
    [4.0, 1.0]
    """
    values = eigenvalues(gram, backend)
    if values is None:
        return np.asarray(np.linalg.svd(backend.numbers(gram), compute_uv=False))
    return values


def _by_library(gram: Array, backend: Backend) -> tuple[np.ndarray[Any, Any], Array] | None:
    try:
        values, vectors = backend.tl.eigh(gram)
    except backend.no_convergence as error:
        say_failed(f"the eigensolver on {backend.place(gram)}", gram, error)
        return None
    return backend.numbers(values)[::-1], backend.tl.flip(vectors, axis=1)


def _on_host(
    gram: Array, backend: Backend, few: int | None
) -> tuple[np.ndarray[Any, Any], Array] | None:
    """Return descending eigenvalues and their eigenvectors by the first driver that converges."""
    from scipy.linalg import eigh

    host, m = backend.numbers(gram), int(gram.shape[0])
    for driver in ("evr", "evd", "ev") if few is not None else ("evd", "evr", "ev"):
        part = None if few is None or driver != "evr" else (m - few, m - 1)
        try:
            with one_thread(m):
                values, vectors = eigh(
                    host, driver=driver, subset_by_index=part, check_finite=False
                )
        except np.linalg.LinAlgError as error:
            say_failed(f"LAPACK's {driver}", gram, error)
        else:
            # Copied: a matrix with negative strides is slow to multiply with.
            return values[::-1], backend.like(vectors[:, ::-1].copy(), gram)
    return None


def say_failed(driver: str, a: Array, error: Exception) -> None:
    """Say in a line of the log that a driver did not converge on a matrix, or on a stack."""
    *stack, rows, cols = (int(d) for d in a.shape)
    size = f"{stack[0]} matrices, {rows} x {cols}," if stack else f"a {rows} x {cols} matrix"
    text = "%s failed on %s in %s (%s); trying another driver"
    _log.warning(text, driver, size, dtype_name(a), error)


def low_rank_pairs(
    gram: Array, allowed: float, backend: Backend
) -> tuple[np.ndarray[Any, Any], Array] | None:
    """Return the eigenpairs of a Hermitian matrix of low rank, or None if it has no low rank.

    A Cholesky factorization with pivots stops once the trace of what is left is below
    ``allowed``. That trace bounds what the span of the factor misses, and within the span the
    eigenproblem is small.

    Parameters
    ----------
    gram : Array, shape (m, m)
        Hermitian, positive semidefinite up to rounding, in double precision.
    allowed : float
        Share of the trace (absolute) that the vectors may miss.
    backend : Backend
        Operations for the array's library.
    """
    from scipy.linalg import lapack, qr

    host = backend.numbers(gram)
    m = len(host)
    factor = lapack.zpstrf if np.iscomplexobj(host) else lapack.dpstrf
    with one_thread(m):
        packed, pivots, rank, _ = factor(host, tol=allowed / m, lower=1)
    if rank * 2 > m:
        return None
    span = np.empty((m, rank), dtype=host.dtype)
    span[pivots - 1] = np.tril(packed[:, :rank])
    with one_thread(m):
        basis = qr(span, mode="economic", check_finite=False)[0]
    found = eigenpairs(backend.like(basis.conj().T @ host @ basis, gram), backend)
    if found is None:
        return None
    values, vectors = found
    return values, backend.like(basis, gram) @ vectors


def single_pairs(
    gram: Array, backend: Backend, count: int | None = None
) -> tuple[np.ndarray[Any, Any], Array] | None:
    """Return the eigenpairs of a Gram matrix that is right to single precision.

    As :func:`eigenpairs`; where the rank is low, only those that are no noise.
    """
    if backend.place(gram) == "cpu" and _looks_deficient(backend.numbers(gram)):
        wide = backend.cast(gram, work_dtype(dtype_name(gram)))
        whole = float(backend.numbers(wide).trace().real)
        few = low_rank_pairs(wide, _NOISE * whole, backend) if whole > 0.0 else None
        if few is not None:
            return few[0], backend.cast(few[1], dtype_name(gram))
    return eigenpairs(gram, backend, count)


def _looks_deficient(gram: np.ndarray[Any, Any]) -> bool:
    """Return whether a quarter of the rows depend on each other: a factor of it costs little."""
    if len(gram) < _WORTHWHILE:
        return False
    part = gram[: len(gram) // 4, : len(gram) // 4].astype(np.result_type(gram.dtype, np.float64))
    try:
        with one_thread(len(part), "numpy"):
            pivots = np.linalg.cholesky(part).diagonal().real ** 2
    except np.linalg.LinAlgError:
        return True
    return bool((pivots <= _DEPENDENT * part.diagonal().real).any())


def independent_columns(gram: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the positions of columns that span all columns, given their Gram matrix, ascending.

    What a column has beyond the span of those chosen is at most 4e-8 of its length.
    """
    from scipy.linalg import lapack

    lengths = np.sqrt(gram.diagonal().real)
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0.0)
    factor = lapack.zpstrf if np.iscomplexobj(gram) else lapack.dpstrf
    with one_thread(len(gram)):
        _, pivots, rank, _ = factor(inverse[:, None] * gram * inverse, tol=_SPANNED, lower=1)
    return np.sort(pivots[: max(rank, 1)] - 1)
