"""Budgets for many matrices: equal to the best of all choices, where all can be tried."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import knapsack, shares
from tensornet.fronts import Front
from tensornet.layout import matrix_layout
from tensornet.paths import Paths, undominated
from tensornet.truncation import tail_weights


def front(rng, layout, copies=(1, 1, 1)):
    power = rng.choice([0, 1, 3])
    tails = []
    for side in layout.structural_bonds()[1:-1]:
        tail = tail_weights(np.sort(rng.exponential(size=side) ** power)[::-1])
        tails.append(tail / tail[0])
    return Front(layout, 1.0, tuple(tails), copies)


def layout_of(rng, sites):
    rows, cols = (int(d) for d in rng.integers(3, 9, 2))
    if sites == 2:
        return matrix_layout(rows, cols, ((rows, 1), (1, cols)))
    return matrix_layout(rows, 2 * cols, sites)


def problem(seed, sites, count):
    rng = np.random.default_rng(seed)
    fronts = [
        front(rng, layout_of(rng, sites), tuple(int(k) for k in rng.integers(1, 4, 3)))
        for _ in range(count)
    ]
    factors = rng.uniform(0.1, 1.0, count)
    return fronts, (factors / factors.sum()).tolist()


def everything(fronts, factors, keep_dense):
    """Return parameters and errors of all combinations of all choices that nothing beats."""
    params, error = np.zeros(1), np.zeros(1)
    for one, factor in zip(fronts, factors, strict=True):
        chains = itertools.product(*(range(1, cap + 1) for cap in one.caps[1:-1]))
        choices = [one.choice(bonds) for bonds in chains] + [one.dense] * keep_dense
        sizes = np.array([float(c.params) for c in choices])
        parts = factor * np.array([c.loss for c in choices])
        useful = undominated(sizes, parts)
        params = np.add.outer(params, sizes[useful]).ravel()
        error = np.add.outer(error, parts[useful]).ravel()
    return params, error


problems = {
    "seed": st.integers(0, 2**32 - 1),
    "sites": st.sampled_from([2, 3]),
    "count": st.integers(2, 3),
    "keep_dense": st.booleans(),
    "level": st.floats(0.01, 0.99),
}


@given(**problems)
def test_no_choice_within_the_budget_discards_less(seed, sites, count, keep_dense, level):
    fronts, factors = problem(seed, sites, count)
    params, error = everything(fronts, factors, keep_dense)
    budget = int(params.min() + level * (params.max() - params.min()))
    found = shares.within_budget(fronts, factors, budget, keep_dense=keep_dense)
    assert found.params <= budget
    assert found.error <= error[params <= budget].min() * (1 + 1e-9) + 1e-14


@given(**problems)
def test_no_choice_within_the_tolerance_has_fewer_parameters(seed, sites, count, keep_dense, level):
    fronts, factors = problem(seed, sites, count)
    params, error = everything(fronts, factors, keep_dense)
    allowed = error.min() + level**2 * (error.max() - error.min())
    found = shares.within_error(fronts, factors, allowed, keep_dense=keep_dense)
    assert found.error <= allowed
    # Sums of the same parts in another order may fall on the other side of the limit.
    least, most = (params[error <= allowed * (1 + slack)].min() for slack in (1e-12, -1e-12))
    assert least <= found.params <= most


@pytest.mark.parametrize("seed", range(4))
def test_more_parameters_never_serve_worse(seed):
    fronts, factors = problem(seed, 2 + seed % 2, 3)
    params, _ = everything(fronts, factors, keep_dense=True)
    budgets = np.linspace(params.min(), params.max(), 40).astype(int)
    errors = [
        shares.within_budget(fronts, factors, int(budget), keep_dense=True).error
        for budget in budgets
    ]
    assert all(low <= high + 1e-14 for high, low in itertools.pairwise(errors))


def test_what_lies_above_the_hulls_is_found():
    rng = np.random.default_rng(375)
    Ws = {
        name: rng.normal(size=(8, 8)) @ np.diag(1.0 / np.arange(1, 9) ** power)
        for name, power in zip("ab", (0, 1), strict=True)
    }
    shape = ((8, 1), (1, 8))
    found = tn.allocate(Ws, max_params=64, shape=shape)
    assert [a.bonds for a in found] == [(3,), (1,)]
    assert found.n_params == 64
    assert found.error == pytest.approx(0.4055, abs=1e-4)
    made = [tn.mpo(Ws[a.name], shape, bonds=a.bonds).certificate.relative_error for a in found]
    assert found.error == pytest.approx(np.sqrt(np.mean(np.square(made))))
    again = tn.allocate(Ws, rtol=found.error * (1 + 1e-9), shape=shape)
    assert [a.bonds for a in again] == [(3,), (1,)]


def test_weights_and_copies_reach_the_search():
    rng = np.random.default_rng(3)
    Ws = {"a": rng.normal(size=(6, 8)), "b": rng.normal(size=(8, 5))}
    shape = {"a": ((6, 1), (1, 8)), "b": ((8, 1), (1, 5))}
    copies, weights = {"a": (3, 1, 3)}, {"b": 4.0}
    values = {name: np.linalg.svd(W, compute_uv=False) ** 2 for name, W in Ws.items()}
    tails = {name: np.append(1 - np.cumsum(v) / v.sum(), 0.0) for name, v in values.items()}
    pairs = list(itertools.product(range(1, 7), range(1, 6)))
    for budget in range(60, 300, 16):
        # Of two sites the second is the central one.
        sizes = [(3 * 6 + 8) * a + 13 * b for a, b in pairs]
        errors = [(tails["a"][a - 1] + 4 * tails["b"][b - 1]) / 5 for a, b in pairs]
        best = min(e for e, size in zip(errors, sizes, strict=True) if size <= budget)
        options = {"shape": shape, "copies": copies, "weights": weights, "keep_dense": False}
        found = tn.allocate(Ws, max_params=budget, **options)
        assert found.error == pytest.approx(np.sqrt(max(best, 0.0)), abs=1e-7)


@pytest.mark.parametrize("by_params", [True, False])
def test_merged_fronts_stay_small_and_never_serve_worse_than_the_walk(by_params, monkeypatch):
    fronts, factors = problem(1, 3, 12)
    sizes = []
    merged = knapsack._merged

    def watched(*arguments):
        found = merged(*arguments)
        sizes.append(len(found.left))
        return found

    def asked():
        if by_params:
            found = shares.within_error(fronts, factors, 0.05, keep_dense=True)
            return found.params, found.error <= 0.05
        found = shares.within_budget(fronts, factors, 900, keep_dense=True)
        return found.error, found.params <= 900

    exact, _ = asked()
    with monkeypatch.context() as patch:
        patch.setattr(shares, "best_sum", lambda *_: None)
        walked, _ = asked()
    monkeypatch.setattr(knapsack, "KEPT", 6)
    monkeypatch.setattr(knapsack, "_CHUNK", 64)
    monkeypatch.setattr(knapsack, "_SHARES", (1.0,))
    monkeypatch.setattr(knapsack, "_merged", watched)
    thinned, kept = asked()
    assert kept
    assert exact <= thinned <= walked
    assert len(sizes) == 11
    assert max(sizes) <= 7


def test_points_that_are_dropped_before_sorting_are_beaten(monkeypatch):
    rng = np.random.default_rng(0)
    params, error = rng.integers(0, 1000, 3000).astype(float), rng.exponential(size=3000)
    points = knapsack.Columns(params, error, params + error)
    every = undominated(params, error)
    monkeypatch.setattr(knapsack, "_BOXES", 50)
    hopeful = knapsack._hopeful(points)
    assert set(every) <= set(hopeful)
    assert len(hopeful) < 1000
    assert sorted(knapsack._pruned(points)) == sorted(every)


def test_all_chains_below_a_bound_are_found():
    one = front(np.random.default_rng(5), matrix_layout(6, 16, 3))
    chains = itertools.product(*(range(1, cap + 1) for cap in one.caps[1:-1]))
    choices = [one.choice(bonds) for bonds in chains]
    params, shares_ = (np.array(c, float) for c in zip(*(c[1:3] for c in choices), strict=True))
    useful = undominated(params, shares_)
    value = params + 300.0 * shares_
    for bound in (value.min(), 1.2 * value.min(), np.inf):
        found = Paths(one.costs, one.tails, one.caps, dims=one.layout.site_dims).within(
            300.0, bound
        )
        near = [at for at in useful if value[at] <= bound * (1 + 1e-12)]
        assert found.params.tolist() == params[near].tolist()
        assert [tuple(b) for b in found.bonds.tolist()] == [choices[at].bonds for at in near]
