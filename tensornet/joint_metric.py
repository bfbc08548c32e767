"""Cores of many chains at once, some of them common, in metrics: never a large square system.

The normal equations of one core, with all others fixed, hold products with every metric, which
belong to the columns of all sites together. A few steps of conjugate gradients, from the core as
it is, lower the error in each. They are preconditioned by what the equations would be if every
metric were the Kronecker product of its averages over the sites; where it is, as the identity,
one step solves them for a core of one matrix.

A point that conjugate gradients reach is the best one of the line from where they began: a step
of omega times that way lowers the error for every omega between 0 and 2, as in
:mod:`tensornet.joint`.
Source: Hestenes and Stiefel 1952 (conjugate gradients); Holtz, Rohwedder and Schneider 2012
(alternating schemes); Young 1954 (over-relaxation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensornet.backend import Backend, dtype_name, eps
from tensornet.joint import Joint
from tensornet.joint_frames import (
    Ground,
    Part,
    Sides,
    contracted,
    gathered,
    left_part,
    on_columns,
    right_parts,
    spread,
)
from tensornet.layout import MatrixLayout
from tensornet.metric_stack import MetricStack, site_averages
from tensornet.stack_storage import Numbers, squared_norms
from tensornet.typing import Array, Cores

# Steps of conjugate gradients for each core in each sweep, and how far they are relaxed at most.
_STEPS, _OMEGA = 4, 1.6
_SINGLE = {"float64": "float32", "complex128": "complex64"}
# Squared relative error above which steps in single precision lower it as well as in double.
_SINGLE_ABOVE = 1e-8
# Added to the Gram matrices that precondition, in roundings of their mean eigenvalue.
_RIDGE = 64.0
# Below this share of the squared norm the error is measured through the roots of the metrics.
_CANCELLED = 1e-9
# How much larger than the matrices the networks may get: where metrics hardly weigh, small gains
# could be had by entries without bounds, of no use to anyone.
_LARGEST = 100.0


@dataclass(frozen=True)
class MetricJoint(Joint):
    """What is to be approximated: ``tensors`` are matrices (batch, rows, cols), errors in metrics.

    ``layout`` has the sites of the cores. The padding has no error.
    """

    metrics: MetricStack
    layout: MatrixLayout

    @cached_property
    def ground(self) -> Ground:
        """The sites, and the metrics averaged to each."""
        averages = site_averages(self.metrics, self.layout, self.backend)
        return Ground(self.layout, averages, self.backend)

    @cached_property
    def total(self) -> float:
        """Weighted sum of squared norms in the metrics."""
        return self.summed(self.metrics.squares(self.tensors, self.backend))

    @cached_property
    def largest(self) -> float:
        """Sum of squared plain errors that is never passed."""
        return _LARGEST**2 * float(squared_norms(self.tensors, self.backend).sum())

    def squared_error(self, cores: Cores) -> float:
        """Return the weighted sum of squared errors in the metrics."""
        missing = self.tensors - contracted(cores, self.ground)
        return self.summed(self.metrics.squares(missing, self.backend))

    def swept(self, cores: Cores, omega: float) -> tuple[Cores, float]:
        """Return the cores after a sweep from left to right, and their squared error.

        It is computed in single precision while that lowers the error.
        """
        begun = self._state(cores)
        wide = dtype_name(self.tensors)
        if begun.error > _SINGLE_ABOVE * self.total:
            done = _swept(begun, self, min(omega, _OMEGA), _SINGLE[wide])
            if done.error < begun.error:
                return done.cores, done.error
        done = _swept(begun, self, min(omega, _OMEGA), wide)
        return done.cores, done.error

    def _state(self, cores: Cores) -> _State:
        missing = self.tensors - contracted(cores, self.ground)
        weighted = missing @ self.metrics.matrices
        error = self.summed(_inner(missing, weighted, self.backend))
        if error < _CANCELLED * self.total:
            error = self.summed(self.metrics.squares(missing, self.backend))
        if squared_norms(missing, self.backend).sum() > self.largest:
            error = math.inf
        return _State(cores, weighted, error)


@dataclass(frozen=True)
class _State:
    """Cores, what is missing of the matrices times their metrics, and the squared error."""

    cores: Cores
    weighted: Array
    error: float


def _swept(begun: _State, problem: MetricJoint, omega: float, dtype: str) -> _State:
    """Return what a sweep makes whose steps are computed in an element type."""
    backend, cores = problem.backend, list(begun.cores)
    metric = backend.cast(problem.metrics.matrices, dtype)
    weighted = backend.cast(begun.weighted, dtype)
    rights, left = right_parts(cores, problem.ground), problem.ground.edge
    for k, core in enumerate(cores):
        move, fall = _Step(k, left, rights[k], metric, problem).solved(weighted)
        cores[k] = core + omega * backend.cast(move, dtype_name(core))
        weighted = weighted - omega * fall
        left = left_part(left, cores[k], k, problem.ground)
    return problem._state(tuple(cores))


class _Step:
    """The least-squares problem of one core in the metrics, with all others fixed."""

    def __init__(
        self, k: int, left: Part, right: Part, metric: Array, problem: MetricJoint
    ) -> None:
        backend, dtype = problem.backend, dtype_name(metric)
        self._problem, self._metric, self._noise = problem, metric, eps(dtype)
        self._common, self._dim = problem.common[k], problem.layout.col_dims[k]
        self._sides = Sides(backend.cast(left.frame, dtype), backend.cast(right.frame, dtype))
        grams = [left.gram, problem.ground.averages[k], right.gram]
        if self._common:
            grams = [problem.weighed(gram) for gram in grams]
        self._inverses = [backend.cast(_inverse(g, self._noise, backend), dtype) for g in grams]

    def solved(self, weighted: Array) -> tuple[Array, Array]:
        """Return a move of the core towards its optimum, and by what ``weighted`` falls then."""
        backend, ground = self._problem.backend, self._problem.ground
        residual = self._seen(weighted)
        steep = direction = self._divided(residual)
        slope = _inner(residual, steep, backend)
        move, fall = 0.0 * direction, 0.0 * weighted
        for step in range(_STEPS):
            change = spread(direction, self._sides, ground)
            seen = change @ self._metric
            length = self._length(slope, _inner(change, seen, backend))
            move = move + _times(length, direction, backend)
            fall = fall + _times(length, seen, backend)
            if step == _STEPS - 1 or not length.any():
                break
            residual = self._seen(weighted - fall)
            steep = self._divided(residual)
            before, slope = slope, _inner(residual, steep, backend)
            direction = steep + _times(_quotient(slope, before, before > 0.0), direction, backend)
        return move, fall

    def _length(self, slope: Numbers, curvatures: Numbers) -> Numbers:
        """Return how far to go: nowhere where rounding is all that there is of a curvature."""
        if self._common:
            curvatures = np.array([self._problem.summed(curvatures)])
        return _quotient(slope, curvatures, (slope > 0.0) & (curvatures > self._noise * slope))

    def _seen(self, matrices: Array) -> Array:
        """Return what matrices have between the sides, weighed and summed for a common core."""
        core = gathered(matrices, self._sides, self._problem.ground)
        if not self._common:
            return core
        # Weights are in double precision.
        return self._problem.backend.cast(self._problem.weighed(core), dtype_name(core))

    def _divided(self, core: Array) -> Array:
        """Return left^-1 @ core @ right^-1, and divided by the averaged metric on its columns."""
        backend, (left, site, right) = self._problem.backend, self._inverses
        batch, a, p, b = (int(d) for d in core.shape)
        core = left @ backend.tl.reshape(core, (batch, a, p * b))
        core = backend.tl.reshape(core, (batch, a * p, b)) @ right
        core = backend.tl.reshape(core, (batch, a, p, b))
        return on_columns(site, core, self._dim, backend)


def _inverse(grams: Array, noise: float, backend: Backend) -> Array:
    """Return the inverses of positive semidefinite matrices, up to a factor for each."""
    size = int(grams.shape[1])
    eye = backend.identity(size, grams)[None]
    traces = backend.numbers(backend.tl.sum(grams * eye, axis=(1, 2))).real
    means = np.where(traces > 0.0, traces / size, 1.0)
    return backend.tl.solve(_times(1.0 / means, grams, backend) + _RIDGE * noise * eye, eye)


def _inner(a: Array, b: Array, backend: Backend) -> Numbers:
    """Return the real part of the inner product of each pair of a batch, on the host."""
    products = backend.tl.reshape(backend.conj(a) * b, (int(a.shape[0]), -1))
    return np.asarray(backend.numbers(backend.tl.sum(products, axis=1)).real, dtype=float)


def _quotient(a: Numbers, b: Numbers, where: Numbers) -> Numbers:
    return np.divide(a, b, out=np.zeros_like(a), where=where)


def _times(factors: Numbers, a: Array, backend: Backend) -> Array:
    """Return each array of a batch times its number, in the array's own element type."""
    shaped = backend.like(factors.reshape((-1, *(1,) * (a.ndim - 1))), a)
    return backend.cast(shaped, dtype_name(a)) * a
