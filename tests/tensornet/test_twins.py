"""Both bonds of a site of 1 cut the same unfolding: one cut, which counts once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import tensornet as tn
from tensornet.backend import backend_of
from tensornet.bonds import chain_params, raised, structural_bonds
from tensornet.budget import fewest_params, least_error
from tensornet.fitting import _alike
from tensornet.fronts import front_of

ONE_CUT = tn.MatrixLayout((8, 1, 1, 1), (1, 1, 1, 8))
MIXED = tn.MatrixLayout((3, 1, 4, 1, 2), (4, 1, 2, 1, 3))


def gaussian(layout, seed=0):
    return np.random.default_rng(seed).normal(size=layout.shape)


def chains(layout, W):
    """Return parameters and squared relative bound of every chain that can be, by plain SVDs."""
    tensor, sites, tails = layout.fold(W), layout.site_dims, {}
    for k in range(1, layout.n_sites):
        if k > 1 and sites[k - 1] == 1:
            continue
        s = np.linalg.svd(tensor.reshape(math.prod(sites[:k]), -1), compute_uv=False) ** 2
        tails[k - 1] = np.concatenate([np.cumsum(s[::-1])[::-1], [0.0]]) / s.sum()
    caps = structural_bonds(sites)[1:-1]
    for bonds in itertools.product(*(range(1, cap + 1) for cap in caps)):
        if structural_bonds(sites, bonds)[1:-1] == bonds:
            yield chain_params(sites, bonds), sum(tail[bonds[k]] for k, tail in tails.items())


@pytest.mark.parametrize("measure", ["relative", "absolute", "retained"])
@pytest.mark.parametrize("budget", [30, 50, 90, 140])
def test_the_bound_of_a_matrix_that_is_cut_in_one_place_is_its_error(measure, budget):
    W = gaussian(ONE_CUT)
    found = tn.allocate([W], max_params=budget, shape=ONE_CUT, keep_dense=False, measure=measure)
    m = tn.mpo(W, ONE_CUT, bonds=found[0].bonds)
    assert m.n_params == found[0].n_params
    assert found[0].relative_error == pytest.approx(m.certificate.relative_error, rel=1e-9)
    assert found.error == pytest.approx(m.certificate.relative_error, rel=1e-9)
    assert len(set(m.bond_dims[1:-1])) == 1


@pytest.mark.parametrize("given_as", ["matrix", "network", "stack"])
def test_every_form_of_a_matrix_has_that_bound(given_as):
    W = gaussian(ONE_CUT)
    forms = {"matrix": W, "network": tn.mpo(W, ONE_CUT), "stack": np.stack([W, W])}
    shape = None if given_as == "network" else ONE_CUT
    found = tn.allocate([forms[given_as]], max_params=60, shape=shape, keep_dense=False)
    actual = tn.mpo(W, ONE_CUT, bonds=found[0].bonds).certificate.relative_error
    assert found[0].relative_error == pytest.approx(actual, rel=1e-9)


@pytest.fixture(scope="module")
def every():
    return list(chains(MIXED, gaussian(MIXED)))


@pytest.mark.parametrize("budget", [28, 37, 55, 80, 120, 200])
def test_a_budget_is_met_best_where_sites_are_one(budget, every):
    W = gaussian(MIXED)
    best = min(error for params, error in every if params <= budget)
    (row,) = tn.allocate([W], max_params=budget, shape=MIXED, keep_dense=False)
    assert row.relative_error**2 == pytest.approx(min(best, 1.0), rel=1e-9)
    m = tn.mpo(W, MIXED, max_params=budget)
    assert m.certificate.relative_error**2 <= best * (1 + 1e-9)


@pytest.mark.parametrize("rtol", [0.2, 0.4, 0.6, 0.9])
def test_a_tolerance_is_met_best_where_sites_are_one(rtol, every):
    W = gaussian(MIXED)
    fewest = min(params for params, error in every if error <= rtol**2)
    (row,) = tn.allocate([W], rtol=rtol, shape=MIXED, keep_dense=False)
    assert row.n_params == fewest
    assert tn.mpo(W, MIXED, rtol=rtol).n_params <= fewest


def test_bonds_of_a_site_of_one_rise_together():
    front = front_of(gaussian(MIXED), MIXED, backend_of(np.zeros(1)))
    sites = MIXED.site_dims
    for chosen in (
        least_error(sites, front.tails, 90, front.caps),
        fewest_params(sites, front.tails, 0.3, front.caps),
    ):
        assert chosen[0] == chosen[1]
        assert chosen[2] == chosen[3]


def test_what_is_raised_raises_its_twins_alone():
    assert raised((4, 1, 1, 4, 3), (2, 2, 2, 3), 0, 5) == (5, 5, 5, 3)
    assert raised((4, 1, 4, 3), (2, 2, 3), 2, 5) == (2, 2, 5)
    assert raised((4, 2, 4), (2, 3), 0, 4) == (4, 3)


@pytest.mark.parametrize("budget", [28, 40, 60, 100])
def test_bonds_under_one_cap_rise_with_their_twins(budget):
    front = front_of(gaussian(MIXED), MIXED, backend_of(np.zeros(1)))
    found = _alike(MIXED.site_dims, front.tails, budget, front.caps)
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert chain_params(MIXED.site_dims, found) <= budget
