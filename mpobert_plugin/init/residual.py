"""Adapters that make up for what a decomposition has left: the best product of a given rank."""

from __future__ import annotations

import torch
from torch import Tensor

from mpobert_plugin.adapter import init_adapter

# Below this share of the matrix a residual is rounding, and adapters start as untrained ones.
_ROUNDING = 1e-6


def fit_adapter(
    residual: Tensor, rank: int, scale: float, metric: Tensor | None = None, norm: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the adapter whose product comes nearest to a residual, in balanced factors.

    The product ``scale * up @ down`` is the truncated SVD, or with a metric H the matrix of that
    rank with the least ``|(R - scale * up @ down) H^(1/2)|``: the projection of R onto the
    leading left singular vectors of R H^(1/2). Both factors have the same singular values.
    Source: Eckart and Young 1936.

    Parameters
    ----------
    residual : Tensor, shape (rows, cols)
        In double precision.
    rank : int
        Rank, at most the smaller size.
    scale : float
        Factor alpha / rank of the adapter.
    metric : Tensor, shape (cols, cols), optional
        Positive semidefinite H, such as `mpobert_plugin.input_metrics` returns.
    norm : float
        Norm of the matrix that the residual belongs to. Directions that carry less than 1e-6 of
        it start as those of an untrained adapter: zeros above, Gaussian below.

    Returns
    -------
    tuple of (Tensor, Tensor)
        up (rows, rank) and down (rank, cols), in double precision.

    Examples
    --------
    >>> up, down = fit_adapter(torch.diag(torch.tensor([3.0, 2.0, 1.0]).double()), 2, scale=0.5)
    >>> (0.5 * up @ down).diagonal().round(decimals=6).tolist(), bool(up.norm() == down.norm())
    ([3.0, 2.0, 0.0], True)
    """
    basis = _leading(residual, rank, metric)
    small = basis.T @ residual
    left, values, right = torch.linalg.svd(small, full_matrices=False)
    roots = (values / scale).sqrt()
    up, down = (basis @ left) * roots, roots.unsqueeze(1) * right
    idle = values <= _ROUNDING * norm
    if bool(idle.any()):
        fresh_up, fresh_down = torch.empty_like(up), torch.empty_like(down)
        init_adapter(fresh_up, fresh_down)
        up = torch.where(idle, fresh_up, up)
        down = torch.where(idle.unsqueeze(1), fresh_down, down)
    return up, down


def _leading(residual: Tensor, rank: int, metric: Tensor | None) -> Tensor:
    """Return orthonormal columns: leading left singular vectors of the residual in the metric."""
    rows, cols = residual.shape
    if rows <= cols:
        weighed = residual if metric is None else residual @ metric
        gram = weighed @ residual.T
        return _vectors((gram + gram.T) / 2, rank)
    white = residual if metric is None else residual @ root_of(metric)
    right = _vectors(white.T @ white, rank)
    # Orthonormal also where columns are zero or nearly so.
    basis: Tensor = torch.linalg.qr(white @ right)[0]
    return basis


def _vectors(gram: Tensor, rank: int) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(gram)[1]
    return vectors[:, -rank:].flip(1)


def root_of(metric: Tensor) -> Tensor:
    """Return the symmetric square root of a positive semidefinite matrix.

    Parameters
    ----------
    metric : Tensor, shape (n, n)
        Symmetric; eigenvalues that rounding has made negative count as zero.

    Returns
    -------
    Tensor
        (n, n).

    Examples
    --------
    >>> root_of(torch.tensor([[4.0, 0.0], [0.0, 9.0]])).round(decimals=4)
    tensor([[2., 0.],
            [0., 3.]])
    """
    values, vectors = torch.linalg.eigh(metric)
    root: Tensor = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
    return root
