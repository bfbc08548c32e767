"""The decomposition of many matrices of one shape, with common bonds.

On the host every matrix goes through the decomposition of a single one, which is as fast as a
loop can be; on a device whole stacks go through stacked linear algebra. A matrix that needs
less than the most demanding one is filled up: isometric cores stay so, the rest is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tensornet.backend import (
    Backend,
    dtype_name,
    load_backend,
    shared_with_numpy,
    work_dtype,
)
from tensornet.bonds import late_bonds, structural_bonds
from tensornet.canonical import symmetric
from tensornet.certificate import Certificate, without_padding
from tensornet.cores import relative_distance
from tensornet.errors import OptionError, ToleranceError, complaint
from tensornet.fitting import Found
from tensornet.interleave import fold_into
from tensornet.layout import MatrixLayout
from tensornet.limits import DOUBLE, certify, make_limits
from tensornet.single import (
    Looked,
    Made,
    Request,
    decompose_looked,
    decompose_tensor,
    requested_caps,
)
from tensornet.stack import MPOBatch, contract_stack, split_stack
from tensornet.stack_bonds import Job, Seen, each_of, near_ones, pieces_of, with_common_bonds
from tensornet.stack_storage import Numbers, filled_up, narrowed_stack
from tensornet.stack_sweep import SweptStack, move_centers, sweep_stack
from tensornet.storage import carried, in_double
from tensornet.sweep import Swept, meeting_site
from tensornet.typing import Array, Cores


class _Part(NamedTuple):
    """Some of the matrices, done: cores (batch, left, site, right) and what is known of them."""

    cores: Cores
    center: int | None
    certificates: list[Certificate]

    @property
    def bonds(self) -> tuple[int, ...]:
        return (*(int(core.shape[1]) for core in self.cores), 1)


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
    whether stacked linear algebra is used; by default on devices.

    Raises
    ------
    BondError, OptionError, ToleranceError
        As for a single matrix; the matrix that cannot keep the tolerance is named.
    """
    job = Job(layout, request, dtype_name(matrices), backend)
    host = None if stacked else shared_with_numpy(matrices, backend)
    if host is None:
        return _assembled(_parts(matrices, job, stacked), job)
    parts = [
        part._replace(cores=tuple(backend.like(core, matrices) for core in part.cores))
        for part in _parts(host, job._replace(backend=load_backend("numpy")), stacked)
    ]
    return _assembled(parts, job)


def _parts(matrices: Array, job: Job, stacked: bool | None) -> list[_Part]:
    """Return the decompositions, all with the bonds of the most demanding matrix."""
    request, n = job.request, int(matrices.shape[0])
    if stacked is None:
        stacked = "cpu" not in job.backend.place(matrices).lower()
    stacked = stacked and request.gauge != "identity" and n > 1
    seen: Seen = {}
    budgeted = (request.max_params, request.rtol) != (None, None)
    if n > 1 and budgeted and request.gauge != "identity":
        job = job._replace(request=with_common_bonds(matrices, job, seen, stacked=stacked))
    if stacked:
        parts = [_stacked(piece, job) for piece in pieces_of(matrices, job)]
    else:
        parts = [_one_by_one(matrices, job, seen)]
    common = _most(part.bonds for part in parts)
    return [_with_bonds(part, common, job) for part in parts]


def _one_by_one(matrices: Array, job: Job, seen: Seen | None = None) -> _Part:
    """Return the decomposition of each matrix, written to its place in the stacks at once.

    Nothing is kept of a matrix that was ``seen`` before once it is done.
    """
    n, seen = int(matrices.shape[0]), seen or {}
    first = _single(matrices[0], 0, job, seen.pop(0, None))
    cores: Cores = tuple(_room(core, n) for core in first.cores)
    apart: dict[int, Cores] = {}  # those whose bonds are not the first one's

    def work(k: int) -> Certificate:
        one = first
        if k:
            place = _place(cores, k, matrices[k], job.layout)
            one = _single(matrices[k], k, job, seen.pop(k, None), place)
        _store(one.cores, k, cores, apart)
        return one.certificate

    certificates = each_of(work, range(n), matrices)
    if apart:
        cores = _with_room(cores, apart, first.center, job)
    part = _Part(cores, first.center, certificates)
    return _inside(part, matrices, job) if job.layout.padded else part


def _store(one: Cores, k: int, cores: Cores, apart: dict[int, Cores]) -> None:
    """Put the cores of matrix ``k`` into the stacks, or apart where they do not fit."""
    if all(a.shape == b.shape[1:] for a, b in zip(one, cores, strict=True)):
        for stack, core in zip(cores, one, strict=True):
            if not _lies_in(stack, core):
                stack[k] = core
    else:
        apart[k] = one


def _room(core: Array, n: int) -> Array:
    """Return uninitialised memory for ``n`` cores."""
    shape = (n, *(int(d) for d in core.shape))
    return np.empty(shape, core.dtype) if isinstance(core, np.ndarray) else core.new_empty(shape)


