"""A metric on the column side: checked, in double precision, with its square root."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, eps, is_complex, library_of, work_dtype
from tensornet.checks import array
from tensornet.eigen import hermitian_pairs
from tensornet.errors import ArrayTypeError, DTypeError, OptionError, ShapeError, complaint
from tensornet.host import eigh
from tensornet.layout import MatrixLayout
from tensornet.storage import scaled, weight
from tensornet.typing import Array

# What rounding may do to a metric, as a multiple of eps: half precision stores what was summed
# in a wider type, the others carry the roundings of the sums too.
_ROUNDINGS = {"float16": 4.0, "bfloat16": 4.0}
_LEAST_SHARE = 1e-9


class Metric(NamedTuple):
    """A Hermitian positive semidefinite matrix with entries near 1, and its Hermitian root.

    What the user gave is ``scale`` times ``matrix``.
    """

    matrix: Array
    root: Array
    scale: float

    def square(self, a: Array, backend: Backend) -> float:
        """Return the squared norm |a H^(1/2)| ^ 2 of ``a`` (rows, cols)."""
        return weight(a @ self.root, backend)


def checked_metric(
    metric: Array, W: Array, matrix: Array, backend: Backend, argument: str = "metric"
) -> Metric:
    """Return a metric for the columns of ``W``, ready for use.

    Parameters
    ----------
    metric : Array, shape (cols, cols)
        What the user gave.
    W : Array, shape (rows, cols)
        The matrix as the user gave it: the metric must be of its library and on its device.
    matrix : Array, shape (rows, cols)
        The matrix where it is computed with.
    backend : Backend
        Operations for ``matrix``.
    argument : str
        Name of the metric, for messages.

    Raises
    ------
    ArrayTypeError, DTypeError, NonFiniteError
        If the metric is no dense array of finite numbers of W's library and device, or is
        complex where W is real.
    ShapeError
        If it is not (cols, cols).
    OptionError
        If it is not Hermitian or not positive semidefinite, up to rounding.
    """
    _, given = array(argument, metric, 2)
    _same_home(metric, W, argument)
    cols = int(matrix.shape[1])
    if tuple(given.shape) != (cols, cols):
        expected = f"have shape {(cols, cols)}, one row and column for each column of W"
        raise ShapeError(complaint(argument, expected, f"shape {tuple(given.shape)}"))
    if is_complex(given) and not is_complex(matrix):
        remedy = "Its real part weights real matrices in the same way: pass that."
        raise DTypeError(complaint(argument, "be real where W is", dtype_name(given), remedy))
    scale, wide = scaled(backend.cast(given, work_dtype(dtype_name(matrix))), backend)
    dtype = dtype_name(given)
    allowed = _ROUNDINGS.get(dtype, 64.0) * eps(dtype) * math.sqrt(weight(wide, backend))
    hermitian = _hermitian(wide, allowed, backend, argument)
    spectrum, vectors = hermitian_pairs(hermitian, backend)
    _not_negative(spectrum, allowed, scale, argument)
    # Below this an eigenvalue is rounding of the largest ones.
    floor = cols * 2.0**-52 * float(np.abs(spectrum).max())
    rank = int((spectrum > floor).sum())
    kept, vectors = backend.like(spectrum[:rank].copy(), vectors), vectors[:, :rank]
    adjoint = backend.adjoint(vectors)
    # Without directions to leave out it is its own product already.
    clean = hermitian if rank == cols else (vectors * kept) @ adjoint
    return Metric(clean, (vectors * kept**0.5) @ adjoint, scale)


def column_site(layout: MatrixLayout) -> int | None:
    """Return the one site that holds all columns; None where several share them.

    Examples
    --------
    >>> column_site(MatrixLayout((6, 1), (1, 8))), column_site(MatrixLayout((2, 3), (4, 2)))
    (1, None)
    """
    holders = [k for k, j in enumerate(layout.col_dims) if j > 1]
    if len(holders) > 1:
        return None
    return holders[0] if holders else layout.central


def site_metrics(metric: Metric, layout: MatrixLayout, backend: Backend) -> list[Any]:
    """Return for each site (root, inverse root) of the metric averaged over the other sites.

    Their Kronecker product is the metric itself where that is such a product. Padding has no
    metric of its own; directions with less than 1e-9 of the largest count as having that much,
    so that the inverse exists.
    """
    host = backend.numbers(metric.matrix)
    pairs = []
    for k in range(layout.n_sites):
        values, vectors = eigh(site_sum(host, k, layout))
        largest = values[-1] if values[-1] > 0.0 else 1.0
        roots = np.sqrt(np.maximum(values, _LEAST_SHARE * largest) / largest)
        both = ((vectors * r) @ vectors.conj().T for r in (roots, 1.0 / roots))
        pairs.append(tuple(backend.like(m, metric.matrix) for m in both))
    return pairs


def site_sum(metric: np.ndarray[Any, Any], k: int, layout: MatrixLayout) -> np.ndarray[Any, Any]:
    """Return a metric summed over the columns of all sites but one: its partial trace.

    Examples
    --------
    >>> site_sum(np.diag([1.0, 2.0, 3.0]), 0, MatrixLayout((1, 1), (2, 2), 1, 3)).diagonal()
    array([3., 3.])
    """
    dims, missing = layout.col_dims, layout.padded_shape[1] - layout.cols
    left, right = math.prod(dims[:k]), math.prod(dims[k + 1 :])
    padded = np.pad(metric, (0, missing)) if missing else metric
    split = padded.reshape(left, dims[k], right, left, dims[k], right)
    return np.asarray(np.einsum("ajbakb->jk", split))


def _same_home(metric: Array, W: Array, argument: str) -> None:
    if library_of(metric) != library_of(W):
        given = f"{library_of(metric)} with a {library_of(W)} W"
        raise ArrayTypeError(complaint(argument, "be of the library of W", given))
    places = [str(getattr(a, "device", "cpu")) for a in (metric, W)]
    if places[0] != places[1]:
        given = f"{places[0]} with W on {places[1]}"
        raise ArrayTypeError(complaint(argument, "be on the device of W", given))


def _hermitian(wide: Array, allowed: float, backend: Backend, argument: str) -> Array:
    adjoint = backend.adjoint(wide)
    skew = math.sqrt(weight(wide - adjoint, backend))
    if skew > 2.0 * allowed:
        norm = math.sqrt(weight(wide, backend))
        word = "Hermitian" if is_complex(wide) else "symmetric"
        expected = f"be {word} up to rounding ({2.0 * allowed / norm:.1g} of its norm)"
        given = f"a difference to its {'adjoint' if is_complex(wide) else 'transpose'} of "
        remedy = "Take the mean of the two if the difference means nothing."
        raise OptionError(complaint(argument, expected, f"{given}{skew / norm:.3g}", remedy))
    return 0.5 * (wide + adjoint)


def _not_negative(
    spectrum: np.ndarray[Any, Any], allowed: float, scale: float, argument: str
) -> None:
    least = float(spectrum[-1])
    if least < -allowed:
        below = int((spectrum < -allowed).sum())
        given = (
            f"{below} negative eigenvalue{'s' if below > 1 else ''}, the least {least * scale:.4g}"
        )
        given += f" (rounding explains {-allowed * scale:.1g})"
        remedy = "A mean of x x^T over inputs x has none."
        raise OptionError(complaint(argument, "be positive semidefinite", given, remedy))
