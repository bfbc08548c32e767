"""What decompositions in a metric are made of: gauges, guides of bonds, and the best start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet.als import Fit, Problem, frames, spread
from tensornet.backend import load_backend
from tensornet.layout import MatrixLayout
from tensornet.metric_bonds import Guide, fewest, guide_for
from tensornet.metric_starts import best_start, starts
from tensornet.single import Request
from tensornet.testing import assert_isometric
from tensornet.whitening import checked_metric

NUMPY = load_backend("numpy")


def sample(rows: int, cols: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.linspace(0.01, 3.0, cols)[:, None] * rng.normal(size=(cols, 4 * cols))
    return rng.normal(size=(rows, cols)), X @ X.T / (4 * cols)


@pytest.mark.parametrize("gauge", ["central", "left", "right"])
@pytest.mark.parametrize(
    "shape",
    [
        ((12, 1), (1, 16)),
        ((1, 12), (16, 1)),
        ((2, 3, 2), (1, 1, 16)),
        ((2, 3, 2), (16, 1, 1)),
        ((2, 3, 2), (1, 16, 1)),
        ((2, 3, 2), (2, 2, 4)),
    ],
)
def test_cores_around_the_center_are_isometric(shape: Any, gauge: Any) -> None:
    W, H = sample(12, 16)
    m = tn.mpo(W, shape, metric=H, max_bond=3, gauge=gauge)
    n = len(shape[0])
    assert m.center == {"central": n // 2, "left": n - 1, "right": 0}[gauge]
    for k, core in enumerate(m.cores):
        if k != m.center:
            assert_isometric(core, "left" if k < m.center else "right")


SITES, CAPS = (4, 6, 4), (1, 4, 4, 1)
TAILS = (np.array([4.0, 2.0, 1.0, 0.25, 0.0]), np.array([4.0, 1.5, 0.5, 0.25, 0.0]))
GUIDE = Guide(SITES, CAPS, TAILS, 4.0)


def cost(bonds: tuple[int, ...]) -> float:
    return sum(float(tail[b]) for tail, b in zip(TAILS, bonds[1:-1], strict=True))


def params(bonds: tuple[int, ...]) -> int:
    return sum(a * d * b for a, d, b in zip(bonds, SITES, bonds[1:], strict=False))


EVERY = [(1, a, b, 1) for a in range(1, 5) for b in range(1, 5)]


@pytest.mark.parametrize("level", [0.9, 0.6, 0.5, 0.4, 0.1])
def test_a_level_is_an_error_and_takes_the_fewest_parameters(level: float) -> None:
    found = GUIDE.bonds(level)
    kept = [bonds for bonds in EVERY if cost(bonds) <= level**2 * 4.0]
    assert cost(found) <= level**2 * 4.0
    assert params(found) == min(params(bonds) for bonds in kept)


def test_a_level_below_what_the_caps_leave_takes_the_caps() -> None:
    narrow = GUIDE._replace(caps=(1, 2, 2, 1))
    assert narrow.bonds(1e-3) == (1, 2, 2, 1)
    assert GUIDE.bonds(0.0) == CAPS


@pytest.mark.parametrize("budget", [14, 30, 50, 80, 110, 128, 1000])
def test_a_budget_is_spent(budget: int) -> None:
    for found in (GUIDE.affordable(budget), GUIDE.even(budget)):
        assert params(found) <= budget
        for k in (1, 2):
            raised = (*found[:k], found[k] + 1, *found[k + 1 :])
            assert raised[k] > CAPS[k] or params(raised) > budget
    least = min(cost(bonds) for bonds in EVERY if params(bonds) <= budget)
    assert cost(GUIDE.affordable(budget)) == least
    one, two = GUIDE.even(budget)[1:-1]
    assert abs(one - two) <= 1 or budget < 50
    if budget >= 128:
        assert GUIDE.affordable(budget) == GUIDE.even(budget) == CAPS


@pytest.mark.parametrize("sites", [(2, 3, 4), (6, 2, 2), (2, 2, 6)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_guide_has_the_tails_of_all_unfoldings(sites: Any, dtype: str) -> None:
    rng = np.random.default_rng(1)
    tensor = rng.normal(size=sites) + (1j * rng.normal(size=sites) if dtype[0] == "c" else 0.0)
    found = guide_for(tensor, (1, 9, 9, 1), 7.0, NUMPY)
    assert (found.site_dims, found.caps, found.total) == (sites, (1, 9, 9, 1), 7.0)
    for k, tail in enumerate(found.tails, start=1):
        s = np.linalg.svd(tensor.reshape(int(np.prod(sites[:k])), -1), compute_uv=False)
        assert tail == pytest.approx(np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0), abs=1e-12)


def fit(bonds: tuple[int, ...], error: float) -> Fit:
    return Fit((bonds,), 0, (error,))


def test_the_smallest_network_that_keeps_the_room_is_found() -> None:
    begun: list[tuple[int, ...]] = []

    def begin(bonds: tuple[int, ...]) -> Fit:
        begun.append(bonds)
        return fit(bonds, 0.8 * np.sqrt(cost(bonds) / 4.0))

    for room in (0.7, 0.4, 0.2):
        found = fewest(GUIDE, room, begin, lambda one: one)
        fitting = [b for b in EVERY if 0.8 * np.sqrt(cost(b) / 4.0) <= room]
        assert found.history[-1] <= room
        assert params(found.cores[0]) <= 1.3 * min(params(b) for b in fitting)
    assert len(begun) < 30


def test_at_the_caps_a_network_is_given_a_last_chance() -> None:
    def begin(bonds: tuple[int, ...]) -> Fit:
        return fit(bonds, 0.1 if bonds == CAPS else 0.9)

    assert fewest(GUIDE, 0.5, begin, lambda one: one).cores[0] == CAPS
    text = r"rtol must leave room for an error of 0.9 in the metric, got room for 0.5 under .*4, 4"
    with pytest.raises(tn.errors.ToleranceError, match=text):
        fewest(GUIDE, 0.5, lambda bonds: fit(bonds, 0.9), lambda one: one)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_the_starts_is_taken(seed: int) -> None:
    W, H = sample(12, 16, seed)
    layout = MatrixLayout((2, 3, 2), (2, 2, 4))
    metric = checked_metric(H, W, W, NUMPY)
    problem = Problem(W, metric.matrix, metric.root, metric.square(W, NUMPY), layout, NUMPY)
    asked = Request(None, (3, 3), None, "central")

    def error(start: Any) -> float:
        found = spread(start.cores[0], frames(start.cores, 0, NUMPY), problem)
        return float(np.linalg.norm((W - found) @ metric.root))

    errors = [error(start) for start in starts(problem, metric, asked)]
    assert len(set(errors)) == 3
    assert error(best_start(problem, metric, asked)) == pytest.approx(min(errors))
