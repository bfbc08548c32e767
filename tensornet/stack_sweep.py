"""From both ends to the middle, for many tensors of one shape at once.

The stacked counterpart of :mod:`tensornet.sweep`: at every bond all tensors keep as many values
as the most demanding one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.linalg import unit_phase
from tensornet.stack_bases import StackBasis, stack_basis
from tensornet.sweep import Record, meeting_site
from tensornet.truncation import Cut, Limits
from tensornet.typing import Array, Cores


class SweptStack(NamedTuple):
    """Cores (batch, left, site, right) with the norms at ``center``, one record per tensor."""

    cores: Cores
    center: int
    records: list[Record]


def sweep_stack(
    tensors: Array, limits: Sequence[Limits], backend: Backend, *, narrow: bool
) -> SweptStack:
    """Return the decompositions of tensors (batch, p1, ..., pn) in double precision.

    ``limits`` are one per tensor, with one list of caps; ``narrow`` as in
    :func:`tensornet.stack_bases.stack_basis`.
    """
    batch, *sites = (int(d) for d in tensors.shape)
    meeting = meeting_site(tuple(sites))
    records = [Record({}, {}) for _ in limits]
    lossless = all(limit.lossless for limit in limits)
    left_cores, right_cores = [], []
    left, right = 1, 1

    def basis_at(bond: int, rest: Array) -> StackBasis:
        pairs = zip(limits, records, strict=True)
        rules = [limit.rule(bond, record.discarded) for limit, record in pairs]
        basis = stack_basis(rest, rules, backend, lossless=lossless, narrow=narrow)
        for k, record in enumerate(records):
            record.note(bond, Cut(basis.kept, basis.discarded[k]), basis.weights[k])
        return basis

    for k in range(meeting):
        rest = backend.tl.reshape(tensors, (batch, left * sites[k], -1))
        basis = basis_at(k + 1, rest)
        vectors, tensors = _project(basis.vectors, rest, backend)
        left_cores.append(backend.tl.reshape(vectors, (batch, left, sites[k], -1)))
        left = basis.kept
    for k in range(len(sites) - 1, meeting, -1):
        rest = backend.matrix_transpose(backend.tl.reshape(tensors, (batch, -1, sites[k] * right)))
        basis = basis_at(k, rest)
        vectors, rest = _project(basis.vectors, rest, backend)
        tensors = backend.matrix_transpose(rest)
        core = backend.matrix_transpose(vectors)
        right_cores.append(backend.tl.reshape(core, (batch, -1, sites[k], right)))
        right = basis.kept
    middle = backend.tl.reshape(tensors, (batch, left, sites[meeting], right))
    return SweptStack((*left_cores, middle, *right_cores[::-1]), meeting, records)


def move_centers(cores: Cores, center: int, target: int, backend: Backend) -> Cores:
    """Return cores (batch, left, site, right) with the norms moved to core ``target``."""
    stacked = list(cores)
    for k in range(center, target):
        batch, left, site, _ = (int(d) for d in stacked[k].shape)
        q, r = _positive_qrs(backend.tl.reshape(stacked[k], (batch, left * site, -1)), backend)
        stacked[k] = backend.tl.reshape(q, (batch, left, site, -1))
        _, _, site, right = (int(d) for d in stacked[k + 1].shape)
        after = r @ backend.tl.reshape(stacked[k + 1], (batch, -1, site * right))
        stacked[k + 1] = backend.tl.reshape(after, (batch, -1, site, right))
    for k in range(center, target, -1):
        batch, left, site, right = (int(d) for d in stacked[k].shape)
        flat = backend.tl.reshape(stacked[k], (batch, left, site * right))
        q, r = _positive_qrs(backend.adjoint(flat), backend)
        stacked[k] = backend.tl.reshape(backend.adjoint(q), (batch, -1, site, right))
        _, before, site, _ = (int(d) for d in stacked[k - 1].shape)
        ahead = backend.tl.reshape(stacked[k - 1], (batch, before * site, -1))
        product = ahead @ backend.adjoint(r)
        stacked[k - 1] = backend.tl.reshape(product, (batch, before, site, -1))
    return tuple(stacked)


def _positive_qrs(a: Array, backend: Backend) -> tuple[Array, Array]:
    q, r = backend.tl.qr(a)
    diagonal = backend.tl.sum(r * backend.identity(int(r.shape[1]), r), axis=2)
    phase = np.conj(unit_phase(backend.numbers(diagonal)))
    signs = backend.like(phase[:, None, :], q)
    return q * signs, backend.like(np.conj(phase)[:, :, None], r) * r


def _project(vectors: Array | None, rest: Array, backend: Backend) -> tuple[Array, Array]:
    if vectors is None:
        batch, m = (int(d) for d in rest.shape[:2])
        # Multiplied on the device: a stack of identities made on the host would be sent there.
        return backend.like(np.ones((batch, 1, 1)), rest) * backend.identity(m, rest), rest
    return vectors, backend.adjoint(vectors) @ rest
