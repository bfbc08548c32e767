"""Metrics of many matrices on their column sides: one for all, or one for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.errors import ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.stack_storage import Numbers, squared_norms
from tensornet.storage import weight
from tensornet.typing import Array
from tensornet.whitening import checked_metric, site_sum

# Share of the mean eigenvalue that is added to an average, so that its inverse exists.
_LEAST_SHARE = 1e-9


class MetricStack(NamedTuple):
    """Positive semidefinite matrices with Hermitian roots, both (batch, cols, cols).

    The batch is 1 where all matrices have one metric. What the user gave is ``scale`` times
    ``matrices``, whose entries are near 1 or smaller.
    """

    matrices: Array
    roots: Array
    scale: float

    def of(self, members: Sequence[int]) -> MetricStack:
        """Return the metrics of some of the matrices."""
        if int(self.matrices.shape[0]) == 1:
            return self
        chosen = list(members)
        return MetricStack(self.matrices[chosen], self.roots[chosen], self.scale)

    def squares(self, stack: Array, backend: Backend) -> Numbers:
        """Return |a H^(1/2)| ^ 2 for every matrix ``a`` of a stack (batch, rows, cols)."""
        return squared_norms(stack @ self.roots, backend)

    def is_plain(self, backend: Backend) -> bool:
        """Return whether all are one multiple of the identity, so that they weigh nothing."""
        eye = backend.identity(int(self.matrices.shape[1]), self.matrices)
        rest = self.matrices - self.matrices[:1, :1, :1] * eye
        return bool(weight(rest, backend) == 0.0)


def checked_metrics(metric: Any, Ws: Array, matrices: Array, backend: Backend) -> MetricStack:
    """Return the metrics for the columns of many matrices, ready for use.

    Parameters
    ----------
    metric : Array, shape (cols, cols) or (n, cols, cols), or sequence of Array, shape (cols, cols)
        What the user gave: one metric for all matrices, or one for each.
    Ws : Array, shape (n, rows, cols)
        The matrices as the user gave them: metrics must be of their library, on their device.
    matrices : Array, shape (n, rows, cols)
        The matrices where they are computed with.
    backend : Backend
        Operations for ``matrices``.

    Raises
    ------
    ShapeError
        If there are more or fewer metrics than matrices.
    ArrayTypeError, DTypeError, NonFiniteError, ShapeError, OptionError
        As :func:`tensornet.whitening.checked_metric`, which names the metric by its index.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> W, numpy = np.ones((3, 2, 2)), load_backend("numpy")
    >>> checked_metrics(np.eye(2), W, W, numpy).matrices.shape
    (1, 2, 2)
    >>> checked_metrics([4.0 * np.eye(2), np.eye(2), np.eye(2)], W, W, numpy).squares(W, numpy)
    array([4., 1., 1.])
    """
    several = isinstance(metric, list | tuple) or getattr(metric, "ndim", 2) == 3
    if not several:
        found = [checked_metric(metric, Ws, matrices[0], backend)]
    else:
        n, cols = int(matrices.shape[0]), int(matrices.shape[2])
        if len(metric) != n:
            expected = f"be one matrix {(cols, cols)}, or {n}, one for each of Ws"
            raise ShapeError(complaint("metric", expected, f"{len(metric)} of them"))
        found = [
            checked_metric(one, Ws, matrices[0], backend, f"metric[{k}]")
            for k, one in enumerate(metric)
        ]
    # Nothing is of no size: the scale is that of the others.
    sizes = [one.scale if weight(one.root, backend) > 0.0 else 0.0 for one in found]
    scale = max(sizes) or 1.0
    shares = [size / scale for size in sizes]
    return MetricStack(
        _scaled([one.matrix for one in found], shares, backend),
        _scaled([one.root for one in found], [math.sqrt(share) for share in shares], backend),
        scale,
    )


def _scaled(arrays: Sequence[Array], factors: Sequence[float], backend: Backend) -> Array:
    return backend.tl.stack([a * f for a, f in zip(arrays, factors, strict=True)])


def site_averages(metrics: MetricStack, layout: MatrixLayout, backend: Backend) -> list[Array]:
    """Return for each site the metrics averaged over the other sites: (batch, j_k, j_k).

    Their Kronecker product is nearly the metric itself where that is such a product, and has its
    trace always. Columns of the padding have no metric of their own; a small share of the mean
    eigenvalue is added everywhere, so that an inverse exists.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> numpy, H = load_backend("numpy"), np.diag([1.0, 1.0, 9.0, 9.0])[None]
    >>> first, last = site_averages(
    ...     MetricStack(H, H**0.5, 1.0), MatrixLayout((1, 1), (2, 2)), numpy
    ... )
    >>> np.kron(first[0], last[0]).diagonal().round(6)
    array([1., 1., 9., 9.])
    """
    host, n, dims = backend.numbers(metrics.matrices), layout.n_sites, layout.col_dims
    sizes = np.einsum("njj->n", host).real / layout.padded_shape[1]
    averages = []
    for k, j in enumerate(dims):
        others = layout.padded_shape[1] // j
        means = np.stack([site_sum(one, k, layout) / others for one in host])
        # A metric without entries is taken for a multiple of the identity.
        means /= np.where(sizes > 0.0, sizes, 1.0)[:, None, None]
        means = (means + _LEAST_SHARE * np.eye(j)) * sizes[:, None, None] ** (1.0 / n)
        averages.append(backend.like(means, metrics.matrices))
    return averages
