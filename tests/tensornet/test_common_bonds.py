"""Bonds for many matrices without their networks: those that a stack gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.errors import NonFiniteError, OptionError, ShapeError, ToleranceError
from tensornet.testing import layouts

LAYOUT = ((2, 3, 4), (3, 4, 3))


def decaying(n, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(2, n, 24, 36))
    scales = np.exp(-np.arange(24.0)[:, None] * rng.uniform(0.05, 0.5, size=(n, 1, 1)))
    return ((left @ np.swapaxes(right, 1, 2)) @ (scales * right)).astype(dtype)


@pytest.mark.parametrize("limit", [{"rtol": 0.1}, {"rtol": 1e-3}, {"max_params": 300}])
@pytest.mark.parametrize("caps", [{}, {"max_bond": 9}, {"bonds": (6, 11)}])
def test_they_are_those_of_the_stack_in_every_library(limit, caps):
    W = decaying(3)
    if caps and "rtol" in limit:
        limit = {"rtol": 0.5}
    expected = tn.mpo(W, LAYOUT, **limit, **caps).bond_dims
    assert tn.common_bonds(W, LAYOUT, **limit, **caps) == expected
    assert tn.common_bonds(list(W), LAYOUT, **limit, **caps) == expected
    tensors = [torch.from_numpy(one) for one in W]
    assert tn.common_bonds(tensors, LAYOUT, **limit, **caps) == expected
    single = [one.requires_grad_() for one in tensors]
    assert tn.common_bonds(single, LAYOUT, **limit, **caps) == expected


@given(layout=layouts(), n=st.integers(1, 3), rtol=st.floats(1e-3, 0.9), seed=st.integers(0, 9))
def test_every_matrix_keeps_the_tolerance_with_them(layout, n, rtol, seed):
    W = np.random.default_rng(seed).normal(size=(n, *layout.shape))
    bonds = tn.common_bonds(list(W), layout, rtol=rtol)
    for one in W:
        assert tn.mpo(one, layout, bonds=bonds).certificate.relative_error <= rtol * (1 + 1e-9)


@pytest.mark.parametrize("n", [1, 2])
def test_a_budget_that_a_rank_does_not_use_up(n):
    W = np.ones((n, 24, 36))
    assert tn.common_bonds(W, LAYOUT, max_params=600) == (1, 1, 1, 1)
    assert tn.mpo(W, LAYOUT, max_params=600).bond_dims == (1, 1, 1, 1)


def test_matrices_of_zeros_and_one_matrix():
    assert tn.common_bonds([np.zeros((24, 36))] * 2, LAYOUT, rtol=0.1) == (1, 1, 1, 1)
    (W,) = decaying(1)
    assert tn.common_bonds([W], LAYOUT, rtol=0.1) == tn.mpo(W, LAYOUT, rtol=0.1).bond_dims


def test_a_tolerance_that_the_largest_bonds_do_not_keep_is_refused_by_name():
    W = np.stack([np.ones((24, 36)), np.random.default_rng(0).normal(size=(24, 36))])
    with pytest.raises(ToleranceError, match=r"^Ws\[1\]: rtol must be at least 0\.\d+ under these"):
        tn.common_bonds(W, LAYOUT, rtol=0.1, max_bond=3)


def test_bad_requests_are_told():
    W = np.ones((24, 36))
    for given_, text in (
        ({}, "rtol must be given, or max_params, one of the two, got none of them"),
        ({"rtol": 0.1, "max_params": 9}, "one of the two, got both"),
    ):
        with pytest.raises(OptionError, match=text):
            tn.common_bonds([W], LAYOUT, **given_)
    for wrong in ("ab", W, 3, None):
        with pytest.raises(OptionError, match="Ws must be a 3-D array or a sequence"):
            tn.common_bonds(wrong, LAYOUT, rtol=0.1)
    with pytest.raises(OptionError, match="Ws must hold at least one matrix, got none"):
        tn.common_bonds([], LAYOUT, rtol=0.1)
    for other in (W[:3], torch.ones(24, 36), W.astype("float32")):
        with pytest.raises(ShapeError, match=r"Ws\[1\] must be of one shape, library"):
            tn.common_bonds([W, other], LAYOUT, rtol=0.1)
    with pytest.raises(NonFiniteError, match=r"Ws\[1\] must be finite"):
        tn.common_bonds([W, W * np.nan], LAYOUT, rtol=0.1)
