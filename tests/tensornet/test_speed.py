"""What orders consist of, counted, and products with few columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backend import load_backend
from tensornet.checks import alike
from tensornet.contract.apply import product
from tensornet.contract.orders import Order, applying, counts, orders
from tensornet.contract.route import fastest_route, route
from tensornet.contract.speed import Speed, expected_seconds, fastest, features, ranked, speed_of

LAYOUT = tn.matrix_layout(64, 96, 4)
BONDS = (1, 3, 4, 3, 1)
NAMES = Speed._fields[:-1]


def named(order, batch, few=1, bonds=BONDS, layout=LAYOUT):
    return dict(zip(NAMES, features(order, layout, bonds, batch, few), strict=True))


@pytest.mark.parametrize("few", [1, 4, 15])
@pytest.mark.parametrize("batch", [1, 3, 8, 40])
def test_multiply_adds_are_those_of_the_plan(batch, few):
    for order in orders(4):
        assert named(order, batch, few)["multiply_add"] == counts(order, LAYOUT, BONDS, batch)[0]


def test_the_matrix_is_sorted_in_two_halves_and_a_core_alone_as_it_lies():
    dense = named(Order((0,), "left", 4), 8)
    assert (dense["call"], dense["join"], dense["copy"]) == (1, 3, 2)  # one half is a core
    right = named(Order((0, 1, 2, 3), "right", 4), 8)
    assert (right["call"], right["join"], right["copy"], right["run"]) == (4, 0, 0, 0)
    assert named(Order((0, 1, 2, 3), "left", 4), 8)["copy"] == 4
    assert (
        named(Order((0,), "left", 1), 8, bonds=(1, 1), layout=tn.matrix_layout(6, 6, 1))["copy"]
        == 0
    )


def test_pieces_are_as_long_as_what_stays_together():
    # From the left the right bond stays together, from the right the last columns too.
    order = Order((0, 2), "left", 4)
    first = LAYOUT.site_dims[0] * LAYOUT.site_dims[1]
    second = 4 * LAYOUT.site_dims[2] * LAYOUT.site_dims[3] // LAYOUT.col_dims[3]
    assert named(order, 40)["run"] == first + second
    other = named(Order((0, 2), "right", 4), 40)["run"]
    assert other == first // LAYOUT.col_dims[1] + second


def test_products_side_by_side_are_moved_twice():
    order, few = Order((0, 1, 2, 3), "right", 4), 15
    apart, beside = named(order, 2), named(order, 2, few)
    assert beside["item"] < apart["item"]
    assert beside["copy"] > apart["copy"]
    assert named(order, 40, few)["item"] == named(order, 40)["item"]


def test_lost_columns_large_arrays_and_the_sum():
    dense = Order((0,), "left", 4)
    thin = [named(dense, batch)["thin"] for batch in (1, 16, 17, 32)]
    assert thin[0] == thin[1] == thin[3]
    assert thin[2] - thin[1] == 15 * 64 * 96
    assert named(dense, 4)["far"] == 0
    assert named(dense, 2**15)["far"] == 64 * 2**15
    # The C library takes 32 MiB from what it has, and asks the system for more than that.
    assert named(dense, 2**17)["fresh"] == 0
    assert named(dense, 2**17 + 1)["fresh"] == 64 * (2**17 + 1)
    only = Speed(*(1.0 if name == "multiply_add" else 0.0 for name in NAMES), 4)
    assert expected_seconds(dense, LAYOUT, BONDS, 8, only) == counts(dense, LAYOUT, BONDS, 8)[0]
    fewest = ranked(LAYOUT, BONDS, 8, only)[0]
    work = [counts(order, LAYOUT, BONDS, 8)[0] for order in orders(4)]
    assert counts(fewest, LAYOUT, BONDS, 8)[0] == min(work)


def test_every_number_of_two_sites_by_hand():
    # W is (6, 20): cores (8, 7) and (7, 15) as matrices, which make W in pieces of 5 columns.
    layout, batch = tn.MatrixLayout((2, 3), (4, 5)), 8
    found = named(Order((0,), "left", 2), batch, bonds=(1, 7, 1), layout=layout)
    assert found == {
        "call": 1,
        "join": 1,
        "copy": 1,
        "item": 2,
        "multiply_add": 8 * 7 * 15 + 6 * 20 * batch,
        "thin": 8 * 7 * (40 - 15) + 6 * 20 * (16 - batch),
        "left": 8 * 7 + 6 * 20,
        "right": 7 * 15 + 20 * batch,
        "written": 8 * 15 + 6 * batch,
        "run": 6 * 4,
        "far": 0,
        "fresh": 0,
    }


@pytest.mark.parametrize(("cols", "lost"), [(1, 0), (2, 4), (3, 6), (13, 26), (20, 12), (39, 9)])
def test_joins_lose_more_than_products(cols, lost):
    layout = tn.MatrixLayout((1, 1), (1, cols))
    found = named(Order((0,), "left", 2), 16, bonds=(1, 1, 1), layout=layout)
    assert found["thin"] == lost


def test_what_is_moved_is_large_too():
    layout = tn.MatrixLayout((32, 32), (64, 64))
    dense = named(Order((0,), "left", 2), 1, bonds=(1, 2, 1), layout=layout)
    assert dense["far"] == 2 * 2**22  # W when it is joined, and W when it is sorted
    assert dense["fresh"] == 0


def test_the_fastest_order_is_the_first_one():
    for batch in (1, 64):
        best = fastest(LAYOUT, BONDS, batch, "numpy", "cpu")
        times = [
            expected_seconds(order, LAYOUT, BONDS, batch, speed_of("numpy", "cpu"))
            for order in ranked(LAYOUT, BONDS, batch, speed_of("numpy", "cpu"))
        ]
        assert times == sorted(times)
        assert best == ranked(LAYOUT, BONDS, batch, speed_of("numpy", "cpu"))[0]


def test_times_of_libraries_and_devices():
    assert speed_of("numpy", "cpu") != speed_of("pytorch", "cpu")
    assert speed_of("jax", "TFRT_CPU_0") == speed_of("pytorch", "cpu")
    for device in ("xpu:0", "mps:0", "tpu:0"):
        assert speed_of("pytorch", device) == speed_of("pytorch", "cuda:0")
    assert speed_of("jax", "cpu") == speed_of("pytorch", "cpu")
    assert speed_of("pytorch", "cuda:0").call > speed_of("pytorch", "cpu").call


@pytest.mark.parametrize("cols", [1, 2, 3, 4, 9, 15, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_few_columns_are_multiplied_as_rows(cols, dtype):
    torch.manual_seed(0)
    matrix, x = torch.randn(20, 30, dtype=dtype), torch.randn(30, cols, dtype=dtype)
    found = product(matrix, x, load_backend("pytorch"))
    assert found.shape == (20, cols)
    assert torch.allclose(found, matrix @ x, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 15, 16, 17])
def test_products_with_few_vectors_and_their_gradients(batch):
    w = np.random.default_rng(0).normal(size=(64, 96))
    m = tn.mpo(torch.from_numpy(w), 4, max_bond=5)
    x = torch.randn(96, batch, dtype=torch.float64, requires_grad=True)
    cores = [core.clone().requires_grad_() for core in m.cores]
    (tn.MPO(cores) @ x).pow(2).sum().backward()
    found = [x.grad.clone(), *(core.grad.clone() for core in cores)]
    x.grad = None
    again = [core.detach().clone().requires_grad_() for core in cores]
    (tn.contract_matrix(again, m.layout) @ x).pow(2).sum().backward()
    for a, b in zip(found, [x.grad, *(core.grad for core in again)], strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("few", [1, 4, 15])
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_routes_are_the_products_that_are_counted(batch, few):
    for order in orders(4):
        way = route(order, LAYOUT, BONDS, batch, few)
        if order.name == "dense":
            assert way.stages == ()
            continue
        for stage, made in zip(way.stages, applying(order, LAYOUT, BONDS, batch, 0), strict=True):
            rows, inner = stage.matrix[:: -1 if stage.turned else 1]
            assert (rows, inner) == (made.rows, made.inner)
            items, cols = made.items, made.cols
            assert math.prod(stage.state) == items * inner * cols
            if items == 1:
                assert stage.way == "one"
            elif cols == 1:
                assert stage.way == "vectors"
            else:
                assert stage.way == ("many" if cols > few else "beside")


def test_a_route_is_found_once_for_each_number_of_vectors():
    m = tn.mpo(torch.randn(64, 96), LAYOUT, max_bond=4)
    fastest_route.cache_clear()
    for _ in range(3):
        for batch in (1, 7):
            m @ torch.randn(96, batch)
    assert fastest_route.cache_info().misses == 2


def test_what_is_certainly_alike():
    one = torch.ones(2)
    assert alike(one, torch.nn.Parameter(torch.ones(3)))
    assert alike(torch.nn.Parameter(torch.ones(3)), one)
    assert not alike(one, one.double())
    assert not alike(one.numpy(), one.double().numpy())
    assert not alike(one, one.numpy())
    assert not alike(one.numpy(), one)
    assert not alike(one.to_sparse(), one)
    assert not alike(torch.ones(2, device="meta"), one)
    assert not alike(np.ma.masked_array([1.0]), np.ones(1))
    assert not alike([1.0], np.ones(1))
