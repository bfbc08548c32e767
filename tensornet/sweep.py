"""From both ends to the middle: the decomposition of a tensor on plain arrays.

Each step replaces what is left of the tensor by its projection on an orthonormal basis of its
small side. Every discarded part is orthogonal to all that is kept and to the other discarded
parts, so the squared error is exactly the sum of the discarded weights.
Source: Oseledets 2011, theorem 2.2, whose bound becomes an equality here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name
from tensornet.bonds import structural_bonds
from tensornet.gram import projected, row_weights, square_norm
from tensornet.linalg import SideBasis, gram_basis
from tensornet.narrow import NARROW, narrow_basis, single_basis
from tensornet.truncation import Cut, Limits, Truncation, tail_weights
from tensornet.typing import Array, Cores

# Vectors of the whole tensor serve as long as no more than this share of its weight is gone:
# they then cost less than this share more than the best ones would.
_NEAR = 0.02
_NOTHING: Mapping[int, Known] = MappingProxyType({})


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


class Known(NamedTuple):
    """A Gram matrix of the whole tensor's rows at a bond, and its eigenpairs."""

    gram: Array
    pairs: tuple[np.ndarray[Any, Any], Array] | None


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


def sweep(
    tensor: Array,
    limits: Limits,
    backend: Backend,
    total: float | None = None,
    known: Mapping[int, Known] = _NOTHING,
) -> Swept:
    """Return the decomposition of a tensor (p1, ..., pn) under limits.

    The cores are in double precision; those of data in single precision may be in single
    precision where so much is cut that it makes no difference. ``total`` is the squared norm,
    if it is known, and ``known`` what was found out about bonds before.
    """
    sites = tuple(int(d) for d in tensor.shape)
    meeting = meeting_site(sites)
    state = _Rest(tensor, limits, backend, total, known)
    left_cores, right_cores = [], []
    left, right = 1, 1
    for k in range(meeting):
        state.tensor = backend.tl.reshape(state.tensor, (left * sites[k], -1))
        vectors = state.cut(k + 1)
        left_cores.append(backend.tl.reshape(vectors, (left, sites[k], -1)))
        left = int(vectors.shape[1])
    for k in range(len(sites) - 1, meeting, -1):
        flat = backend.tl.reshape(state.tensor, (-1, sites[k] * right))
        state.tensor = backend.matrix_transpose(flat)
        vectors = state.cut(k, tall=True)
        state.tensor = backend.matrix_transpose(state.tensor)
        core = backend.tl.reshape(backend.matrix_transpose(vectors), (-1, sites[k], right))
        right_cores.append(core)
        right = int(vectors.shape[1])
    middle = backend.tl.reshape(state.tensor, (left, sites[meeting], right))
    cores = (*left_cores, middle, *right_cores[::-1])
    return Swept(cores, meeting, state.record)


class _Rest:
    """What is left of a tensor, as a wide matrix, and the record of the cuts so far."""

    def __init__(
        self,
        tensor: Array,
        limits: Limits,
        backend: Backend,
        total: float | None,
        known: Mapping[int, Known],
    ) -> None:
        self.tensor = tensor
        self.record = Record({}, {})
        self._limits, self._backend, self._known = limits, backend, known
        self._total = self._weight = square_norm(tensor, backend) if total is None else total

    def cut(self, bond: int, *, tall: bool = False) -> Array:
        """Replace the matrix by its projection on the basis of its rows, and return the basis.

        ``tall`` says that the matrix is the transposed view of a tall one.
        """
        rule = self._limits.rule(bond, self.record.discarded)
        basis = self._recalled(bond, rule)
        if basis is None:
            basis = narrow_basis(self.tensor, rule, self._limits.lossless, self._backend)
        vectors, cut = basis.vectors, basis.cut
        m = int(self.tensor.shape[0])
        if vectors is None or int(vectors.shape[1]) == m:
            self.record.note(bond, cut, basis.weights)
            return self._backend.identity(m, self.tensor)
        self.tensor = projected(vectors, self.tensor, self._backend, tall=tall)
        if dtype_name(vectors) in NARROW:
            vectors, cut = self._measured(vectors, rule)
        else:
            self._weight -= cut.discarded
        self.record.note(bond, cut, basis.weights)
        return vectors

    def _recalled(self, bond: int, rule: Truncation) -> SideBasis | None:
        """Return the basis from what is known of the whole tensor, where that still holds."""
        known = self._known.get(bond)
        lost = self._total - self._weight
        if known is None or known.pairs is None or self._limits.forced:
            return None
        if int(known.gram.shape[0]) != int(self.tensor.shape[0]):
            return None
        if dtype_name(known.gram) in NARROW:
            near = lost <= _NEAR * self._total
            return single_basis(known.gram, known.pairs, rule, self._backend) if near else None
        return gram_basis(known.gram, known.pairs, rule, self._backend) if lost == 0.0 else None

    def _measured(self, vectors: Array, rule: Truncation) -> tuple[Array, Cut]:
        """Return vectors and cut with the weight that is really missing after the projection.

        Where less is missing than the rule allows, the last vectors may go too.
        """
        backend = self._backend
        rows = row_weights(self.tensor, backend)
        room = 0.0 if rule.forced else rule.allowed - (self._weight - float(rows.sum()))
        kept = max(int(np.argmax(tail_weights(rows) <= max(room, 0.0))), 1)
        kept = len(rows) if rule.forced else kept
        if kept < len(rows):
            vectors, self.tensor = vectors[:, :kept], self.tensor[:kept]
        left = float(rows[:kept].sum())
        discarded = max(self._weight - left, 0.0)
        self._weight = left
        return vectors, Cut(kept, discarded)


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
