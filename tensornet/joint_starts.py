"""Where a joint decomposition begins: common sides, the mean's own chain, each matrix's own sides.

A start is a tuple of cores (batch or 1, left, site, right), as :mod:`tensornet.joint` has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensornet.canonical import move_center
from tensornet.joint import Joint
from tensornet.storage import in_double
from tensornet.sweep import sweep
from tensornet.truncation import Limits
from tensornet.typing import Array, Cores

# Size of a perturbation, relative to the root mean square of a core's columns.
_NOISE = 0.1


class Merged(NamedTuple):
    """Neighbouring sites that are fitted as one, and the one whose core is not an identity."""

    sites: range
    free: int


def merged_sites(
    site_dims: tuple[int, ...], bonds: tuple[int, ...], common: tuple[bool, ...]
) -> list[Merged]:
    """Return the sites to fit as one: those next to an end whose cores may be identities.

    From an end inwards, a full core is a change of basis that the next core can take over,
    unless it belongs to one matrix and the next one to all.

    Examples
    --------
    >>> merged = merged_sites((4, 4, 4), (1, 4, 4, 1), (True, False, False))
    >>> [(list(m.sites), m.free) for m in merged]
    [([0, 1, 2], 1)]
    """
    n = len(site_dims)

    def idle(k: int, inward: int, outer: int, inner: int) -> bool:
        full = bonds[outer] * site_dims[k] == bonds[inner]
        return full and (common[k] or not common[inward])

    start, stop = 0, n - 1
    while start < n - 1 and idle(start, start + 1, start, start + 1):
        start += 1
    while stop > start and idle(stop, stop - 1, stop + 1, stop):
        stop -= 1
    if start == stop:
        return [Merged(range(n), start)]
    between = [Merged(range(k, k + 1), k) for k in range(start + 1, stop)]
    return [Merged(range(start + 1), start), *between, Merged(range(stop, n), stop)]


def starts(
    problem: Joint, bonds: tuple[int, ...], middle: int, n: int, seed: int
) -> Iterator[Cores]:
    """Yield ``n`` starts, the surest one first; ``middle`` is the central site.

    The sides that all matrices have in common (with full bonds they are identities), the
    common core being the mean; then the chain of the mean matrix; then each matrix's own
    sides; then the first one perturbed.
    """
    first = _shared(_common_sides(problem, bonds, middle), problem)
    yield first
    if n > 1:
        yield _shared(_own_sides(problem, bonds), problem)
    if n > 2:
        yield _shared(_of_the_mean(problem, bonds), problem)
    rng = np.random.default_rng(seed)
    for _ in range(3, n):
        yield tuple(
            core if problem.common[k] else _perturbed(core, problem, rng)
            for k, core in enumerate(first)
        )


def _shared(cores: Cores, problem: Joint) -> Cores:
    """Return cores that are the mean where they are common, and one per matrix elsewhere."""
    backend, batch = problem.backend, int(problem.tensors.shape[0])
    made = []
    for k, core in enumerate(cores):
        if problem.common[k]:
            made.append(problem.weighed(core) / problem.weight)
        else:
            ones = backend.like(np.ones((batch, 1, 1, 1)), core)
            made.append(core * ones if int(core.shape[0]) == 1 else core)
    return tuple(made)


def _common_sides(problem: Joint, bonds: tuple[int, ...], middle: int) -> Cores:
    """Return one chain of sides for all tensors, with a central core for each."""
    backend = problem.backend
    batch, *sites = (int(d) for d in problem.tensors.shape)
    # The batch becomes a factor of the central site, whose sides are then common.
    axes = (*range(1, middle + 1), 0, *range(middle + 1, len(sites) + 1))
    joined = backend.tl.transpose(problem.tensors, axes)
    fused = (*sites[:middle], batch * sites[middle], *sites[middle + 1 :])
    tensor = backend.tl.reshape(joined, fused)
    found = sweep(tensor, Limits(bonds, 0.0, forced=True), backend)
    cores = list(move_center(in_double(found.cores)[1], found.center, middle, backend))
    left, _, right = (int(d) for d in cores[middle].shape)
    center = backend.tl.reshape(cores[middle], (left, batch, sites[middle], right))
    stacked = [core[None] for core in cores]
    stacked[middle] = backend.tl.transpose(center, (1, 0, 2, 3))
    return tuple(stacked)


def _own_sides(problem: Joint, bonds: tuple[int, ...]) -> Cores:
    chains = [_chain(tensor, bonds, problem) for tensor in problem.tensors]
    return tuple(problem.backend.tl.stack(list(cores)) for cores in zip(*chains, strict=True))


def _of_the_mean(problem: Joint, bonds: tuple[int, ...]) -> Cores:
    mean = problem.weighed(problem.tensors)[0] / problem.weight
    return tuple(core[None] for core in _chain(mean, bonds, problem))


def _chain(tensor: Array, bonds: tuple[int, ...], problem: Joint) -> Cores:
    found = sweep(tensor, Limits(bonds, 0.0, forced=True), problem.backend)
    wide = in_double(found.cores)[1]
    return move_center(wide, found.center, (len(bonds) - 1) // 2, problem.backend)


def _perturbed(core: Array, problem: Joint, rng: np.random.Generator) -> Array:
    backend, shape = problem.backend, tuple(int(d) for d in core.shape)
    mean_square = float(backend.numbers(backend.tl.sum(backend.tl.abs(core) ** 2))) / math.prod(
        shape
    )
    return core + backend.like(_NOISE * math.sqrt(mean_square) * rng.normal(size=shape), core)