def _with_room(cores: Cores, apart: dict[int, Cores], center: int | None, job: Job) -> Cores:
    """Return stacks with bonds that suit all: those that are stacked, and those apart."""
    n = int(cores[0].shape[0])
    chains = [apart.get(k) or tuple(core[k] for core in cores) for k in range(n)]
    common = _most((*(int(core.shape[0]) for core in chain), 1) for chain in chains)
    filled = [filled_up(chain, common, center, job.backend) for chain in chains]
    return tuple(job.backend.tl.stack(list(stack)) for stack in zip(*filled, strict=True))


def _place(cores: Cores, k: int, matrix: Array, layout: MatrixLayout) -> Array | None:
    """Return the memory of a central core that will hold the whole matrix, where there is one."""
    middle = cores[layout.n_sites // 2][k] if cores else None
    if not isinstance(middle, np.ndarray) or middle.size != matrix.size:
        return None
    plain = matrix.flags.c_contiguous and matrix.dtype == middle.dtype
    return middle.reshape(layout.site_dims) if plain and not layout.padded else None


def _lies_in(stack: Array, core: Array) -> bool:
    return isinstance(core, np.ndarray) and np.may_share_memory(stack, core)


def _single(
    matrix: Array, k: int, job: Job, looked: Looked | Found | None, place: Array | None = None
) -> Made:
    """Return the decomposition of a matrix; its core may then lie where it was folded to."""
    try:
        if isinstance(looked, Found):
            looked = Looked(*carried(job.layout.fold(matrix), job.backend), looked)
        if looked is not None:
            return _cut(looked, job)
        folded = place
        if folded is None:
            folded = job.layout.fold(matrix)
        else:
            fold_into(folded, matrix, job.layout.row_dims, job.layout.col_dims)
        return decompose_tensor(folded, job.request, job.backend, fresh=True)
    except ToleranceError as error:
        raise type(error)(f"W[{k}]: {error}") from None


def _cut(looked: Looked, job: Job) -> Made:
    caps, forced = requested_caps(job.layout.site_dims, job.request)
    return decompose_looked(
        looked, caps, job.request, job.dtype, job.backend, forced=forced, fresh=True
    )


def _stacked(matrices: Array, job: Job) -> _Part:
    """Return the decomposition of some matrices by stacked linear algebra."""
    backend, layout, request = job.backend, job.layout, job.request
    caps, forced = requested_caps(layout.site_dims, request)
    if late_bonds(layout.site_dims, caps, meeting_site(layout.site_dims))[0]:
        return _one_by_one(matrices, job)  # these have an order of their own
    data = near_ones(matrices, job)
    limits = [
        make_limits(caps, request.rtol, job.dtype, float(w), forced=forced) for w in data.weights
    ]
    # The bonds were chosen for all: a tolerance that is spent bond by bond might overdraw it.
    rules = [replace(limit, allowed=0.0) for limit in limits]
    swept = sweep_stack(data.tensors, rules, backend, narrow=job.dtype not in DOUBLE)
    kept = [r.kept(record.discarded) for r, record in zip(limits, swept.records, strict=True)]
    bonds = tuple(int(core.shape[1]) for core in swept.cores[1:])
    possible = structural_bonds(layout.site_dims, bonds) == (1, *bonds, 1)
    if not possible or (request.rtol is not None and not all(kept)):
        return _one_by_one(matrices, job)
    cores, center = _gauged(swept, job)
    factors = _factors(layout.n_sites, center, data.scales)
    stored, storage = narrowed_stack(cores, job.dtype, backend, factors)
    certificates = [
        certify(Swept(cores, swept.center, record), float(weight), float(error), float(scale))
        for record, weight, error, scale in zip(
            swept.records, data.weights, storage, data.scales, strict=True
        )
    ]
    part = _Part(stored, center, certificates)
    return _inside(part, matrices, job) if layout.padded else part


def _most(bonds: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(column) for column in zip(*bonds, strict=True))


def _with_bonds(part: _Part, bonds: tuple[int, ...], job: Job) -> _Part:
    if part.bonds == bonds:
        return part
    batch, stack = int(part.cores[0].shape[0]), job.backend.tl.stack
    each = [
        filled_up(tuple(core[k] for core in part.cores), bonds, part.center, job.backend)
        for k in range(batch)
    ]
    return part._replace(cores=tuple(stack(list(cores)) for cores in zip(*each, strict=True)))


def _assembled(parts: Sequence[_Part], job: Job) -> MPOBatch:
    certificates = tuple(c for part in parts for c in part.certificates)
    cores = parts[0].cores
    if len(parts) > 1:
        stacks = zip(*(part.cores for part in parts), strict=True)
        cores = tuple(job.backend.tl.concatenate(list(stack), axis=0) for stack in stacks)
    split = split_stack(cores, job.layout, job.backend)
    return MPOBatch._from(split, job.layout, parts[0].center, certificates)


def _gauged(swept: SweptStack, job: Job) -> tuple[Cores, int | None]:
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


def _inside(part: _Part, matrices: Array, job: Job) -> _Part:
    """Return the part with certificates for padded matrices: errors without the padding."""
    backend, (_, wide) = job.backend, in_double(part.cores)
    rebuilt = contract_stack(split_stack(wide, job.layout, backend), job.layout, backend)
    exact = backend.cast(matrices, work_dtype(job.dtype))
    certificates = [
        without_padding(certificate, relative_distance(rebuilt[k], exact[k]))
        for k, certificate in enumerate(part.certificates)
    ]
    return part._replace(certificates=certificates)
