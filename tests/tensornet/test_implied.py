"""Bonds that a neighbour limits: lowered to what can be, and never cut in vain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import backend_of
from tensornet.batch import decompose_batch
from tensornet.bonds import late_bonds, structural_bonds
from tensornet.single import Request
from tensornet.sweep import meeting_site

SHAPE = ((4, 4, 3, 4, 4), (4, 4, 3, 4, 4))


def tails_of(layout, W):
    """Return the tails of all unfoldings by plain SVDs, one for each inner bond."""
    tensor, found = layout.fold(W), []
    for k in range(1, layout.n_sites):
        s = np.linalg.svd(tensor.reshape(math.prod(layout.site_dims[:k]), -1), compute_uv=False)
        found.append(np.concatenate([np.cumsum(s[::-1] ** 2)[::-1], [0.0]]))
    return found


def bound(layout, W, bonds):
    """Return what the bonds discard (squared) that their neighbours don't limit anyway."""
    sites = layout.site_dims
    free = [
        bonds[k] < min(bonds[k - 1] * sites[k - 1], bonds[k + 1] * sites[k])
        for k in range(1, len(sites))
    ]
    parts = zip(tails_of(layout, W), bonds[1:-1], free, strict=True)
    return sum(tail[b] for tail, b, counts in parts if counts)


