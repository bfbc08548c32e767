"""Assertions with tolerances that follow from the element type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensornet.backend import backend_of, dtype_name, eps, work_dtype
from tensornet.typing import Array


def tolerance_of(dtype: str, n_sites: int = 5) -> float:
    """Return the relative error that exact networks of this element type stay below.

    Examples
    --------
    >>> tolerance_of("float32") < 1e-6 and tolerance_of("float64") < 1e-13
    True
    """
    return (
        (4.0 if dtype in ("float32", "complex64") else 2.0)
        * eps(dtype)
        * (64.0 if dtype in ("float64", "complex128") else math.sqrt(n_sites) / 2)
    )


def relative_error(actual: Array, expected: Array) -> float:
    """Return the relative Frobenius distance, in double precision; absolute when expecting zero.

    Examples
    --------
    >>> relative_error(np.array([3.0, 0.0]), np.array([3.0, 4.0]))
    0.8
    """
    a, b = wide(actual), wide(expected)
    scale = max(float(np.abs(b).max(initial=0.0)), float(np.abs(a).max(initial=0.0))) or 1.0
    norm = float(np.linalg.norm(b / scale))
    return float(np.linalg.norm(a / scale - b / scale)) / (norm or 1.0 / scale)


def assert_close(actual: Array, expected: Array, rtol: float | None = None) -> None:
    """Raise AssertionError unless two arrays agree in relative Frobenius norm.

    Parameters
    ----------
    actual, expected : Array
        Arrays of one shape.
    rtol : float, optional
        By default what exact networks of the actual element type keep.
    """
    if tuple(actual.shape) != tuple(expected.shape):
        raise AssertionError(f"shape {tuple(actual.shape)} is not {tuple(expected.shape)}")
    limit = tolerance_of(dtype_name(actual)) if rtol is None else rtol
    error = relative_error(actual, expected)
    if not error <= limit:
        raise AssertionError(f"relative error {error:.3g} exceeds {limit:.3g}")


def assert_isometric(core: Array, side: str, atol: float | None = None) -> None:
    """Raise AssertionError unless a core is isometric.

    Parameters
    ----------
    core : Array
        (left, ..., right).
    side : {"left", "right"}
        "left": orthonormal columns of the matrix (left * site, right); "right": orthonormal
        rows of the matrix (left, site * right).
    atol : float, optional
        Largest deviation of an entry of the Gram matrix from the identity.
    """
    flat = wide(core)
    columns = flat.reshape(-1, flat.shape[-1]) if side == "left" else flat.reshape(len(flat), -1).T
    gram = columns.conj().T @ columns
    limit = 40.0 * eps(dtype_name(core)) if atol is None else atol
    deviation = float(np.abs(gram - np.eye(len(gram))).max())
    if not deviation <= limit:
        raise AssertionError(f"{side} isometry is off by {deviation:.3g}, more than {limit:.3g}")


def max_tail(tensor: Array, bond_dims: tuple[int, ...]) -> float:
    """Return the largest relative tail of the unfoldings: no network with these bonds beats it.

    Parameters
    ----------
    tensor : Array, shape (p_1, ..., p_n)
        The folded tensor.
    bond_dims : tuple of int
        n + 1 bonds.
    """
    t = wide(tensor)
    norm = float(np.linalg.norm(t)) or 1.0
    tails = [0.0]
    for k in range(1, t.ndim):
        s = np.linalg.svd(t.reshape(math.prod(t.shape[:k]), -1), compute_uv=False)
        tails.append(float(np.linalg.norm(s[bond_dims[k] :])) / norm)
    return max(tails)


def wide(a: Array) -> np.ndarray[Any, Any]:
    """Return an array of any library as a numpy array in double precision."""
    backend = backend_of(a)
    plain = a.detach() if hasattr(a, "detach") else a
    return backend.numbers(backend.cast(plain, work_dtype(dtype_name(a))))
