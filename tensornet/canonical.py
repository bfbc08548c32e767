"""Gauges of a chain of cores (left, site, right): isometric forms, center moves, spectra."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet.backend import Backend
from tensornet.linalg import positive_qr, thin_svd
from tensornet.typing import Array, Cores


def rows_matrix(core: Array, backend: Backend) -> Array:
    """Return a core (left, site, right) as the matrix (left * site, right)."""
    left, site, right = (int(d) for d in core.shape)
    return backend.tl.reshape(core, (left * site, right))


def cols_matrix(core: Array, backend: Backend) -> Array:
    """Return a core (left, site, right) as the matrix (left, site * right)."""
    left, site, right = (int(d) for d in core.shape)
    return backend.tl.reshape(core, (left, site * right))


def absorb_left(factor: Array, core: Array, backend: Backend) -> Array:
    """Return the core (left, site, right) with ``factor`` (new, left) on its left."""
    site, right = (int(d) for d in core.shape[1:])
    return backend.tl.reshape(factor @ cols_matrix(core, backend), (-1, site, right))


def absorb_right(core: Array, factor: Array, backend: Backend) -> Array:
    """Return the core (left, site, right) with ``factor`` (right, new) on its right."""
    left, site = (int(d) for d in core.shape[:2])
    return backend.tl.reshape(rows_matrix(core, backend) @ factor, (left, site, -1))


def move_right(cores: Cores, k: int, backend: Backend) -> Cores:
    """Return the cores with core k made left-isometric and its rest moved into core k + 1."""
    left, site = (int(d) for d in cores[k].shape[:2])
    q, r = positive_qr(rows_matrix(cores[k], backend), backend)
    pair = (backend.tl.reshape(q, (left, site, -1)), absorb_left(r, cores[k + 1], backend))
    return (*cores[:k], *pair, *cores[k + 2 :])


def move_left(cores: Cores, k: int, backend: Backend) -> Cores:
    """Return the cores with core k made right-isometric and its rest moved into core k - 1."""
    site, right = (int(d) for d in cores[k].shape[1:])
    q, r = positive_qr(backend.adjoint(cols_matrix(cores[k], backend)), backend)
    core = backend.tl.reshape(backend.adjoint(q), (-1, site, right))
    before = absorb_right(cores[k - 1], backend.adjoint(r), backend)
    return (*cores[: k - 1], before, core, *cores[k + 1 :])


def move_center(cores: Cores, center: int | None, target: int, backend: Backend) -> Cores:
    """Return the cores in mixed-canonical form with the norm in core ``target``.

    Cores left of it are left-isometric, cores right of it right-isometric. ``center`` is where
    the norm sits now, or None where no isometries can be relied on.

    Source: Schollwoeck 2011, section 4.4.
    """
    left_of, right_of = (0, len(cores) - 1) if center is None else (center, center)
    for k in range(left_of, target):
        cores = move_right(cores, k, backend)
    for k in range(right_of, target, -1):
        cores = move_left(cores, k, backend)
    return cores


def gather_step(cores: Cores, k: int, backend: Backend) -> tuple[Cores, float]:
    """Return the cores with core k made right-isometric, and how much larger its parts were.

    At the bond parts meet that may cancel: this is the ratio of their norm, added in squares,
    to the norm of what came out.
    """
    before, (site, right) = cores[k - 1], (int(d) for d in cores[k].shape[1:])
    q, r = positive_qr(backend.adjoint(cols_matrix(cores[k], backend)), backend)
    core = backend.tl.reshape(backend.adjoint(q), (-1, site, right))
    after = absorb_right(before, backend.adjoint(r), backend)
    growth = _growth(rows_matrix(before, backend), r, rows_matrix(after, backend), backend)
    return (*cores[: k - 1], after, core, *cores[k + 1 :]), growth


def _growth(before: Array, r: Array, after: Array, backend: Backend) -> float:
    """Return the norm of the parts ``before * r`` over that of their sum ``after``."""
    largest = [float(backend.numbers(backend.tl.max(backend.tl.abs(a)))) for a in (before, r)]
    if not 0.0 < min(largest) <= max(largest) < np.inf:
        return 1.0
    near_one = before / largest[0], r / largest[1], after / largest[0] / largest[1]
    norms = (backend.tl.sum(backend.tl.abs(a) ** 2, axis=0) for a in near_one)
    parts, weights, sums = (backend.numbers(a) for a in norms)
    met, came = float(parts @ weights), float(sums.sum())
    return float(np.sqrt(met / came)) if came > met * 2.0**-200 else 2.0**100


def schmidt_form(
    cores: Cores, center: int | None, backend: Backend
) -> tuple[Cores, list[np.ndarray[Any, Any]]]:
    """Return left-isometric cores in the Schmidt bases of all bonds, and the spectra.

    The norm sits in the last core; entry k - 1 of the list holds the singular values of bond k.
    """
    cores = move_center(cores, center, 0, backend)
    spectra = []
    for k in range(len(cores) - 1):
        left, site = (int(d) for d in cores[k].shape[:2])
        u, s, vh = thin_svd(rows_matrix(cores[k], backend), backend)
        spectra.append(s)
        rest = absorb_left(backend.like(s, vh)[:, None] * vh, cores[k + 1], backend)
        cores = (*cores[:k], backend.tl.reshape(u, (left, site, -1)), rest, *cores[k + 2 :])
    return cores, spectra


def symmetric(cores: Cores, center: int | None, backend: Backend) -> Cores:
    """Return the cores with the square roots of the singular values on both sides of each bond.

    From the Schmidt form, core_k = l_{k-1}^(-1/2) A_k l_k^(1/2). The division is harmless:
    what a small singular value magnifies, its own square root on the other side damps again.
    Values at the level of the SVD's own noise carry nothing: they are taken as zero, and so is
    their inverse.

    Source: Vidal 2003, equation 9, with the values split evenly.
    """
    cores, spectra = schmidt_form(cores, center, backend)
    one = np.ones(1)
    roots = [one, *(np.sqrt(_denoised(s)) for s in spectra), one]
    inverses = [np.divide(1.0, r, out=np.zeros_like(r), where=r > 0) for r in roots]
    return tuple(
        backend.like(inverses[k], core)[:, None, None] * core * backend.like(roots[k + 1], core)
        for k, core in enumerate(cores)
    )


def _denoised(s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(s > 4.0 * 2.0**-52 * len(s) * s.max(initial=0.0), s, 0.0)


def bond_spectrum(
    cores: Cores, center: int | None, bond: int, backend: Backend
) -> np.ndarray[Any, Any]:
    """Return the singular values of the unfolding at bond k (1 to n - 1), descending."""
    core = move_center(cores, center, bond - 1, backend)[bond - 1]
    return thin_svd(rows_matrix(core, backend), backend)[1]
