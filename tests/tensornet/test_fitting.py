"""Budgets met by decompositions and roundings: fewest parameters, least error, exact messages."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import fitting
from tensornet.bonds import structural_bonds
from tensornet.testing.strategies import layouts, matrices

SITES = ((4, 4, 4), (4, 4, 4))
KINDS = ("gaussian", "decaying", "repeated")


def gaussian(rows, cols, dtype="float64"):
    return np.random.default_rng(0).normal(size=(rows, cols)).astype(dtype)


def tails_of(layout, W):
    """Return the tails of all unfoldings by plain SVDs."""
    tensor, found = layout.fold(W), []
    for k in range(1, layout.n_sites):
        s = np.linalg.svd(tensor.reshape(math.prod(layout.site_dims[:k]), -1), compute_uv=False)
        found.append(np.concatenate([np.cumsum(s[::-1] ** 2)[::-1], [0.0]]))
    return found


def every_chain(layout, W):
    """Return (parameters, bound of the squared error) of every tuple of bonds."""
    tails = tails_of(layout, W)
    caps = structural_bonds(layout.site_dims)[1:-1]
    for bonds in itertools.product(*(range(1, cap + 1) for cap in caps)):
        error = sum(tail[b] for tail, b in zip(tails, bonds, strict=True))
        yield layout.n_params((1, *bonds, 1)), error


@st.composite
def small(draw):
    layout = draw(layouts(max_size=40, max_sites=4))
    assume(math.prod(structural_bonds(layout.site_dims)) <= 3000)
    W = draw(matrices(layout, kinds=KINDS))
    assume(np.linalg.norm(W) > 0)
    return layout, W / np.linalg.norm(W)


@given(small(), st.sampled_from([0.8, 0.3, 0.05, 1e-3, 1e-7]))
def test_rtol_costs_no_more_parameters_than_the_best_bonds(case, rtol):
    layout, W = case
    m = tn.mpo(W, layout, rtol=rtol)
    allowed = rtol**2 * (1 - 1e-5)
    assert m.n_params <= min(p for p, error in every_chain(layout, W) if error <= allowed)
    assert np.linalg.norm(m.to_matrix() - W) <= rtol * (1 + 1e-9)


def test_a_site_of_one_is_cut_once():
    layout = tn.MatrixLayout((1, 1, 1, 1), (2, 1, 2, 2), 1, 7)
    W = np.array([[-0.23, 0.15, 0.56, 0.40, -0.30, -0.54, -0.27]])
    # Both its bonds have one spectrum: adding it twice would leave the smallest chain out.
    assert tn.mpo(W, layout, rtol=0.8).bond_dims == (1, 1, 1, 1, 1)


@given(small(), st.floats(1.0, 6.0))
def test_max_params_errs_no_more_than_the_bound_of_the_best_bonds(case, factor):
    layout, W = case
    budget = int(factor * sum(layout.site_dims))
    m = tn.mpo(W, layout, max_params=budget)
    assert m.n_params <= budget
    bound = min(error for p, error in every_chain(layout, W) if p <= budget)
    error = np.linalg.norm(m.to_matrix() - W)
    assert error <= math.sqrt(bound) * (1 + 1e-6) + 1e-12
    assert m.certificate.relative_error == pytest.approx(error, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("budget", [200, 1000, 3000])
def test_a_budget_is_met_to_within_one_bond_step(dtype, budget):
    W = gaussian(64, 64, dtype)
    m = tn.mpo(W, SITES, max_params=budget)
    assert m.n_params <= budget
    for k, cap in enumerate(structural_bonds(m.layout.site_dims)[1:-1], start=1):
        raised = list(m.bond_dims)
        raised[k] += 1
        assert raised[k] > cap or m.layout.n_params(raised) > budget


def test_a_budget_beats_equal_bonds_and_the_rounding_of_them():
    W = gaussian(64, 64) * np.exp(-np.arange(64) / 8.0)
    equal = tn.mpo(W, 5, max_bond=6)
    m = tn.mpo(W, 5, max_params=equal.n_params)
    assert m.n_params <= equal.n_params
    assert m.certificate.relative_error <= equal.certificate.relative_error
    rounded = tn.mpo(W, 5).round(max_params=equal.n_params)
    assert rounded.bond_dims == m.bond_dims
    assert rounded.certificate.relative_error == pytest.approx(m.certificate.relative_error)


def test_fewer_parameters_than_an_equal_split_of_the_tolerance():
    i = np.arange(256.0)
    W = 1.0 / (1.0 + np.abs(i[:, None] - 1.7 * i))
    m = tn.mpo(W, 4, rtol=0.05)
    split = tn.mpo(W, 4, bonds=m.bond_dims)
    assert split.certificate.relative_error <= 0.05
    assert m.n_params < min(
        tn.mpo(W, 4, max_bond=b).n_params
        for b in range(1, 40)
        if tn.mpo(W, 4, max_bond=b).certificate.relative_error <= 0.05
    )


def test_an_ample_budget_is_exact():
    W = gaussian(64, 64)
    m = tn.mpo(W, SITES, max_params=10**9)
    assert m.bond_dims == (1, 16, 16, 1)
    assert np.allclose(m.to_matrix(), W, atol=1e-13)


def test_a_deficient_matrix_takes_no_more_than_its_rank():
    W = np.kron(gaussian(8, 8), gaussian(8, 8))
    m = tn.mpo(W, ((8, 8), (8, 8)), max_params=10_000)
    assert m.bond_dims == (1, 1, 1)
    assert m.certificate.relative_error < 1e-12


def test_budgets_and_caps_together():
    W = gaussian(64, 64)
    m = tn.mpo(W, SITES, max_params=2000, max_bond=5)
    assert max(m.bond_dims) == 5
    assert tn.mpo(W, SITES, rtol=0.9, bonds=[3, 16]).bond_dims[1] <= 3


def test_trains_round_to_budgets():
    t = tn.tt(gaussian(16, 64).reshape(4, 4, 4, 4, 4), max_params=100)
    assert t.n_params <= 100
    again = tn.tt(gaussian(16, 64).reshape(4, 4, 4, 4, 4)).round(max_params=100)
    assert again.bond_dims == t.bond_dims
    assert t.round(max_params=20).bond_dims == (1,) * 6


def test_the_library_of_the_array_makes_no_difference():
    W = gaussian(96, 96, "float32")
    for limits in ({"max_params": 3000}, {"rtol": 0.3}):
        ours, torchs = tn.mpo(W, 3, **limits), tn.mpo(torch.from_numpy(W), 3, **limits)
        assert ours.bond_dims == torchs.bond_dims
        assert np.allclose(ours.to_matrix(), torchs.to_matrix().numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0, "max_params must be an integer of at least 1, got 0"),
        (-3, "max_params must be an integer of at least 1, got -3"),
        (2.5, "max_params must be an integer of at least 1, got 2.5"),
        (True, "max_params must be an integer of at least 1, got True"),
        ("9", "max_params must be an integer of at least 1, got '9'"),
        ([100], "max_params must be an integer of at least 1, got [100]"),
        (
            47,
            "max_params must be at least 48, the parameters of the chain whose bonds are all 1",
        ),
    ],
)
def test_invalid_budgets(given, text):
    W = gaussian(64, 64)
    for call in (
        lambda: tn.mpo(W, SITES, max_params=given),
        lambda: tn.mpo(W, SITES).round(max_params=given),
        lambda: tn.tt(W.reshape(16, 16, 16), max_params=given),
    ):
        with pytest.raises(tn.errors.OptionError) as caught:
            call()
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"rtol": 0.5}, "max_params must not come with rtol, got rtol=0.5. Leave one of them out."),
        ({"bonds": "full"}, "bonds must not be 'full' with max_params, got max_params=500."),
        ({"gauge": "identity"}, "gauge must not be 'identity' with limits, got max_params."),
    ],
)
def test_budgets_that_contradict_other_options(limits, text):
    with pytest.raises(tn.errors.OptionError) as caught:
        tn.mpo(gaussian(64, 64), SITES, max_params=500, **limits)
    assert text in str(caught.value)


def test_rounding_takes_one_budget():
    with pytest.raises(tn.errors.OptionError, match="must not come with rtol"):
        tn.mpo(gaussian(64, 64), SITES).round(max_params=500, rtol=0.1)


@pytest.mark.parametrize(
    ("bonds", "text"),
    [
        (2.0, "bonds must be a sequence of integers, got 2.0"),
        ([2.0, 3], "bonds[0] must be an integer of at least 1, got 2.0"),
        ([2, 0], "bonds[1] must be an integer of at least 1, got 0"),
        ([2, 3, 4], "bonds must have 2 inner bonds, or 4 with 1 at both ends, got 3 values"),
    ],
)
def test_invalid_bonds(bonds, text):
    with pytest.raises(tn.errors.BondError) as caught:
        tn.mpo(gaussian(64, 64), SITES, bonds=bonds)
    assert text in str(caught.value)


def test_zero_and_one_site():
    zero = tn.mpo(np.zeros((8, 8)), ((2, 2, 2), (2, 2, 2)), max_params=100)
    assert zero.bond_dims == (1, 1, 1, 1)
    assert tn.mpo(np.zeros((8, 8)), 3, rtol=0.1).bond_dims == (1, 1, 1, 1)
    one = tn.mpo(gaussian(4, 4), 1, max_params=16)
    assert np.array_equal(one.to_matrix(), gaussian(4, 4))
    assert tn.mpo(gaussian(4, 4), 1, rtol=0.1).n_params == 16


def test_a_chain_says_which_budget_is_too_small():
    with pytest.raises(tn.errors.OptionError, match="at least 12"):
        fitting.budget(11, (4, 4, 4))
