"""One sharing group of a joint decomposition: fitted plainly, and from there in its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.interleave import fold_stack
from tensornet.joint import Joint
from tensornet.joint_finish import balanced, split_sites
from tensornet.joint_fit import Effort, Fitted, fit
from tensornet.joint_metric import MetricJoint
from tensornet.joint_starts import Merged, merged_sites, starts
from tensornet.layout import MatrixLayout
from tensornet.metric_stack import MetricStack
from tensornet.stack_storage import Numbers
from tensornet.typing import Array, Cores


class Job(NamedTuple):
    """What is the same for all groups; ``tries`` are the number of starts and the seed."""

    layout: MatrixLayout
    sites: tuple[int, ...]
    bonds: tuple[int, ...]
    tries: tuple[int, int]
    effort: Effort
    backend: Backend


class Group(NamedTuple):
    """One group, fitted: cores of all sites, (members or 1, left, site, right)."""

    cores: Cores
    history: tuple[float, ...]
    converged: bool
    total: float


def fitted_group(
    matrices: Array, weights: Numbers | None, metrics: MetricStack | None, job: Job
) -> Group:
    """Return matrices (members, rows, cols) in double precision as chains that share cores."""
    backend, layout = job.backend, job.layout
    common = tuple(k in job.sites for k in range(layout.n_sites))
    merged = merged_sites(layout.site_dims, job.bonds, common)
    middle = next(k for k, m in enumerate(merged) if layout.central in m.sites)
    problem = _plain(matrices, weights, merged, job)
    found, total = _fitted(matrices, metrics, problem, _Way(merged, middle, job))
    batches = [1 if shared else int(matrices.shape[0]) for shared in common]
    cores = balanced(found.cores, middle, problem)
    cores = split_sites(cores, merged, layout.site_dims, batches, backend)
    return Group(cores, found.history, found.converged, total)


class _Way(NamedTuple):
    """How a group is fitted: which sites as one, and where the norm goes."""

    merged: Sequence[Merged]
    middle: int
    job: Job


def _fitted(
    matrices: Array, metrics: MetricStack | None, problem: Joint, way: _Way
) -> tuple[Fitted, float]:
    """Return the cores of merged sites, and the weighted sum of squared norms of the matrices."""
    merged, middle, job = way
    bonds, told = (*(job.bonds[m.sites.start] for m in merged), 1), _Told(job.effort.told)
    effort = job.effort._replace(told=told)
    begun = starts(problem, bonds, middle, *job.tries)
    if metrics is None:
        return fit(problem, begun, effort), problem.total
    weighed = _in_metrics(matrices, metrics, merged, problem, job.layout)
    # Metrics that weigh nothing leave plain errors; but those count the padding.
    if metrics.is_plain(job.backend) and not job.layout.padded:
        return fit(problem, begun, effort), weighed.total
    cores = fit(problem, begun, effort._replace(goal=0.0)).cores
    sweeps = 0 if told.stopped else effort.max_sweeps
    cores = balanced(cores, middle, problem)
    found = _refined(cores, weighed, merged, job.layout, effort._replace(max_sweeps=sweeps))
    return found, weighed.total


def _plain(matrices: Array, weights: Numbers | None, merged: Sequence[Merged], job: Job) -> Joint:
    backend, layout = job.backend, job.layout
    tensors = fold_stack(matrices, layout.row_dims, layout.col_dims, backend)
    dims = [math.prod(layout.site_dims[k] for k in m.sites) for m in merged]
    return Joint(
        backend.tl.reshape(tensors, (int(matrices.shape[0]), *dims)),
        tuple(m.free in job.sites for m in merged),
        None if weights is None else backend.like(weights, tensors),
        backend,
    )


class _Told:
    """Counts the sweeps of all fits of a group, and remembers that somebody has stopped them."""

    def __init__(self, told: Callable[[int, float], bool]) -> None:
        self._told, self._sweeps, self.stopped = told, 0, False

    def __call__(self, _: int, error: float) -> bool:
        self._sweeps += 1
        self.stopped = self._told(self._sweeps, error)
        return self.stopped


def _in_metrics(
    matrices: Array,
    metrics: MetricStack,
    merged: Sequence[Merged],
    problem: Joint,
    layout: MatrixLayout,
) -> MetricJoint:
    """Return the problem in metrics; sites that are fitted as one are one site of its layout."""
    rows, cols = (
        [math.prod(dims[k] for k in m.sites) for m in merged]
        for dims in (layout.row_dims, layout.col_dims)
    )
    sites = MatrixLayout(rows, cols, layout.rows, layout.cols)
    plain = (problem.common, problem.weights, problem.backend)
    return MetricJoint(matrices, *plain, metrics=metrics, layout=sites)


def _refined(
    cores: Cores,
    problem: MetricJoint,
    merged: Sequence[Merged],
    layout: MatrixLayout,
    effort: Effort,
) -> Fitted:
    """Return what sweeps in the metrics make of plainly fitted cores: nothing worse than those."""
    pairs = [[(layout.row_dims[k], layout.col_dims[k]) for k in m.sites] for m in merged]
    turned = zip(cores, pairs, strict=True)
    start = tuple(_rows_first(core, dims, problem.backend) for core, dims in turned)
    found = fit(problem, [start], effort)
    turned = zip(found.cores, pairs, strict=True)
    back = tuple(_side_by_side(core, dims, problem.backend) for core, dims in turned)
    return found._replace(cores=back)


def _rows_first(core: Array, dims: Sequence[tuple[int, int]], backend: Backend) -> Array:
    """Return a core whose site (i1 j1 i2 j2 ...) is (i1 i2 ... j1 j2 ...)."""
    batch, a, site, b = (int(d) for d in core.shape)
    n, flat = len(dims), [d for pair in dims for d in pair]
    axes = (0, 1, *range(2, 2 * n + 2, 2), *range(3, 2 * n + 2, 2), 2 * n + 2)
    parts = backend.tl.reshape(core, (batch, a, *flat, b))
    return backend.tl.reshape(backend.tl.transpose(parts, axes), (batch, a, site, b))


def _side_by_side(core: Array, dims: Sequence[tuple[int, int]], backend: Backend) -> Array:
    """Return a core whose site (i1 i2 ... j1 j2 ...) is (i1 j1 i2 j2 ...)."""
    batch, a, site, b = (int(d) for d in core.shape)
    n, flat = len(dims), [*(i for i, _ in dims), *(j for _, j in dims)]
    axes = (0, 1, *(axis for k in range(n) for axis in (2 + k, 2 + n + k)), 2 * n + 2)
    parts = backend.tl.reshape(core, (batch, a, *flat, b))
    return backend.tl.reshape(backend.tl.transpose(parts, axes), (batch, a, site, b))


def gathered_groups(
    groups: Sequence[Group], members: tuple[tuple[int, ...], ...], job: Job
) -> Cores:
    """Return for each site the cores of all groups where they are common, else of all matrices."""
    concatenate = job.backend.tl.concatenate
    order = np.argsort([k for group in members for k in group]).tolist()
    cores = zip(*(group.cores for group in groups), strict=True)
    stacks = [concatenate(list(site), axis=0) for site in cores]
    return tuple(s if k in job.sites else s[order] for k, s in enumerate(stacks))


def history_of(groups: Sequence[Group]) -> tuple[float, ...]:
    """Return the error of all groups after each sweep; groups that have ended keep theirs."""
    longest = max(len(group.history) for group in groups)
    weight = sum(group.total for group in groups)
    if weight == 0.0:
        return (0.0,) * longest
    padded = [(*g.history, *[g.history[-1]] * (longest - len(g.history))) for g in groups]
    totals = [group.total for group in groups]
    return tuple(
        math.sqrt(sum(t * e * e for t, e in zip(totals, errors, strict=True)) / weight)
        for errors in zip(*padded, strict=True)
    )
