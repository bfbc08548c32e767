"""Alternating least squares in a metric: one core after the other, never a large square system.

With the norm in core k and isometric frames L and R on its sides, the best core minimises
|(W - L G R) H^(1/2)|. Its normal equations have the condition of H at worst, because the frames
have none of their own. They are solved by a few steps of conjugate gradients, whose operator is
a product of the spread core with H: each step lowers the error, so sweeps never raise it.
Source: Holtz, Rohwedder and Schneider 2012 (alternating schemes in orthogonal gauges);
Hestenes and Stiefel 1952 (conjugate gradients).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tensornet.backend import Backend, dtype_name, eps
from tensornet.canonical import absorb_left, absorb_right, move_center, rows_matrix
from tensornet.layout import MatrixLayout
from tensornet.storage import weight
from tensornet.typing import Array, Cores

_SINGLE = {"float64": "float32", "complex128": "complex64"}
# Relative error above which steps in single precision lower it as well as those in double.
_SINGLE_ABOVE = 1e-4

# How much larger than the target a network may get. Where the metric hardly weighs, or not at
# all, small gains in the error could be had by entries without bounds: of no use to anyone.
_LARGEST = 100.0


class Problem(NamedTuple):
    """What is to be approximated, in which metric and layout; in double precision.

    ``root`` is the Hermitian root of the metric, and ``total`` the squared norm of the target in
    the metric.
    """

    target: Array
    metric: Array
    root: Array
    total: float
    layout: MatrixLayout
    backend: Backend


class Effort(NamedTuple):
    """When to stop.

    ``sweeps`` at most, each with ``steps`` at most for each core; sooner where a sweep lowers
    the error by less than the share ``enough``, or the error has reached ``goal`` (relative).
    A core is left when a step gains less than the share ``idle`` of what its steps gained.
    """

    sweeps: int = 12
    steps: int = 12
    enough: float = 1e-2
    idle: float = 0.05
    goal: float = 0.0


class Fit(NamedTuple):
    """Fused cores with the norm at ``center``; the relative error before and after each sweep."""

    cores: Cores
    center: int
    history: tuple[float, ...]


class _Frames(NamedTuple):
    left: Array
    right: Array


class _State(NamedTuple):
    """A core under change; what is missing of the target, plainly and times the metric."""

    core: Array
    missing: Array
    weighted: Array


def refine(cores: Cores, center: int | None, problem: Problem, effort: Effort) -> Fit:
    """Return cores with the same bonds and a smaller error in the metric.

    Parameters
    ----------
    cores : Cores
        Fused cores (left, site, right) in double precision.
    center : int or None
        Where the norm sits.
    problem : Problem
        Target, metric and layout.
    effort : Effort
        When to stop.
    """
    cores = move_center(cores, center, 0, problem.backend)
    fit, state = Fit(cores, 0, ()), _state(cores, 0, problem)
    errors, single = [_error(state, problem)], True
    for _ in range(effort.sweeps if errors[0] > effort.goal else 0):
        single = single and errors[-1] > _SINGLE_ABOVE
        cores, at = _swept(fit, state, problem, effort, single)
        changed = _state(cores, at, problem)
        error = _error(changed, problem)
        if error <= errors[-1]:
            fit, state = Fit(cores, at, ()), changed
            errors.append(error)
            if error <= effort.goal or error > (1.0 - effort.enough) * errors[-2]:
                break
        elif single:  # it was rounding: once more in double precision
            single = False
        else:
            break
    return fit._replace(history=tuple(errors))


def continued(fit: Fit, problem: Problem, effort: Effort) -> Fit:
    """Return a fit after further sweeps, with the history of all."""
    more = refine(fit.cores, fit.center, problem, effort)
    lower = tuple(error for error in more.history if error < fit.history[-1])
    return more._replace(history=(*fit.history, *lower)) if lower else fit


def _swept(
    fit: Fit, state: _State, problem: Problem, effort: Effort, single: bool
) -> tuple[Cores, int]:
    """Return the cores after one sweep there and back, and where the norm sits.

    Frames and centers are kept in double precision; steps may be computed in single precision.
    """
    cores, at = fit.cores, fit.center
    backend, n, wide = problem.backend, len(cores), dtype_name(cores[0])
    narrow = _SINGLE[wide] if single else wide
    problem = problem._replace(metric=backend.cast(problem.metric, narrow))
    state = _State(*(backend.cast(a, narrow) for a in state))
    for k in (*range(n), *range(n - 2, 0, -1)):
        cores, at = move_center(cores, at, k, backend), k
        sides = _Frames(*(backend.cast(f, narrow) for f in frames(cores, k, backend)))
        state = state._replace(core=backend.cast(cores[k], narrow))
        state = _improved(state, sides, problem, effort)
        cores = (*cores[:k], backend.cast(state.core, wide), *cores[k + 1 :])
    return cores, at


def _state(cores: Cores, k: int, problem: Problem) -> _State:
    sides = frames(cores, k, problem.backend)
    missing = problem.target - spread(cores[k], sides, problem)
    return _State(cores[k], missing, missing @ problem.metric)


def frames(cores: Cores, k: int, backend: Backend) -> _Frames:
    """Return what stands left of core k as (left sites, bond) and right of it as (bond, sites)."""
    left = right = backend.identity(1, cores[0])
    for core in cores[:k]:
        left = rows_matrix(absorb_left(left, core, backend), backend)
    for core in cores[:k:-1]:
        wide = absorb_right(core, right, backend)
        right = backend.tl.reshape(wide, (int(wide.shape[0]), -1))
    return _Frames(left, right)


def spread(core: Array, sides: _Frames, problem: Problem) -> Array:
    """Return the matrix (rows, cols) of a core between its frames."""
    backend = problem.backend
    tensor = absorb_right(absorb_left(sides.left, core, backend), sides.right, backend)
    return problem.layout.unfold(backend.tl.reshape(tensor, problem.layout.site_dims))


def gathered(matrix: Array, sides: _Frames, problem: Problem) -> Array:
    """Return the core (left, site, right) that a matrix has between its frames."""
    backend = problem.backend
    n_left, n_right = int(sides.left.shape[0]), int(sides.right.shape[1])
    tensor = backend.tl.reshape(problem.layout.fold(matrix), (n_left, -1, n_right))
    half = absorb_left(backend.adjoint(sides.left), tensor, backend)
    return absorb_right(half, backend.adjoint(sides.right), backend)


def _improved(state: _State, sides: _Frames, problem: Problem, effort: Effort) -> _State:
    """Return the state after some steps of conjugate gradients on one core."""
    backend = problem.backend
    residual = gathered(state.weighted, sides, problem)
    square, gained = weight(residual, backend), 0.0
    direction, noise = residual, eps(dtype_name(residual))
    # A residual this small is rounding: steps along it would only let it grow.
    floor = (32.0 * noise) ** 2 * weight(state.weighted, backend)
    # The frames are isometric, so the norm of the core is that of the network.
    most = _LARGEST**2 * weight(problem.target, backend)
    for _ in range(effort.steps):
        if square <= floor:
            break
        change = spread(direction, sides, problem)
        weighted = change @ problem.metric
        curvature = _inner(change, weighted, backend)
        # A direction without metric changes nothing; below this share it is rounding.
        if curvature <= noise * weight(direction, backend):
            break
        length = square / curvature
        core = state.core + length * direction
        if weight(core, backend) > most:
            break
        state = _State(
            core,
            state.missing - length * change,
            state.weighted - length * weighted,
        )
        gain = length * square
        gained += gain
        if gain < effort.idle * gained:
            break
        residual = gathered(state.weighted, sides, problem)
        last, square = square, weight(residual, backend)
        direction = residual + (square / last) * direction
    return state


def _error(state: _State, problem: Problem) -> float:
    # Through the root: the inner product with the metric loses half of the digits.
    square = weight(state.missing @ problem.root, problem.backend)
    return math.sqrt(square / problem.total) if problem.total > 0.0 else 0.0


def _inner(a: Array, b: Array, backend: Backend) -> float:
    return float(backend.numbers(backend.tl.sum(backend.conj(a) * b)).real)
