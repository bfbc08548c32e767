"""The symmetric gauge through Gram matrices, for cores that will be stored in a narrow type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name, n_elements, work_dtype
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
# Elements of a core from which its products are formed a slice at a time.
_LARGE = 2**18


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
    for k, core in enumerate(cores):
        # One product for each side both turns into the basis of the bond and splits its weight.
        left = right = None
        if k > 0:
            weights = roots[k] if k > center else 1.0 / roots[k]
            left = backend.like(weights, core)[:, None] * backend.adjoint(bases[k])
        if k < n - 1:
            weights = roots[k + 1] if k < center else 1.0 / roots[k + 1]
            right = bases[k + 1] * backend.like(weights, core)
        made.append(_between(left, core, right, backend))
    return tuple(made)


def _between(left: Array | None, core: Array, right: Array | None, backend: Backend) -> Array:
    """Return a core with factors on its sides, in double precision."""
    work = work_dtype(dtype_name(core))
    if left is not None and right is not None and n_elements(core) >= _LARGE:
        return _in_slices(left, core, right, backend)
    core = backend.cast(core, work)
    if left is not None:
        core = absorb_left(left, core, backend)
    return core if right is None else absorb_right(core, right, backend)


def _in_slices(left: Array, core: Array, right: Array, backend: Backend) -> Array:
    """Return a large core between two factors, site index by site index.

    What lies between the two products stays in the cache, and only the result takes memory in
    double precision.
    """
    work, site = work_dtype(dtype_name(core)), int(core.shape[1])
    found = backend.zeros((int(left.shape[0]), site, int(right.shape[1])), left)
    for k in range(site):
        found[:, k] = left @ backend.cast(core[:, k], work) @ right
    return found


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
