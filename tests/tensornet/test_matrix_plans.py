"""The product of an MPO with vectors: every order, its plan, break-even bonds, the kept matrix."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import backend_of
from tensornet.contract.apply import apply_cores
from tensornet.contract.orders import counts, orders, product_costs
from tensornet.contract.speed import fastest
from tensornet.errors import MemoryLimitError, OptionError, ShapeError
from tensornet.testing import assert_close, layouts, mpo_cores

torch = pytest.importorskip("torch")
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}
AIMS = ("time", "multiply_adds", "peak", "traffic")


def folded(layout, x):
    """Return x as plans want it: (*col_dims, batch), padded."""
    missing = layout.padded_shape[1] - layout.cols
    return np.pad(x, [(0, missing), (0, 0)]).reshape(*layout.col_dims, x.shape[1])


@pytest.mark.parametrize("library", LIBRARIES)
@given(layout=layouts(), data=st.data(), batch=st.sampled_from([1, 2, 7]))
def test_every_order_gives_the_product(library, layout, data, batch):
    cores = tuple(data.draw(mpo_cores(layout)))
    x = np.random.default_rng(0).normal(size=(layout.cols, batch))
    expected = tn.contract_matrix(cores, layout) @ x
    make = LIBRARIES[library]
    for order in orders(layout.n_sites):
        got = apply_cores([make(c) for c in cores], layout, make(x), order)
        assert_close(np.asarray(got), expected, 1e-11)


@given(layout=layouts(max_sites=4), data=st.data(), batch=st.sampled_from([1, 3, 50]))
def test_plans_of_a_matrix_run_and_count(layout, data, batch):
    m = tn.MPO(data.draw(mpo_cores(layout)), layout.rows, layout.cols)
    x = np.random.default_rng(0).normal(size=(layout.cols, batch))
    plans = {aim: m.plan(batch, minimize=aim) for aim in AIMS}
    for plan in plans.values():
        assert plan.strategy in ("dense", "left", "right", "factorized")
        got = plan.run(*m.cores, folded(layout, x)).reshape(-1, batch)[: layout.rows]
        assert_close(got, m @ x, 1e-11)
    general = tn.plan(plans["peak"].equation, *plans["peak"].shapes)
    assert plans["multiply_adds"].multiply_adds == general.multiply_adds
    for aim, name in (("multiply_adds",) * 2, ("peak", "peak_elements"), ("traffic",) * 2):
        assert all(getattr(plans[aim], name) <= getattr(p, name) for p in plans.values())
    assert all(p.bytes_moved == 8 * p.traffic for p in plans.values())


@given(layout=layouts(max_sites=4), batch=st.sampled_from([1, 3, 50]), bond=st.integers(1, 9))
def test_counts_of_orders_are_those_of_their_plans(layout, batch, bond):
    if layout.padded:  # where padding counts in plans and not in the product with W
        layout = tn.MatrixLayout(layout.row_dims, layout.col_dims)
    bonds = layout.structural_bonds(bond)
    m = tn.MPO([np.zeros(shape) for shape in layout.core_shapes(bonds)])
    for minimize in AIMS:
        plan = m.plan(batch, minimize=minimize)
        found = [counts(order, layout, bonds, batch) for order in orders(layout.n_sites)]
        if plan.strategy != "factorized":
            assert (plan.multiply_adds, plan.traffic) in found
        assert m.plan(batch, minimize="multiply_adds").multiply_adds <= min(c[0] for c in found)


def test_m_at_x_follows_the_plan():
    m = tn.mpo(np.random.default_rng(0).standard_normal((768, 768)), max_bond=64)
    for batch in (1, 64, 4096):
        order = fastest(m.layout, m.bond_dims, batch, "numpy", "cpu")
        assert m.plan(batch).strategy == order.name
    assert m.plan(4096).strategy == "dense"
    small = tn.mpo(np.ones((768, 768)))
    assert small.plan(1).strategy != "dense"
    assert product_costs(m.layout, m.bond_dims[:-1], 4)["dense"] == (
        product_costs(m.layout, m.bond_dims[:-1], 1)["dense"] + 3 * 768 * 768
    )


def test_many_sites_have_plans_without_the_matrix():
    cores = [np.ones((1, 1, 1, 1))] * 34 + [np.ones((1, 2, 2, 1))] * 6
    m = tn.MPO(cores)
    assert m.plan(2).strategy != "dense"
    assert (m @ np.ones(64)).tolist() == [64.0] * 64
    with pytest.raises(MemoryLimitError, match="the smallest peak found, got 7"):
        m.plan(2, memory_limit=7)


def test_limits_of_memory():
    m = tn.MPO([np.ones((1, 4, 4, 8)), np.ones((8, 4, 4, 8)), np.ones((8, 4, 4, 1))])
    smallest = m.plan(16, minimize="peak").peak_elements
    assert m.plan(16, memory_limit=smallest).peak_elements == smallest
    with pytest.raises(MemoryLimitError) as refusal:
        m.plan(16, memory_limit=smallest - 1)
    assert refusal.value.smallest_peak == smallest
    text = f"memory_limit must be at least {smallest} elements, the smallest possible peak, got"
    assert str(refusal.value).startswith(text)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0,), ShapeError, "batch must be an integer of at least 1, got 0."),
        ((1.5,), ShapeError, "batch must be an integer of at least 1, got 1.5."),
        ((1, {"minimize": "speed"}), OptionError, "minimize must be one of 'time', "),
        ((1, {"memory_limit": -1}), OptionError, "memory_limit must be an integer of at least 1"),
    ],
)
def test_wrong_requests(arguments, error, text):
    batch, options = (*arguments, {})[:2]
    with pytest.raises(error) as refusal:
        tn.mpo(np.eye(4), 2).plan(batch, **options)
    assert str(refusal.value).startswith(text)


@given(layout=layouts(), batch=st.sampled_from([1, 4, 100]))
def test_break_even_is_where_the_best_order_turns(layout, batch):
    found = tn.break_even(layout, batch)
    rows, cols = layout.shape
    dense = (rows * cols * batch, rows * cols + (rows + cols) * batch)
    factored = [o for o in orders(layout.n_sites) if o.name != "dense"]

    def wins(bond, which):
        bonds = layout.structural_bonds(bond)
        return any(counts(o, layout, bonds, batch)[which] < dense[which] for o in factored)

    top = max(layout.structural_bonds())
    for which in range(2):
        assert [wins(b, which) for b in range(1, top + 1)] == [
            b <= found[which] for b in range(1, top + 1)
        ]


def test_break_even_of_networks_and_wrong_layouts():
    m = tn.mpo(np.eye(256), 4)
    assert m.break_even(1) == tn.break_even(m.layout, 1)
    with pytest.raises(ShapeError, match="layout must be a MatrixLayout, got int"):
        tn.break_even(4)
    with pytest.raises(ShapeError, match="batch must be"):
        tn.break_even(m.layout, 0)
    assert tn.break_even(tn.MatrixLayout((4,), (4,))) == (0, 0)


def test_a_cached_network_keeps_its_matrix():
    W = np.random.default_rng(0).normal(size=(12, 18))
    fast = tn.mpo(W, 2).cached()
    kept = fast.to_matrix()
    assert fast.to_matrix() is kept
    assert fast.shape == (12, 18)
    assert fast.T.shape == (18, 12)
    assert_close(fast @ np.ones(18), W @ np.ones(18), 1e-12)
    assert_close(np.ones((3, 12)) @ fast, np.ones((3, 12)) @ W, 1e-12)
    with pytest.raises(ValueError, match="read-only"):
        kept[0, 0] = 1
    with pytest.raises(AttributeError, match="immutable"):
        fast.mpo = None
    with pytest.raises(AttributeError, match="immutable"):
        del fast._kept
    with pytest.raises(ShapeError, match="dimension is 18"):
        fast @ np.ones(12)
    with pytest.raises(tn.errors.ArrayTypeError, match="to_matrix"):
        np.asarray(fast)
    assert_close(copy.deepcopy(fast).to_matrix(), W, 1e-12)
    assert repr(fast).startswith("CachedMPO(MPO(12x18")


def test_a_kept_matrix_is_dropped_when_something_was_changed_in_place():
    cores = [torch.ones(1, 2, 2, 2), torch.ones(2, 2, 2, 1)]
    fast = tn.MPO(cores).cached()
    kept = fast.to_matrix()
    cores[0].mul_(3)
    assert fast.to_matrix() is not kept
    assert fast.to_matrix()[0, 0] == 6
    fast.to_matrix().zero_()
    assert fast.to_matrix()[0, 0] == 6
    assert (fast @ torch.ones(4)).tolist() == [24.0] * 4


def test_nothing_is_kept_while_gradients_are_wanted_or_changes_cannot_be_seen():
    core = torch.ones(1, 2, 2, 1, requires_grad=True)
    fast = tn.MPO([core]).cached()
    for _ in range(2):
        (fast @ torch.ones(2)).sum().backward()
    assert core.grad.tolist() == (2 * torch.ones(1, 2, 2, 1)).tolist()
    with torch.no_grad():
        kept = fast.to_matrix()
    assert not kept.requires_grad
    assert (fast @ torch.ones(2)).requires_grad
    with torch.inference_mode():
        hidden = tn.MPO([torch.ones(1, 2, 2, 1)]).cached()
        assert hidden.to_matrix() is not hidden.to_matrix()


def test_the_product_of_half_precision_is_rounded_once():
    rng = np.random.default_rng(0)
    for dtype in (torch.float16, torch.bfloat16):
        m = tn.mpo(torch.as_tensor(rng.normal(size=(16, 64))).to(dtype), 2)
        x = torch.as_tensor(rng.normal(size=(64, 3))).to(dtype)
        wide = tn.MPO([c.to(torch.float32) for c in m.cores])
        for order in orders(2):
            got = apply_cores(m.cores, m.layout, x, order)
            exact = wide.to_matrix() @ x.to(torch.float32)
            assert got.dtype == dtype
            bound = torch.finfo(dtype).eps * exact.abs() + 1e-5
            assert ((got.to(torch.float32) - exact).abs() <= bound).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_flow_through_every_order(side):
    rng = np.random.default_rng(0)
    layout = tn.MatrixLayout((2, 2, 1), (1, 3, 2))
    shapes = layout.core_shapes((1, 2, 2, 1))
    cores = [torch.as_tensor(rng.normal(size=s)).requires_grad_() for s in shapes]
    x = torch.as_tensor(rng.normal(size=(6, 2))).requires_grad_()
    for order in orders(3):
        if order.side == side:
            torch.autograd.gradcheck(
                lambda *a, q=order: apply_cores(a[:-1], layout, a[-1], q), (*cores, x)
            )


def test_empty_batches_and_strange_memory():
    m = tn.mpo(np.random.default_rng(0).normal(size=(6, 8)), 2)
    assert (m @ np.ones((8, 0))).shape == (6, 0)
    x = np.asfortranarray(np.random.default_rng(1).normal(size=(16, 10)))[::-2, ::3]
    assert_close(m @ x, m.to_matrix() @ x, 1e-12)
    assert backend_of(x).name == "numpy"
