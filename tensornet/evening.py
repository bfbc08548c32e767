"""The symmetric gauge through Gram matrices, for cores that will be stored in a narrow type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.canonical import absorb_left, absorb_right, cols_matrix, rows_matrix
from tensornet.eigen import eigenpairs
from tensornet.gram import gram_matrix
from tensornet.linalg import fix_signs
from tensornet.typing import Array, Cores

Numbers = np.ndarray[Any, Any]

# Share of the largest singular value below which a Gram matrix in double precision says nothing.
# Smaller values count as that large: whatever a side is divided by, its neighbour is multiplied
# by, so that only the even split of what is below single precision is lost.
_FLOOR = 1e-8


def evened(cores: Cores, center: int, backend: Backend) -> Cores | None:
    """Return the symmetric gauge in double precision, or None without convergence.

    Cores left and right of ``center`` are isometric, so that the singular values of a bond are
    those of its core nearest to the center. A Gram matrix gives them to 1e-8 of the largest one
    in a tenth of the time of QR and SVD.

    Source: Vidal 2003, equation 9, with the values split evenly.
    """
    found = _roots(cores, center, backend)
    if found is None:
        return None
    bases, roots = found
    n = len(cores)
    made = []
    for k, given in enumerate(cores):
        core = backend.cast(given, work_dtype(dtype_name(given)))
        # One product for each side both turns into the basis of the bond and splits its weight.
        if k > 0:
            left = roots[k] if k > center else 1.0 / roots[k]
            factor = backend.like(left, core)[:, None] * backend.adjoint(bases[k])
            core = absorb_left(factor, core, backend)
        if k < n - 1:
            right = roots[k + 1] if k < center else 1.0 / roots[k + 1]
            core = absorb_right(core, bases[k + 1] * backend.like(right, core), backend)
        made.append(core)
    return tuple(made)


def _roots(
    cores: Cores, center: int, backend: Backend
) -> tuple[dict[int, Array], dict[int, Numbers]] | None:
    """Return for each inner bond its singular vectors and the roots of its singular values."""
    bases: dict[int, Array] = {}
    roots: dict[int, Numbers] = {}
    for k in (*range(center, 0, -1), *range(center + 1, len(cores))):
        before = k <= center
        near = cores[k if before else k - 1]
        beyond = k + 1 if before else k - 1
        if beyond in bases and k != center and k != center + 1:
            weights = bases[beyond] * backend.like(roots[beyond] ** 2, near)
            near = backend.cast(near, dtype_name(weights))
            near = (
                absorb_right(near, weights, backend)
                if before
                else absorb_left(backend.adjoint(weights), near, backend)
            )
        seen = cols_matrix(near, backend) if before else rows_matrix(near, backend)
        found = _schmidt(seen if before else backend.adjoint(seen), backend)
        if found is None:
            return None
        bases[k], roots[k] = found
    return bases, roots


def _schmidt(a: Array, backend: Backend) -> tuple[Array, Numbers] | None:
    """Return the left singular vectors of a wide matrix and the roots of its singular values."""
    found = eigenpairs(gram_matrix(a, backend), backend)
    if found is None:
        return None
    weights, vectors = found
    values = np.sqrt(weights)
    largest = float(values.max(initial=0.0))
    values = np.maximum(values, _FLOOR * largest) if largest > 0.0 else np.ones_like(values)
    return fix_signs(vectors, backend), np.sqrt(values)
