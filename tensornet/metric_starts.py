"""Where sweeps in a metric may start from: three networks that cost one decomposition each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tensornet.als import Problem, frames, gathered, spread
from tensornet.backend import Backend
from tensornet.layout import MatrixLayout
from tensornet.single import Request, decompose_tensor
from tensornet.typing import Array, Cores
from tensornet.whitening import Metric, site_metrics


class Start(NamedTuple):
    """Fused cores (left, site, right) in double precision, and where the norm sits."""

    cores: Cores
    center: int | None


def best_start(problem: Problem, metric: Metric, asked: Request) -> Start:
    """Return the start with the smallest error in the metric.

    Parameters
    ----------
    problem : Problem
        Target and layout.
    metric : Metric
        The metric with its root.
    asked : Request
        The bonds; no tolerance.
    """

    def square(start: Start) -> float:
        core, sides = start.cores[0], frames(start.cores, 0, problem.backend)
        return metric.square(problem.target - spread(core, sides, problem), problem.backend)

    return min(starts(problem, metric, asked), key=square)


def starts(problem: Problem, metric: Metric, asked: Request) -> Iterator[Start]:
    """Yield a plain network, one under a product metric, and one on the bases of W H^(1/2).

    A metric that is a Kronecker product over the sites acts on each core by itself: a plain
    decomposition of the whitened matrix is carried back core by core, without loss. The metric
    averaged over the other sites, site by site, is used like that.
    """
    layout, backend = problem.layout, problem.backend
    tensor = layout.fold(problem.target)
    plain = decompose_tensor(tensor, asked, backend)
    yield Start(plain.cores, plain.center)
    pairs = site_metrics(metric, layout, backend)
    for k, (root, _) in enumerate(pairs):
        tensor = _on_columns(root, tensor, k, layout, backend)
    made = decompose_tensor(tensor, asked, backend)
    yield Start(_carried_back(made.cores, [inverse for _, inverse in pairs], layout, backend), None)
    white = decompose_tensor(layout.fold(problem.target @ metric.root), asked, backend)
    middle = layout.central
    core = gathered(problem.target, frames(white.cores, middle, backend), problem)
    yield Start((*white.cores[:middle], core, *white.cores[middle + 1 :]), middle)


def _on_columns(
    factor: Array, tensor: Array, k: int, layout: MatrixLayout, backend: Backend
) -> Array:
    """Return the tensor (p1, ..., pn) with a Hermitian factor on the columns of site k."""
    sites = layout.site_dims
    split = (math.prod(sites[:k]) * layout.row_dims[k], layout.col_dims[k], -1)
    turned = backend.matrix_transpose(factor) @ backend.tl.reshape(tensor, split)
    return backend.tl.reshape(turned, sites)


def _carried_back(
    cores: Cores, factors: list[Array], layout: MatrixLayout, backend: Backend
) -> Cores:
    done = []
    for core, factor, i, j in zip(cores, factors, layout.row_dims, layout.col_dims, strict=True):
        left, site, right = (int(d) for d in core.shape)
        split = backend.tl.reshape(core, (left * i, j, right))
        turned = backend.matrix_transpose(factor) @ split
        done.append(backend.tl.reshape(turned, (left, site, right)))
    return tuple(done)
