"""From both ends to the middle: the decomposition of a tensor on plain arrays.

Each step replaces what is left of the tensor by its projection on an orthonormal basis of its
small side. Every discarded part is orthogonal to all that is kept and to the other discarded
parts, so the squared error is exactly the sum of the discarded weights.
Source: Oseledets 2011, theorem 2.2, whose bound becomes an equality here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.bonds import structural_bonds
from tensornet.linalg import side_basis
from tensornet.truncation import Cut, Limits
from tensornet.typing import Array, Cores


class Record(NamedTuple):
    """What each bond (1 to n - 1) discarded, and the squared singular values seen there.

    Squared and absolute. A bond whose full rank was proven without a spectrum has no weights.
    """

    discarded: dict[int, float]
    weights: dict[int, np.ndarray[Any, Any]]

    def note(self, bond: int, cut: Cut, weights: np.ndarray[Any, Any] | None) -> None:
        """Enter what happened at a bond."""
        self.discarded[bond] = cut.discarded
        if weights is not None:
            self.weights[bond] = weights


class Swept(NamedTuple):
    """Cores (left, site, right) with the norm at ``center``, and the record of the bonds."""

    cores: Cores
    center: int
    record: Record


def meeting_site(site_dims: tuple[int, ...]) -> int:
    """Return the site where both sides are small: no step ever sees a tall full unfolding.

    For balanced sites this is the central one, n // 2.

    Examples
    --------
    >>> meeting_site((16, 16, 9, 16, 16)), meeting_site((4, 4, 10, 2835)), meeting_site((8, 8))
    (2, 3, 1)
    """
    n = len(site_dims)
    lefts = _products(site_dims)
    rights = _products(site_dims[::-1])[::-1]
    lowest = max((k for k in range(1, n) if lefts[k] < rights[k]), default=0)
    highest = min((k for k in range(1, n) if lefts[k] > rights[k]), default=n) - 1
    return min(max(n // 2, lowest), highest)


def sweep(tensor: Array, limits: Limits, backend: Backend) -> Swept:
    """Return the decomposition of a tensor (p1, ..., pn) in double precision under limits."""
    sites = tuple(int(d) for d in tensor.shape)
    meeting = meeting_site(sites)
    record = Record({}, {})
    left_cores, right_cores = [], []
    left, right = 1, 1
    for k in range(meeting):
        rest = backend.tl.reshape(tensor, (left * sites[k], -1))
        basis = side_basis(rest, limits.rule(k + 1, record.discarded), limits.lossless, backend)
        vectors, tensor = _project(basis.vectors, rest, backend)
        left_cores.append(backend.tl.reshape(vectors, (left, sites[k], -1)))
        record.note(k + 1, basis.cut, basis.weights)
        left = basis.cut.kept
    for k in range(len(sites) - 1, meeting, -1):
        rest = backend.matrix_transpose(backend.tl.reshape(tensor, (-1, sites[k] * right)))
        basis = side_basis(rest, limits.rule(k, record.discarded), limits.lossless, backend)
        vectors, rest = _project(basis.vectors, rest, backend)
        tensor = backend.matrix_transpose(rest)
        core = backend.tl.reshape(backend.matrix_transpose(vectors), (-1, sites[k], right))
        right_cores.append(core)
        record.note(k, basis.cut, basis.weights)
        right = basis.cut.kept
    middle = backend.tl.reshape(tensor, (left, sites[meeting], right))
    cores = (*left_cores, middle, *right_cores[::-1])
    return Swept(cores, meeting, record)


def identity_cores(tensor: Array, backend: Backend) -> tuple[Cores, int]:
    """Return a decomposition without any arithmetic, and the site that holds all entries.

    All other cores are reshaped identities. The input's own element type is kept.
    """
    sites = tuple(int(d) for d in tensor.shape)
    bonds = structural_bonds(sites)
    meeting = meeting_site(sites)
    cores = [
        backend.tl.reshape(
            backend.identity(max(bonds[k], bonds[k + 1]), tensor), (bonds[k], site, bonds[k + 1])
        )
        for k, site in enumerate(sites)
        if k != meeting
    ]
    middle = backend.tl.reshape(tensor, (bonds[meeting], sites[meeting], bonds[meeting + 1]))
    return (*cores[:meeting], middle, *cores[meeting:]), meeting


def _products(dims: tuple[int, ...]) -> list[int]:
    total = [1]
    for d in dims:
        total.append(total[-1] * d)
    return total


def _project(vectors: Array | None, rest: Array, backend: Backend) -> tuple[Array, Array]:
    if vectors is None:
        return backend.identity(int(rest.shape[0]), rest), rest
    return vectors, backend.adjoint(vectors) @ rest
