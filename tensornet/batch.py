"""The decomposition of many matrices of one shape, with common bonds.

On the host every matrix goes through the sweep of a single one, which is as fast as a loop can
be; on a device whole stacks go through stacked linear algebra. Either way a first pass finds
what the most demanding matrix needs, and only matrices that kept less go through a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, n_elements, work_dtype
from tensornet.canonical import symmetric
from tensornet.certificate import Certificate, without_padding
from tensornet.cores import relative_distance
from tensornet.errors import OptionError, ToleranceError, complaint
from tensornet.layout import MatrixLayout
from tensornet.limits import DOUBLE, certify, make_limits, within
from tensornet.single import Request, decompose_tensor, requested_caps
from tensornet.stack import MPOBatch, contract_stack, fold_stack, split_stack
from tensornet.stack_storage import NearOne, Numbers, narrowed_stack, near_one
from tensornet.stack_sweep import SweptStack, move_centers, sweep_stack
from tensornet.storage import in_double
from tensornet.sweep import Swept, sweep
from tensornet.truncation import Limits
from tensornet.typing import Array, Cores

# Elements of a stack that are worked on at once: half a gigabyte in double precision.
_AT_ONCE = 2**26


class _Job(NamedTuple):
    """What is the same for all matrices."""

    layout: MatrixLayout
    request: Request
    dtype: str
    backend: Backend
    stacked: bool


class _Part(NamedTuple):
    """Some of the matrices, done: cores (batch, left, site, right) and what is known of them.

    ``met`` is whether all of them keep the tolerance, if there is one.
    """

    cores: Cores
    center: int | None
    certificates: list[Certificate]
    bonds: tuple[int, ...]
    met: bool


def single_only(**asked: bool) -> None:
    """Raise OptionError if something was asked for that only single matrices offer."""
    for option, given in asked.items():
        if given:
            remedy = "Decompose the matrices one by one: [tn.mpo(M, ...) for M in W]."
            raise OptionError(complaint(option, "be left out for a 3-D W", "it", remedy))


def decompose_batch(
    matrices: Array,
    layout: MatrixLayout,
    request: Request,
    backend: Backend,
    stacked: bool | None = None,
) -> MPOBatch:
    """Return the MPOs, with common bonds, of finite matrices (batch, rows, cols).

    The bonds are what the most demanding matrix needs under the request. ``stacked`` says
    whether stacked linear algebra is used; by default where it is faster.

    Raises
    ------
    BondError, OptionError, ToleranceError
        As for a single matrix; the matrix that cannot keep the tolerance is named.
    """
    if request.gauge == "identity":
        return _without_arithmetic(matrices, layout, request, backend)
    caps, forced = requested_caps(layout.site_dims, request)
    if stacked is None:
        # With a tolerance all matrices see each spectrum once; a second pass would cost another.
        stacked = "cpu" not in backend.place(matrices).lower() or request.rtol is not None
    job = _Job(layout, request, dtype_name(matrices), backend, stacked)
    pieces = _pieces(matrices, stacked)
    parts = [_decompose(piece, caps, forced, job) for piece in pieces]
    common = _most(part.bonds for part in parts)
    again = [k for k, part in enumerate(parts) if part.bonds != common or not part.met]
    while again:
        for k in again:
            parts[k] = _decompose(pieces[k], common, True, job)
        # Larger bonds at one place may move weight to another, if hardly ever: give more room.
        room = zip(common, caps, strict=True)
        common = (
            common if all(p.met for p in parts) else tuple(min(b + 1 + b // 16, c) for b, c in room)
        )
        again = [k for k, part in enumerate(parts) if part.bonds != common]
    return _assembled(parts, job)


def _assembled(parts: Sequence[_Part], job: _Job) -> MPOBatch:
    certificates = tuple(c for part in parts for c in part.certificates)
    cores = parts[0].cores
    if len(parts) > 1:
        stacks = zip(*(part.cores for part in parts), strict=True)
        cores = tuple(job.backend.tl.concatenate(list(stack), axis=0) for stack in stacks)
    split = split_stack(cores, job.layout, job.backend)
    return MPOBatch._from(split, job.layout, parts[0].center, certificates)


def _pieces(matrices: Array, stacked: bool) -> list[Array]:
    n = int(matrices.shape[0])
    size = max(1, _AT_ONCE * n // n_elements(matrices)) if stacked else 1
    return [matrices[start : start + size] for start in range(0, n, size)]


def _decompose(matrices: Array, caps: tuple[int, ...], forced: bool, job: _Job) -> _Part:
    """Return the decomposition of some matrices under caps, or at exactly the caps."""
    backend, layout, rtol = job.backend, job.layout, job.request.rtol
    folded = fold_stack(matrices, layout, backend)
    data = near_one(backend.cast(folded, work_dtype(job.dtype)), backend)
    limits = [make_limits(caps, rtol, job.dtype, float(w), forced=forced) for w in data.weights]
    swept = _sweep(data.tensors, limits, job)
    bonds = (*(int(core.shape[1]) for core in swept.cores), 1)
    met = True
    if rtol is not None:
        met, bonds = _needed(swept, bonds, data, limits, job)
    cores, center = _gauged(swept, job)
    factors = _factors(layout.n_sites, center, data.scales)
    stored, storage = narrowed_stack(cores, job.dtype, backend, factors)
    certificates = [
        certify(Swept(cores, swept.center, record), float(weight), float(error), float(scale))
        for record, weight, error, scale in zip(
            swept.records, data.weights, storage, data.scales, strict=True
        )
    ]
    if layout.padded:
        certificates = _inside(certificates, stored, matrices, job)
    return _Part(stored, center, certificates, bonds, met)


def _sweep(tensors: Array, limits: Sequence[Limits], job: _Job) -> SweptStack:
    if job.stacked:
        return sweep_stack(tensors, limits, job.backend, narrow=job.dtype not in DOUBLE)
    one = sweep(tensors[0], limits[0], job.backend)
    return SweptStack(tuple(core[None] for core in one.cores), one.center, [one.record])


def _needed(
    swept: SweptStack, bonds: tuple[int, ...], data: NearOne, limits: Sequence[Limits], job: _Job
) -> tuple[bool, tuple[int, ...]]:
    """Return whether all matrices keep the tolerance, and the bonds with which they do.

    Raises
    ------
    ToleranceError
        If one cannot under the caps.
    """
    met = True
    for k, (record, limit) in enumerate(zip(swept.records, limits, strict=True)):
        if limit.kept(record.discarded):
            continue
        met = False
        if limit.forced:
            continue
        run = partial(_sweep_one, data.tensors[k], job.backend)
        try:
            own = within(limit, run, job.request.rtol, float(data.weights[k]))
        except ToleranceError as error:
            raise ToleranceError(f"W[{k}]: {error}") from None
        bonds = _most([bonds, (*(int(core.shape[0]) for core in own.cores), 1)])
    return met, bonds


def _sweep_one(tensor: Array, backend: Backend, rule: Limits) -> Swept:
    return sweep(tensor, rule, backend)


def _most(bonds: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(column) for column in zip(*bonds, strict=True))


def _gauged(swept: SweptStack, job: _Job) -> tuple[Cores, int | None]:
    n, gauge, backend = job.layout.n_sites, job.request.gauge, job.backend
    if gauge != "symmetric":
        target = {"central": n // 2, "left": n - 1, "right": 0}[gauge]
        return move_centers(swept.cores, swept.center, target, backend), target
    batch = int(swept.cores[0].shape[0])
    each = [
        symmetric(tuple(core[k] for core in swept.cores), swept.center, backend)
        for k in range(batch)
    ]
    return tuple(backend.tl.stack(list(stack)) for stack in zip(*each, strict=True)), None


def _factors(n: int, center: int | None, scales: Numbers) -> list[Numbers | None]:
    """Return by how much each core is multiplied to give the data their scales back."""
    factors: list[Numbers | None] = [None] * n
    if center is not None or n == 1:
        factors[center or 0] = scales
    else:
        # In the symmetric gauge half of the scale belongs to each end of the chain.
        factors[0] = factors[-1] = np.sqrt(scales)
    return factors


def _inside(
    certificates: Sequence[Certificate], cores: Cores, matrices: Array, job: _Job
) -> list[Certificate]:
    """Return the certificates of padded matrices, with errors measured without the padding."""
    backend, (_, wide) = job.backend, in_double(cores)
    rebuilt = contract_stack(split_stack(wide, job.layout, backend), job.layout, backend)
    exact = backend.cast(matrices, work_dtype(job.dtype))
    return [
        without_padding(certificate, relative_distance(rebuilt[k], exact[k]))
        for k, certificate in enumerate(certificates)
    ]


def _without_arithmetic(
    matrices: Array, layout: MatrixLayout, request: Request, backend: Backend
) -> MPOBatch:
    made = [decompose_tensor(layout.fold(matrix), request, backend) for matrix in matrices]
    cores = tuple(
        backend.tl.stack(list(stack)) for stack in zip(*(m.cores for m in made), strict=True)
    )
    certificates = tuple(m.certificate for m in made)
    return MPOBatch._from(split_stack(cores, layout, backend), layout, made[0].center, certificates)
