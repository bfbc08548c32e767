"""What is done with numpy's own arrays, where TensorLy has nothing or does it slower."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet.lapack_threads import one_thread

HostArray = np.ndarray[Any, Any]


def all_finite(a: HostArray) -> bool:
    """Return whether no entry is NaN or infinite.

    A sum is finite only if all entries are, and needs no memory for an answer to each of them.
    Where it is not, that may be its own overflow.

    Examples
    --------
    >>> all_finite(np.full(9, 1e308)), all_finite(np.array([0.0, np.nan]))
    (True, False)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = a.sum()
    return bool(np.isfinite(total)) or bool(np.isfinite(a).all())


def cast(a: HostArray, dtype: str) -> HostArray:
    """Return an array in another element type; what does not fit it becomes infinite.

    Without a warning: callers look for it and say what to do.

    Examples
    --------
    >>> cast(np.array([1.0, 1e300]), "float32").tolist()
    [1.0, inf]
    """
    with np.errstate(over="ignore"):
        return np.asarray(a).astype(np.dtype(dtype), copy=False)


def cholesky_exists(a: HostArray) -> bool:
    """Return whether a Hermitian matrix has a Cholesky factor.

    Examples
    --------
    >>> cholesky_exists(np.eye(2)), cholesky_exists(-np.eye(2))
    (True, False)
    """
    try:
        with one_thread(len(a), "numpy"):
            np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return False
    return True


def eigenvalues(stack: HostArray) -> HostArray:
    """Return the eigenvalues of Hermitian matrices (..., n, n), ascending.

    Examples
    --------
    >>> eigenvalues(np.diag([2.0, 1.0])).tolist()
    [1.0, 2.0]
    """
    with one_thread(int(stack.shape[-1]), "numpy"):
        return np.asarray(np.linalg.eigvalsh(stack))


def eigh(a: HostArray) -> tuple[HostArray, HostArray]:
    """Return the eigenvalues of a Hermitian matrix, ascending, and its eigenvectors.

    Examples
    --------
    >>> values, vectors = eigh(np.diag([2.0, 1.0]))
    >>> values.tolist(), np.abs(vectors).tolist()
    ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    with one_thread(len(a), "numpy"):
        values, vectors = np.linalg.eigh(a)
    return values, vectors
