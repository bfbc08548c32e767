"""Cores of many chains at once, some of them common: over-relaxed alternating least squares.

One core after the other is brought to (and beyond) the least-squares optimum with all others
fixed. A step of omega times the way to the optimum of a quadratic function lowers it for every
omega between 0 and 2, so the error never rises; near 2 the sweeps progress many times faster
than at 1, as successive over-relaxation does in linear systems.
Source: Young 1954 (over-relaxation); Kroonenberg and de Leeuw 1980 (alternating least squares).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensornet.backend import Backend, dtype_name
from tensornet.stack_storage import Numbers, squared_norms
from tensornet.typing import Array, Cores

# Added to a Gram matrix, as a share of its mean eigenvalue: what nothing depends on stays small.
_RIDGE = 1e-14
_TINY = 1e-290
# Below this share of the squared norm the error is measured from the difference itself.
_CANCELLED = 1e-9
# Steps of conjugate gradients for a common core: they start where the last sweep ended.
_STEPS = 2


@dataclass(frozen=True)
class Joint:
    """What is to be approximated: tensors (batch, p1, ..., pn) in double precision.

    ``common`` says for each site whether all chains have one core there, which then is
    (1, left, site, right) and otherwise (batch, left, site, right). ``weights`` are one per
    tensor, or None for equal ones.
    """

    tensors: Array
    common: tuple[bool, ...]
    weights: Array | None
    backend: Backend

    def weighed(self, a: Array) -> Array:
        """Return the weighted sum over the batch, its axis kept at length 1."""
        batch = int(self.tensors.shape[0])
        if self.weights is None:
            return self.backend.tl.sum(a, axis=0)[None] * (batch / int(a.shape[0]))
        weights = self.backend.tl.reshape(self.weights, (-1, *(1,) * (a.ndim - 1)))
        return self.backend.tl.sum(a * weights, axis=0)[None]

    @cached_property
    def weight(self) -> float:
        """Sum of the weights."""
        batch = int(self.tensors.shape[0])
        return batch if self.weights is None else self.summed(np.ones(batch))

    @cached_property
    def total(self) -> float:
        """Weighted sum of squared norms."""
        return self.summed(squared_norms(self.tensors, self.backend))

    def summed(self, each: Numbers) -> float:
        """Return the weighted sum of one number per tensor."""
        if self.weights is not None:
            each = each * self.backend.numbers(self.weights)
        return float(each.sum())

    def squared_error(self, cores: Cores) -> float:
        """Return the weighted sum of squared errors."""
        return squared_error(cores, self)

    def swept(self, cores: Cores, omega: float) -> tuple[Cores, float]:
        """Return the cores after a sweep, relaxed by ``omega``, and their squared error."""
        return swept(cores, self, omega)


def swept(cores: Cores, problem: Joint, omega: float) -> tuple[Cores, float]:
    """Return the cores after one sweep from left to right, and their squared error.

    ``omega`` is the relaxation, 1 for plain alternating least squares.
    """
    rights = _right_parts(cores, problem)
    left = rights[-1]
    done, error = list(cores), problem.total
    for k in range(len(cores)):
        step = _Step(k, left, rights[k + 1], problem)
        done[k] = done[k] + omega * (step.solved(done[k]) - done[k])
        if k == len(cores) - 1:
            error = step.squared_error(done[k])
        left = _left_part(left, done[k], problem)
    if error < _CANCELLED * problem.total:
        error = squared_error(tuple(done), problem)
    return tuple(done), error


def squared_error(cores: Cores, problem: Joint) -> float:
    """Return the weighted sum of squared errors, from the differences themselves."""
    backend = problem.backend
    full = _right_parts(cores, problem)[0]
    batch = int(problem.tensors.shape[0])
    flat = backend.tl.reshape(problem.tensors, (batch, -1))
    return problem.summed(
        squared_norms(flat - backend.tl.reshape(full, (-1, flat.shape[1])), backend)
    )


class _Step:
    """The least-squares problem of one core with all others fixed.

    ``left`` is (batch or 1, rows, a), ``right`` is (batch or 1, b, columns).
    """

    def __init__(self, k: int, left: Array, right: Array, problem: Joint) -> None:
        backend = problem.backend
        self._problem, self._common = problem, problem.common[k]
        batch, *sites = (int(d) for d in problem.tensors.shape)
        rows = math.prod(sites[:k])
        x = backend.tl.reshape(problem.tensors, (batch, rows, -1))
        columns = int(right.shape[2])
        self._grams = (backend.adjoint(left) @ left, right @ backend.adjoint(right))
        a, b = int(left.shape[2]), int(right.shape[1])
        if a * columns <= rows * b:
            x = backend.tl.reshape(backend.adjoint(left) @ x, (batch, -1, columns))
            x = x @ backend.adjoint(right)
        else:
            x = backend.tl.reshape(x, (batch, -1, columns)) @ backend.adjoint(right)
            x = backend.adjoint(left) @ backend.tl.reshape(x, (batch, rows, -1))
        # What the optimum is made of.
        self._seen = backend.tl.reshape(x, (batch, a, sites[k], b))

    def solved(self, core: Array) -> Array:
        """Return the best core, for a common one from a few steps that begin at ``core``."""
        if not self._common:
            return self._divided(self._seen, *self._grams)
        problem, (left, right) = self._problem, self._grams
        seen = problem.weighed(self._seen)
        if int(left.shape[0]) == 1:
            return self._divided(seen, left, problem.weighed(right))
        if int(right.shape[0]) == 1:
            return self._divided(seen, problem.weighed(left), right)
        return self._conjugate_gradients(core, seen)

    def squared_error(self, core: Array) -> float:
        """Return the weighted squared error with this core, by inner products."""
        backend = self._problem.backend
        change = self._times(core, *self._grams) - 2.0 * self._seen
        each = backend.tl.sum(backend.conj(core) * change, axis=(1, 2, 3))
        return max(self._problem.total + self._problem.summed(backend.numbers(each).real), 0.0)

    def _conjugate_gradients(self, core: Array, seen: Array) -> Array:
        """Return the common core after a few steps towards the solution of the normal equations.

        Each is a sum of one term per tensor; the product of the mean Gram matrices of both
        sides is near enough to precondition them.
        """
        problem, (left, right) = self._problem, self._grams
        means = problem.weighed(left), problem.weighed(right)
        residual = seen - problem.weighed(self._times(core, left, right))
        direction, before = None, 0.0
        for _ in range(_STEPS):
            steep = self._divided(residual, *means)
            slope = self._inner(residual, steep)
            if slope <= 0.0:
                break
            direction = steep if direction is None else steep + (slope / before) * direction
            change = problem.weighed(self._times(direction, left, right))
            curvature = self._inner(direction, change)
            if curvature <= 0.0:
                break
            core = core + (slope / curvature) * direction
            residual = residual - (slope / curvature) * change
            before = slope
        return core

    def _inner(self, a: Array, b: Array) -> float:
        backend = self._problem.backend
        return float(backend.numbers(backend.tl.sum(backend.conj(a) * b)).real)

    def _times(self, core: Array, left: Array, right: Array) -> Array:
        """Return left @ core @ right for every tensor."""
        reshape = self._problem.backend.tl.reshape
        _, a, site, b = (int(d) for d in core.shape)
        core = left @ reshape(core, (-1, a, site * b))
        return reshape(reshape(core, (-1, a * site, b)) @ right, (-1, a, site, b))

    def _divided(self, core: Array, left: Array, right: Array) -> Array:
        """Return left^-1 @ core @ right^-1 for Hermitian, positive semidefinite sides."""
        backend = self._problem.backend
        _, a, site, b = (int(d) for d in core.shape)
        tl, turned = backend.tl, backend.matrix_transpose
        core = tl.solve(self._regular(left), tl.reshape(core, (-1, a, site * b)))
        tall = tl.reshape(core, (-1, a * site, b))
        solved = turned(tl.solve(turned(self._regular(right)), turned(tall)))
        return tl.reshape(solved, (-1, a, site, b))

    def _regular(self, gram: Array) -> Array:
        backend, size = self._problem.backend, int(gram.shape[1])
        eye = backend.identity(size, gram)
        mean = backend.tl.sum(gram * eye, axis=(1, 2))[:, None, None] / size
        return gram + (_RIDGE * mean + _TINY) * eye


def _right_parts(cores: Sequence[Array], problem: Joint) -> list[Array]:
    """Return, for each k, the chains from core k to the end: (batch or 1, bond, columns)."""
    backend, n = problem.backend, len(cores)
    parts = [backend.like(np.ones((1, 1, 1)), problem.tensors)] * (n + 1)
    parts[n] = backend.cast(parts[n], dtype_name(problem.tensors))
    for k in range(n - 1, -1, -1):
        batch, a, site, b = (int(d) for d in cores[k].shape)
        product = backend.tl.reshape(cores[k], (batch, a * site, b)) @ parts[k + 1]
        parts[k] = backend.tl.reshape(product, (int(product.shape[0]), a, -1))
    return parts


def _left_part(left: Array, core: Array, problem: Joint) -> Array:
    """Return the chains up to and with a core, (batch or 1, rows, bond), from those before it."""
    batch, a, site, b = (int(d) for d in core.shape)
    reshape = problem.backend.tl.reshape
    product = left @ reshape(core, (batch, a, site * b))
    return reshape(product, (int(product.shape[0]), -1, b))
