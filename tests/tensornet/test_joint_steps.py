"""One step of a joint decomposition: what the best core is made of, and that it is the best."""

from __future__ import annotations

import numpy as np
import pytest

from tensornet.backend import load_backend
from tensornet.joint import Joint, _Step, squared_error, swept
from tensornet.joint_fit import Effort, fit

NUMPY = load_backend("numpy")
BATCH, SITES = 3, (4, 5, 6)


def normal(rng, shape, dtype):
    imaginary = 1j * rng.normal(size=shape) if dtype == "complex128" else 0.0
    return rng.normal(size=shape) + imaginary


def problem_of(common, dtype, weights=None):
    tensors = normal(np.random.default_rng(0), (BATCH, *SITES), dtype)
    return Joint(tensors, common, weights, NUMPY)


def step_of(k, a, b, common, dtype, sides=(BATCH, BATCH), weights=None):
    rng = np.random.default_rng(1)
    problem = problem_of(tuple(common if j == k else False for j in range(3)), dtype, weights)
    rows, cols = int(np.prod(SITES[:k])), int(np.prod(SITES[k + 1 :]))
    left, right = normal(rng, (sides[0], rows, a), dtype), normal(rng, (sides[1], b, cols), dtype)
    x = problem.tensors.reshape(BATCH, rows, SITES[k], cols)
    return _Step(k, left, right, problem), x, left, right, problem


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("sides", [(1, 1), (BATCH, BATCH), (1, BATCH), (BATCH, 1)])
@pytest.mark.parametrize(("a", "b"), [(1, 4), (4, 1), (3, 3)])  # either side may come first
def test_what_is_seen_is_the_tensor_between_both_sides(a, b, sides, dtype):
    step, x, left, right, _ = step_of(1, a, b, False, dtype, sides)
    ones = np.ones((BATCH, 1, 1))
    expected = np.einsum("nra,nrsc,nbc->nasb", (left * ones).conj(), x, (right * ones).conj())
    assert np.allclose(step._seen, expected)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("k", "a", "b"), [(0, 1, 3), (1, 3, 2), (2, 4, 1)])
def test_a_core_for_each_tensor_is_the_least_squares_solution(k, a, b, dtype):
    step, x, left, right, problem = step_of(k, a, b, False, dtype)
    core = step.solved(np.zeros((BATCH, a, SITES[k], b), x.dtype))
    total = 0.0
    for n in range(BATCH):
        system = np.einsum("ra,bc->rcab", left[n], right[n]).reshape(-1, a * b)
        target = x[n].transpose(0, 2, 1).reshape(-1, SITES[k])
        solution, *_ = np.linalg.lstsq(system, target, rcond=None)
        found = core[n].transpose(0, 2, 1).reshape(a * b, SITES[k])
        assert np.allclose(found, solution)
        total += np.linalg.norm(system @ solution - target) ** 2
    assert step.squared_error(core) == pytest.approx(total)
    other = core + 0.1 * normal(np.random.default_rng(2), core.shape, dtype)
    made = np.einsum("nra,nasb,nbc->nrsc", left, other, right)
    assert step.squared_error(other) == pytest.approx(np.linalg.norm(x - made) ** 2)
    assert problem.total == pytest.approx(np.linalg.norm(x) ** 2)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("sides", [(1, BATCH), (BATCH, 1), (1, 1), (BATCH, BATCH)])
@pytest.mark.parametrize("weights", [None, np.array([0.5, 1.0, 0.25])])
def test_a_common_core_is_the_weighted_least_squares_solution(weights, sides, dtype):
    step, x, left, right, _ = step_of(1, 2, 3, True, dtype, sides, weights)
    each = np.ones(BATCH) if weights is None else weights
    parts = [
        np.einsum("ra,bc->rcab", left[n % sides[0]], right[n % sides[1]]).reshape(-1, 6)
        * each[n] ** 0.5
        for n in range(BATCH)
    ]
    targets = [x[n].transpose(0, 2, 1).reshape(-1, 5) * each[n] ** 0.5 for n in range(BATCH)]
    system, target = np.concatenate(parts), np.concatenate(targets)
    solution = np.linalg.lstsq(system, target, rcond=None)[0]
    core = np.zeros((1, 2, 5, 3), x.dtype)
    for _ in range(40 if min(sides) > 1 else 1):  # two steps of conjugate gradients each
        core = step.solved(core)
    assert np.allclose(core[0].transpose(0, 2, 1).reshape(6, 5), solution)
    least = np.linalg.norm(system @ solution - target) ** 2
    assert step.squared_error(core) == pytest.approx(least)


@pytest.mark.parametrize("common", [False, True])
def test_nothing_comes_from_nothing(common):
    problem = Joint(np.zeros((2, 2, 3, 2)), (False, common, False), None, NUMPY)
    cores = (np.ones((2, 1, 2, 2)), np.zeros((1 if common else 2, 2, 3, 2)), np.ones((2, 2, 2, 1)))
    made, error = swept(cores, problem, 1.0)
    assert error == 0.0
    assert squared_error(made, problem) == 0.0
    assert all(np.isfinite(core).all() for core in made)


def test_without_a_start_there_is_no_fit():
    found = fit(problem_of((False,) * 3, "float64"), [], Effort(5, 0.1, 0.0, lambda *_: False))
    assert found == ((), (), False)