@st.composite
def cases(draw):
    n = draw(st.integers(2, 5))
    rows, cols = (
        tuple(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))) for _ in range(2)
    )
    # Twins, bonds on both sides of a site of 1, would have to be counted once.
    rows = tuple(2 if i * j == 1 else i for i, j in zip(rows, cols, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    W = rng.normal(size=(math.prod(rows), math.prod(cols)))
    bonds = draw(st.lists(st.sampled_from([1, 2, 3, 5, 9, 40]), min_size=n - 1, max_size=n - 1))
    return tn.MatrixLayout(rows, cols), W, bonds


@given(cases())
def test_no_bond_is_cut_in_vain(case):
    layout, W, bonds = case
    m = tn.mpo(W, layout, bonds=bonds)
    caps = structural_bonds(layout.site_dims, bonds)
    assert all(b <= cap for b, cap in zip(m.bond_dims, caps, strict=True))
    error = np.linalg.norm(m.to_matrix() - W)
    assert error**2 <= bound(layout, W, caps) * (1 + 1e-9) + 1e-20 * np.sum(W**2)
    assert m.certificate.relative_error * np.linalg.norm(W) == pytest.approx(error, abs=1e-11)
    rounded = tn.mpo(W, layout).round(bonds=bonds)
    assert rounded.certificate.relative_error == pytest.approx(
        m.certificate.relative_error, abs=1e-11
    )


@given(cases(), st.floats(0.05, 0.95), st.floats(1.0, 6.0))
def test_budgets_make_chains_that_can_be(case, rtol, factor):
    layout, W, _ = case
    sites = layout.site_dims
    exact, both = tn.mpo(W, layout), np.stack([W, W[::-1]])
    for limits in ({"rtol": rtol}, {"max_params": int(factor * sum(sites))}):
        for found in (tn.mpo(W, layout, **limits), exact.round(**limits)):
            assert structural_bonds(sites, found.bond_dims[1:-1]) == found.bond_dims
        batch = tn.mpo(both, layout, **limits)
        assert structural_bonds(sites, batch.bond_dims[1:-1]) == batch.bond_dims


@pytest.mark.parametrize("bonds", [(8, 16, 1, 8), (8, 1, 16, 8), (9, 2, 18, 40)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
def test_impossible_bonds_cost_what_the_possible_ones_cost(bonds, dtype):
    layout = tn.MatrixLayout(*SHAPE)
    W = np.random.default_rng(0).normal(size=layout.shape).astype(dtype)
    m = tn.mpo(W, layout, bonds=bonds)
    possible = structural_bonds(layout.site_dims, bonds)
    reduced = tn.mpo(W, layout, bonds=possible)
    assert m.bond_dims == reduced.bond_dims == possible
    assert m.certificate.relative_error == reduced.certificate.relative_error
    error = m.certificate.relative_error * np.linalg.norm(W)
    assert error**2 <= bound(layout, W, possible) * (1 + 1e-6)


def test_stacks_and_gradients_cut_in_the_same_order():
    rng, layout, bonds = np.random.default_rng(1), tn.MatrixLayout(*SHAPE), (8, 16, 1, 8)
    Ws = rng.normal(size=(2, *layout.shape))
    alone = [tn.mpo(W, layout, bonds=bonds) for W in Ws]
    stack = decompose_batch(
        Ws, layout, Request(None, bonds, None, "central"), backend_of(Ws), stacked=True
    )
    for k, m in enumerate(alone):
        expected = m.certificate.relative_error
        assert stack.certificates[k].relative_error == pytest.approx(expected, rel=1e-9)
    W = torch.from_numpy(Ws[0]).requires_grad_()
    m = tn.mpo(W, layout, bonds=bonds, differentiable=True)
    assert m.bond_dims == alone[0].bond_dims
    assert np.allclose(m.to_matrix().detach().numpy(), alone[0].to_matrix(), atol=1e-11)


def test_the_gradient_at_bonds_that_limit_each_other():
    layout = tn.MatrixLayout((3, 2, 2, 1, 2), (1, 3, 2, 2, 3))
    W = np.random.default_rng(2).normal(size=layout.shape)
    V = np.random.default_rng(3).normal(size=layout.shape)

    def value(step):
        m = tn.mpo(W + step * V, layout, bonds=(3, 8, 2, 2))
        return (m.to_matrix() ** 3).sum()

    leaf = torch.from_numpy(W).requires_grad_()
    m = tn.mpo(leaf, layout, bonds=(3, 8, 2, 2), differentiable=True)
    assert tn.mpo(leaf.detach(), layout, bonds=(3, 8, 2, 2), differentiable=True).center is None
    (m.to_matrix() ** 3).sum().backward()
    slope = float((leaf.grad * torch.from_numpy(V)).sum())
    assert slope == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("sites", [(6, 2, 3, 9, 2), (4, 2, 6), (16, 16, 9, 16, 16), (5, 1, 1, 7)])
def test_equal_caps_are_cut_at_once(sites):
    for cap in (1, 2, 3, 4, 64):
        caps = structural_bonds(sites, cap)
        late, lifted = late_bonds(sites, caps, meeting_site(sites))
        assert not late or lifted != caps
    assert late_bonds(sites, structural_bonds(sites), meeting_site(sites))[0] == ()


def test_the_bonds_that_wait():
    assert late_bonds((6, 2, 4), (1, 4, 2, 1), 1) == ((1,), (1, 6, 2, 1))
    assert late_bonds((4, 2, 6), (1, 2, 4, 1), 0) == ((2,), (1, 2, 6, 1))
    # A site of 1 has one cut: it waits if what lies beyond makes it wait, and else does not.
    assert late_bonds((8, 8, 1, 2, 9), (1, 8, 2, 2, 1, 1), 2) == ((2,), (1, 8, 18, 2, 1, 1))
    assert late_bonds((8, 8, 1, 8, 9), (1, 8, 2, 2, 1, 1), 2) == ((), (1, 8, 2, 2, 1, 1))


def test_spectra_of_bonds_that_waited_are_those_they_have():
    layout = tn.MatrixLayout(*SHAPE)
    W = np.random.default_rng(0).normal(size=layout.shape)
    m = tn.mpo(W, layout, bonds=(8, 16, 1, 8))
    found = m.certificate.singular_values
    assert np.allclose(found[1][:9], m.singular_values(2))
    assert len(found[0]) == 16  # those before the cut
