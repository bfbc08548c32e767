"""Bonds for a budget: equal to the best of all chains, on chains small enough to try them all."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensornet.bonds import structural_bonds
from tensornet.budget import fewest_params, frontier, least_error
from tensornet.paths import Labels, _thinned
from tensornet.truncation import tail_weights


def params(sites, bonds):
    return sum(a * d * b for a, d, b in zip((1, *bonds), sites, (*bonds, 1), strict=True))


def cost(tails, bonds):
    """Return what bonds discard; both bonds of a site of 1, which share one tail, count once."""
    cuts = enumerate(zip(tails, bonds, strict=True))
    return float(sum(t[b] for k, (t, b) in cuts if not k or t is not tails[k - 1]))


@st.composite
def chains(draw):
    n = draw(st.integers(2, 5))
    sites = tuple(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    power = draw(st.sampled_from([0, 1, 3]))
    tails = [
        tail_weights(np.sort(rng.exponential(size=rng.integers(1, 6)) ** power)[::-1])
        for _ in range(n - 1)
    ]
    for k in range(1, n - 1):
        if sites[k] == 1:  # both of its bonds are one cut
            tails[k] = tails[k - 1]
    caps = structural_bonds(sites, [int(rng.integers(1, len(tail))) for tail in tails])
    return sites, tails, caps


def all_bonds(sites, caps):
    """Return all bonds under caps that a chain of such sites can have."""
    every = itertools.product(*(range(1, cap + 1) for cap in caps[1:-1]))
    return [bonds for bonds in every if structural_bonds(sites, bonds)[1:-1] == bonds]


@given(chains(), st.floats(0.0, 1.0))
def test_no_chain_within_the_tolerance_has_fewer_parameters(chain, share):
    sites, tails, caps = chain
    allowed = share * cost(tails, (0,) * len(tails))
    kept = [bonds for bonds in all_bonds(sites, caps) if cost(tails, bonds) <= allowed]
    found = fewest_params(sites, tails, allowed, caps, dims=sites)
    assert structural_bonds(sites, found)[1:-1] == found
    if kept:
        assert cost(tails, found) <= allowed * (1 + 1e-12)
        assert params(sites, found) == min(params(sites, bonds) for bonds in kept)
    else:
        assert cost(tails, found) == pytest.approx(cost(tails, caps[1:-1]))


@given(chains(), st.floats(1.0, 20.0))
def test_no_chain_within_the_budget_discards_less(chain, factor):
    sites, tails, caps = chain
    budget = int(factor * sum(sites))
    found = least_error(sites, tails, budget, caps, dims=sites)
    assert structural_bonds(sites, found)[1:-1] == found
    assert params(sites, found) <= budget
    best = min(cost(tails, b) for b in all_bonds(sites, caps) if params(sites, b) <= budget)
    assert cost(tails, found) <= best * (1 + 1e-12) + 1e-14


@pytest.mark.parametrize("turned", [False, True])
def test_no_bond_is_larger_than_its_neighbour_times_the_site_between(turned):
    flat, slow = np.array([1.0, 1e-3, 1e-4, 1e-5, 0.0]), np.array([1.0, 0.8, 0.6, 0.3, 0.0])
    tails, step = ([slow, flat], -1) if turned else ([flat, slow], 1)
    sites, caps = (4, 2, 4), (1, 4, 4, 1)
    # A bond of 4 beside one of 1 would discard least of all that fit.
    assert least_error(sites, tails, 32, caps)[::step] == (1, 4)
    assert least_error(sites, tails, 32, caps, dims=sites)[::step] == (2, 3)
    assert fewest_params(sites, tails, 0.5, caps, dims=sites)[::step] == (2, 3)


def test_what_is_zero_keeps_bonds_of_one():
    nothing = np.zeros(1)
    assert fewest_params((2, 2, 2), [nothing, nothing], 0.5, (1, 1, 1, 1)) == (1, 1)
    assert least_error((2, 2, 2), [nothing, nothing], 10, (1, 1, 1, 1)) == (1, 1)


def test_a_single_site_has_no_bonds():
    assert fewest_params((5,), (), 0.0, (1, 1)) == ()
    assert least_error((5,), (), 5, (1, 1)) == ()


def test_a_budget_below_the_smallest_chain_gives_the_smallest():
    tails = [tail_weights(np.array([3.0, 1.0]))]
    assert least_error((4, 4), tails, 3, (1, 2, 1)) == (1,)


@pytest.mark.parametrize("share", [1e-3, 0.1, 0.5])
@pytest.mark.parametrize("power", [0.0, 0.6, 1.5])
def test_bonds_of_a_large_matrix_take_no_time(share, power):
    sites, sides = (20, 28, 72, 56, 20), (20, 560, 1024, 20)
    tails = [tail_weights(1.0 / np.arange(1, side + 1) ** power) for side in sides]
    tails = [tail / tail[0] for tail in tails]
    start = time.perf_counter()
    bonds = fewest_params(sites, tails, share, (1, *sides, 1))
    budget = params(sites, bonds)
    equal = least_error(sites, tails, budget, (1, *sides, 1))
    assert time.perf_counter() - start < 3.0
    assert cost(tails, bonds) <= share
    assert params(sites, equal) <= budget
    assert cost(tails, equal) <= cost(tails, bonds) * (1 + 1e-12)


@given(chains())
def test_the_frontier_is_the_lower_hull_of_all_chains(chain):
    sites, tails, caps = chain
    points = [(params(sites, b), cost(tails, b)) for b in all_bonds(sites, caps)]
    found = frontier(sites, tails, caps, 10**9, sites)
    sizes = [size for _, size, _ in found]
    assert sizes == sorted(sizes)
    for bonds, size, tail in found:
        assert size == params(sites, bonds)
        assert tail == pytest.approx(cost(tails, bonds))
    corners = [(size, tail) for _, size, tail in found]
    for (few, high), (much, low) in itertools.pairwise(corners):
        for size, tail in points:
            if few < size < much:
                line = high + (size - few) / (much - few) * (low - high)
                assert tail >= line - 1e-9 * (1 + high)


def test_a_flat_spectrum_of_many_sites_is_thinned_within_its_gap():
    sites, sides = (6, 8, 16, 8, 6, 4), (6, 48, 192, 24, 4)
    tails = [tail_weights(np.full(side, 1.0 / side)) for side in sides]
    caps = (1, *sides, 1)
    with pytest.MonkeyPatch.context() as patch:
        budget = params(sites, sides) // 3
        best = cost(tails, least_error(sites, tails, budget, caps))
        few = params(sites, fewest_params(sites, tails, 2.0, caps))
        patch.setattr("tensornet.paths.MOST", 2000)
        thinned = least_error(sites, tails, budget, caps)
        smaller = fewest_params(sites, tails, 2.0, caps)
    assert params(sites, thinned) <= budget
    assert best <= cost(tails, thinned) * (1 + 1e-12) <= 1.05 * best
    assert cost(tails, smaller) <= 2.0 * (1 + 1e-12)
    assert few <= params(sites, smaller) <= 1.05 * few


def test_thinning_keeps_the_best_of_each_box():
    tail = np.array([0.1, 0.2, 1.0, 1.1, 0.1, 2.0])
    params = np.array([9.0, 3.0, 2.0, 1.0, 5.0, 0.0])
    pick = np.array([0, 0, 0, 0, 1, 1])
    kept = _thinned(Labels(pick, pick + 1.0, params, tail, np.arange(6)), by_params=False, most=4)
    assert sorted(kept.parent.tolist()) == [1, 3, 4, 5]
