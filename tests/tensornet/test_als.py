"""Alternating least squares in a metric: what one step does, and when steps and sweeps end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensornet import als
from tensornet.als import Effort, Fit, Problem, continued, frames, gathered, refine, spread
from tensornet.backend import load_backend
from tensornet.layout import MatrixLayout
from tensornet.whitening import checked_metric

NUMPY = load_backend("numpy")


def problem_of(W, H, layout):
    metric = checked_metric(H, W, W, NUMPY)
    total = metric.square(W, NUMPY)
    return Problem(W, metric.matrix, metric.root, total, layout, NUMPY)


def drawn(seed=0, layout=None, dtype="float64"):
    """Return a problem whose metric has any spectrum, and cores of bond 2 to begin with."""
    layout = layout or MatrixLayout((3, 2), (2, 4))
    rng = np.random.default_rng(seed)

    def normal(*shape):
        imaginary = 1j * rng.normal(size=shape) if dtype == "complex128" else 0.0
        return rng.normal(size=shape) + imaginary

    W = normal(layout.rows, layout.cols)
    X = normal(layout.cols, 3 * layout.cols)
    problem = problem_of(W, X @ X.conj().T, layout)
    first, second = layout.site_dims
    return problem, (normal(1, first, 2), normal(2, second, 1))


def best_of_one_core(problem, sides, shape):
    """Return the least error of a core between frames, by a plain system of equations."""
    columns = []
    for k in range(int(np.prod(shape))):
        unit = np.zeros(shape, dtype=problem.target.dtype)
        unit.flat[k] = 1.0
        columns.append((spread(unit, sides, problem) @ problem.root).ravel())
    a, b = np.stack(columns, axis=1), (problem.target @ problem.root).ravel()
    x = np.linalg.lstsq(a, b, rcond=None)[0]
    return np.linalg.norm(a @ x - b)


def centered(problem, cores, k):
    return als.move_center(cores, None, k, NUMPY)


def missing_of(state, problem):
    return np.linalg.norm(state.missing @ problem.root)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("k", [0, 1])
def test_enough_steps_solve_the_equations_of_one_core(k, dtype):
    problem, cores = drawn(dtype=dtype)
    cores = centered(problem, cores, k)
    sides, state = frames(cores, k, NUMPY), als._state(cores, k, problem)
    effort = Effort(steps=200, idle=0.0)
    found = als._improved(state, sides, problem, effort)
    assert missing_of(found, problem) == pytest.approx(
        best_of_one_core(problem, sides, cores[k].shape), rel=1e-9
    )
    # What a state says is missing is what is missing of the core that it holds.
    assert np.allclose(found.missing, problem.target - spread(found.core, sides, problem))
    assert np.allclose(found.weighted, found.missing @ problem.metric)
    # What is left of the residual is rounding: there is no further step.
    assert als._improved(found, sides, problem, effort) is found


def test_the_first_step_goes_as_far_as_pays_along_the_residual():
    problem, cores = drawn()
    cores = centered(problem, cores, 0)
    sides, state = frames(cores, 0, NUMPY), als._state(cores, 0, problem)
    found = als._improved(state, sides, problem, Effort(steps=1))
    direction = found.core - state.core
    residual = gathered(state.weighted, sides, problem)
    assert np.allclose(direction / np.linalg.norm(direction), residual / np.linalg.norm(residual))

    def error(share):
        core = state.core + share * direction
        return np.linalg.norm((problem.target - spread(core, sides, problem)) @ problem.root)

    assert error(1.0) < min(error(0.97), error(1.03))
    assert error(1.0) < 0.999 * error(0.0)


def test_directions_are_conjugate():
    problem, cores = drawn(3)
    cores = centered(problem, cores, 0)
    sides, state = frames(cores, 0, NUMPY), als._state(cores, 0, problem)
    made = [als._improved(state, sides, problem, Effort(steps=n, idle=0.0)) for n in range(5)]
    steps = [b.core - a.core for a, b in itertools.pairwise(made)]
    spreads = [spread(step, sides, problem) @ problem.root for step in steps]
    for i, one in enumerate(spreads):
        for two in spreads[i + 1 :]:
            cosine = np.vdot(one, two) / (np.linalg.norm(one) * np.linalg.norm(two))
            assert abs(cosine) < 1e-9


def test_idle_steps_end_it():
    problem, cores = drawn()
    cores = centered(problem, cores, 0)
    sides, state = frames(cores, 0, NUMPY), als._state(cores, 0, problem)
    all_steps = Effort(steps=50, idle=0.0)

    def gains(n):
        found = als._improved(state, sides, problem, all_steps._replace(steps=n))
        return missing_of(state, problem) ** 2 - missing_of(found, problem) ** 2

    gained = [gains(n) for n in range(8)]
    for idle in (0.01, 0.05, 0.3):
        last = next(n for n in range(1, 8) if gained[n] - gained[n - 1] < idle * gained[n])
        found = als._improved(state, sides, problem, Effort(steps=50, idle=idle))
        assert missing_of(found, problem) ** 2 == pytest.approx(
            missing_of(state, problem) ** 2 - gained[last], rel=1e-9
        )


def test_what_is_solved_already_stays_as_it_is():
    problem, cores = drawn()
    cores = centered(problem, cores, 0)
    W = spread(cores[0], frames(cores, 0, NUMPY), problem)
    exact = problem_of(W, problem.metric, problem.layout)
    sides, state = frames(cores, 0, NUMPY), als._state(cores, 0, exact)
    assert als._improved(state, sides, exact, Effort(steps=30, idle=0.0)) is state


def test_directions_without_a_metric_are_not_followed():
    # The metric sees the first of two columns alone, up to rounding.
    layout = MatrixLayout((2,), (2,))
    W, H = np.array([[1.0, 3.0], [2.0, 4.0]]), np.diag([1.0, 1e-30])
    metric, root = H, np.sqrt(H)
    problem = Problem(W, metric, root, 5.0, layout, NUMPY)
    sides = frames((np.zeros((1, 4, 1)),), 0, NUMPY)
    state = als._state((np.zeros((1, 4, 1)),), 0, problem)
    # What is left to gain lies where the metric has nothing.
    only = state._replace(
        missing=W * [0.0, 1.0], weighted=(W * [0.0, 1.0]) @ metric, core=np.zeros((1, 4, 1))
    )
    found = als._improved(only, sides, problem, Effort(steps=5, idle=0.0))
    assert not found.core.any()


def test_cores_do_not_grow_beyond_a_hundred_times_the_target():
    layout = MatrixLayout((1,), (2,))
    W, H = np.array([[1.0, 1.0]]), np.diag([1.0, 1e-9])
    problem = Problem(W, H, np.sqrt(H), 1.0, layout, NUMPY)
    sides = frames((np.zeros((1, 2, 1)),), 0, NUMPY)
    start = als._state((np.zeros((1, 2, 1)),), 0, problem)
    # A large gain along a direction that the metric hardly sees.
    far = start._replace(weighted=np.array([[0.0, 1e-5]]))
    found = als._improved(far, sides, problem, Effort(steps=3, idle=0.0))
    assert np.linalg.norm(found.core) <= 100 * np.linalg.norm(W)


def test_sweeps_end_at_the_goal_or_where_they_gain_little():
    problem, cores = drawn(1)
    full = refine(cores, None, problem, Effort(sweeps=12, enough=0.0))
    history = full.history
    assert len(history) > 4
    assert all(b <= a for a, b in itertools.pairwise(history))
    goal = 0.5 * (history[1] + history[2])
    assert refine(cores, None, problem, Effort(goal=goal, enough=0.0)).history == history[:3]
    assert refine(cores, None, problem, Effort(goal=2 * history[0])).history == history[:1]
    assert refine(cores, None, problem, Effort(sweeps=2, enough=0.0)).history == history[:3]
    gains = [1.0 - b / a for a, b in itertools.pairwise(history)]
    small = next(k for k, gain in enumerate(gains) if gain < 1e-2)
    assert refine(cores, None, problem, Effort()).history == history[: small + 2]


def test_going_on_appends_what_is_lower():
    problem, cores = drawn(1)
    begun = refine(cores, None, problem, Effort(sweeps=1))
    more = continued(begun, problem, Effort(sweeps=3, enough=0.0))
    assert more.history[:2] == begun.history
    assert all(b < a for a, b in zip(more.history, more.history[1:], strict=False))
    done = Fit(more.cores, more.center, (*more.history, 0.0))
    assert continued(done, problem, Effort(sweeps=1)) is done


def test_digits_beyond_single_precision_are_found_in_double():
    problem, cores = drawn(2)
    W = spread(cores[0], frames(cores, 0, NUMPY), problem)
    exact = problem_of(W, problem.metric, problem.layout)
    rng = np.random.default_rng(5)
    near = tuple(core + 1e-3 * rng.normal(size=core.shape) for core in cores)
    fit = refine(near, None, exact, Effort(sweeps=30, steps=60, enough=0.0, idle=0.0))
    assert fit.history[-1] < 1e-11


@pytest.mark.parametrize("seed", [0, 3])
def test_sweeps_that_single_precision_has_ended_go_on_in_double(seed):
    problem, cores = drawn(seed)
    fit = refine(cores, None, problem, Effort(sweeps=100, steps=60, enough=0.0, idle=0.0))
    state = als._state(fit.cores, fit.center, problem)
    residual = gathered(state.weighted, frames(fit.cores, fit.center, NUMPY), problem)
    assert fit.history[-1] > 0.1
    assert np.linalg.norm(residual) < 1e-10 * np.linalg.norm(state.weighted)
