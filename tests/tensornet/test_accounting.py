"""Accounts: exact integers, bytes, roles, gauge freedom, multiply-adds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.testing import layouts, mpo_cores


def gaussian(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_a_chain_of_72_sites_is_counted_exactly():
    core = np.zeros((1, 2, 2, 1), dtype="float32")
    m = tn.MPO([core] * 72)
    report = m.account()
    assert report.dense == 2**144
    assert report.unique == 72 * 4
    assert report.ratio == 288 / 2**144
    assert f"{2**144:,}" in str(report)


def test_beyond_the_range_of_floats():
    t = tn.TensorTrain([np.ones((1, 10, 1))] * 400)
    report = t.account()
    assert report.dense == 10**400
    assert report.compression == math.inf
    assert report.ratio == 0.0
    assert "inf" in str(report)


def test_t13_larger_than_the_matrix():
    report = tn.mpo(gaussian(64, 64), ((4, 4, 4), (4, 4, 4))).account()
    assert report.unique == 4608 == sum(report.by_core)
    assert report.by_core == (256, 4096, 256)
    assert report.by_kind == {"central": 4096, "auxiliary": 512}
    assert report.ratio == 1.125
    assert report.compression == pytest.approx(0.8889, abs=1e-4)
    assert "Note: larger than the dense form" in str(report)


@pytest.mark.parametrize("bond", [14, 15, 16])
def test_t13_break_even_bond(bond):
    report = tn.mpo(gaussian(64, 64), ((4, 4, 4), (4, 4, 4)), max_bond=bond).account()
    assert report.unique == 32 * bond + 16 * bond**2
    assert ("larger" in str(report)) is (bond > 15)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float16", 2), ("float32", 4), ("float64", 8), ("complex64", 8), ("complex128", 16)],
)
def test_bytes_by_element_type(dtype, size):
    m = tn.mpo(gaussian(6, 6).astype(dtype), 2)
    assert m.account().bytes_by_dtype == {dtype: size * m.n_params}
    assert m.account().stored_bytes == size * m.n_params


def test_bytes_of_several_types():
    ms = [tn.mpo(gaussian(6, 6).astype(dtype), 2) for dtype in ("float32", "float64")]
    report, n = tn.account(ms), ms[0].n_params
    assert report.bytes_by_dtype == {"float32": 4 * n, "float64": 8 * n}
    assert report.stored_bytes == 12 * n
    assert "bytes float32" in str(report)


def jacobian_rank(cores, layout):
    """The dimension of the set of matrices that these bonds can reach, at these cores."""
    columns = []
    for k, core in enumerate(cores):
        for entry in np.ndindex(core.shape):
            step = [np.zeros_like(c) if c is core else c for c in cores]
            step[k][entry] = 1.0
            columns.append(tn.contract_matrix(step, layout).ravel())
    return np.linalg.matrix_rank(np.array(columns))


@given(st.data())
def test_degrees_of_freedom_are_the_dimension_of_the_manifold(data):
    layout = data.draw(layouts(max_sites=3, max_dim=3, max_size=81))
    layout = tn.MatrixLayout(layout.row_dims, layout.col_dims)  # all of it can be seen
    cores = data.draw(mpo_cores(layout, max_bond=3))
    assert tn.MPO(cores).account().gauge_free == jacobian_rank(cores, layout)


def test_shared_cores_count_once_and_share_a_gauge():
    torch = pytest.importorskip("torch", reason="numpy cores are copied, so none is shared")
    core = torch.ones(3, 2, 2, 3)
    ms = [tn.MPO([torch.ones(1, 4, 4, 3), core, torch.ones(3, 4, 4, 1)]) for _ in range(4)]
    report = tn.account(ms)
    assert report.total == 4 * (48 + 36 + 48)
    assert report.unique == 4 * 96 + 36
    assert report.shared == 36
    assert report.by_kind == {"central": 36, "auxiliary": 4 * 96}
    assert report.by_core == (4 * 48, 36, 4 * 48)
    # One invertible matrix on each side of the shared core, whatever the number of chains.
    assert report.gauge_free == report.unique - 2 * 9
    assert report.stored_bytes == 4 * report.unique


def test_batches():
    batch = tn.mpo(gaussian(5, 12, 12), 2)
    single, report = batch[0].account(), batch.account()
    assert report.unique == 5 * single.unique
    assert report.dense == 5 * 144
    assert report.gauge_free == 5 * single.gauge_free
    assert report.by_core == tuple(5 * size for size in single.by_core)


@given(st.data())
def test_parts_add_up(data):
    ms = [
        tn.MPO(data.draw(mpo_cores(data.draw(layouts(max_size=60)))))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    report = tn.account(ms)
    assert report.total == sum(m.n_params for m in ms)
    assert sum(report.by_core) == sum(report.by_kind.values()) == report.unique
    assert report.stored_bytes == 8 * report.unique
    assert report.dense == sum(math.prod(m.shape) for m in ms)


def counted(m, x):
    """Multiply-adds of both sweeps, counted from the shapes of their products."""
    costs = {}
    for name, cores in (("left", m.cores), ("right", m.cores[::-1])):
        done, todo, total = 1, math.prod(m.col_dims) * x, 0
        for core in cores:
            left, i, j, right = core.shape
            todo //= j
            total += done * left * i * j * right * todo
            done *= i
        costs[name] = total
    return costs


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_multiply_adds_by_strategy(batch):
    m = tn.mpo(gaussian(24, 36), 3, max_bond=5)
    report = tn.account(m, batch=batch)
    assert report.multiply_adds["matrix"] == 24 * 36 * batch
    for name, cost in counted(m, batch).items():
        assert report.multiply_adds[name] == cost
    assert report.multiply_adds["dense"] > report.multiply_adds["matrix"]
    assert "multiply-adds left" in str(report)
    assert tn.account(m).multiply_adds == {}


def test_multiply_adds_of_several():
    ms = [tn.mpo(gaussian(24, 36), 3, max_bond=bond) for bond in (2, 5)]
    both = tn.account(ms, batch=3).multiply_adds
    each = [tn.account(m, batch=3).multiply_adds for m in ms]
    assert both == {name: each[0][name] + each[1][name] for name in each[0]}
    batch = tn.mpo(gaussian(4, 24, 36), 3, max_bond=5)
    one = tn.account(batch[0], batch=3).multiply_adds
    assert tn.account(batch, batch=3).multiply_adds == {k: 4 * v for k, v in one.items()}


def test_a_matrix_too_large_to_form_has_no_dense_strategy():
    m = tn.MPO([np.zeros((1, 2, 2, 1), dtype="float32")] * 72)
    costs = tn.account([m, tn.mpo(gaussian(4, 4), 2)], batch=2).multiply_adds
    assert "dense" not in costs
    assert costs["matrix"] == 2**145 + 32


def test_joint_decompositions_and_batches_are_accounted_too():
    joint = tn.shared_mpo(gaussian(3, 12, 12), ((3, 4), (4, 3)), share=(1,), max_bond=4)
    assert tn.account(joint).unique == joint.account().unique
    assert tn.account([joint, joint.mpos[0]]).unique == joint.account().unique
    batch = tn.mpo(gaussian(3, 12, 12), 2)
    assert tn.account(batch).unique == batch.account().unique


def test_refusals():
    m = tn.mpo(gaussian(4, 4), 2)
    with pytest.raises(tn.errors.ShapeError, match="batch must be an integer of at least 1, got 0"):
        tn.account(m, batch=0)
    with pytest.raises(tn.errors.OptionError, match="batch must be left out, got 3 with a TensorT"):
        tn.account(tn.tt(gaussian(4, 4)), batch=3)
    with pytest.raises(tn.errors.ArrayTypeError, match="network must be an MPO, a TensorTrain or"):
        tn.account(gaussian(3, 3))
