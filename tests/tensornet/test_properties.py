"""Invariants of decomposition, rounding and gauges, on drawn matrices and layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tensornet as tn
from tensornet.backend import eps
from tensornet.testing import (
    KINDS,
    assert_close,
    assert_isometric,
    layouts,
    matrices,
    max_tail,
    mpo_cores,
    options,
    relative_error,
    tensors,
)

DTYPES = ("float16", "float32", "float64", "complex64", "complex128")
GAUGES = ("central", "left", "right", "symmetric", "identity")


# Spectra without exact repetitions: a cut through equal values may keep any of them.
SEPARATED = ("gaussian", "low_rank", "decaying")


@st.composite
def cases(draw, dtypes=("float64",), kinds=KINDS, **kwargs):
    layout = draw(layouts(**kwargs))
    return layout, draw(matrices(layout, dtype=draw(st.sampled_from(dtypes)), kinds=kinds))


def decompose(layout, W, **kwargs):
    padded = tn.MatrixLayout(layout.row_dims, layout.col_dims)
    full = np.zeros(padded.shape, dtype=W.dtype)
    full[: layout.rows, : layout.cols] = W
    return tn.mpo(full, (layout.row_dims, layout.col_dims), **kwargs), full


@given(cases(DTYPES), st.sampled_from(GAUGES))
def test_exact_reconstruction_in_every_type_and_gauge(case, gauge):
    layout, W = case
    before = W.copy()
    m, full = decompose(layout, W, gauge=gauge)
    assert_close(m.to_matrix(), full)
    assert m.to_matrix().dtype == W.dtype
    assert all(core.dtype == W.dtype for core in m.cores)
    assert np.array_equal(W, before)


@given(cases(), st.data())
def test_squared_error_is_the_sum_of_discarded_weights(case, data):
    layout, W = case
    m, full = decompose(layout, W, **data.draw(options(layout)))
    error = relative_error(m.to_matrix(), full)
    certificate = m.certificate
    assert certificate.relative_error == pytest.approx(error, abs=2e-13, rel=1e-6)
    share = sum(certificate.discarded_share)
    assert certificate.truncation_error == pytest.approx(math.sqrt(share))


@given(cases(), st.sampled_from([0.9, 0.3, 1e-2, 1e-4, 1e-8, 1e-12]))
def test_rtol_is_kept(case, rtol):
    layout, W = case
    m, full = decompose(layout, W, rtol=rtol)
    assert relative_error(m.to_matrix(), full) <= rtol * (1 + 1e-9)
    assert m.certificate.relative_error <= rtol * (1 + 1e-9)


@given(cases(("float16", "float32")), st.sampled_from([0.5, 0.1, 1e-2]))
def test_rtol_is_kept_in_narrow_types(case, rtol):
    layout, W = case
    m, full = decompose(layout, W, rtol=rtol)
    exact = tn.contract_matrix([c.astype("float64") for c in m.cores], m.layout)
    if np.abs(W).max() > 1e-3:  # smaller half-precision entries are stored with fewer digits
        assert relative_error(exact, full) <= rtol * 1.02


@given(cases(), st.integers(1, 6))
def test_error_lies_between_the_largest_tail_and_the_bound(case, bond):
    layout, W = case
    m, full = decompose(layout, W, max_bond=bond)
    tail = max_tail(m.layout.fold(full), m.bond_dims)
    error = m.certificate.truncation_error
    # A Gram matrix errs by its own rounding, which counts where little is discarded.
    slack = 1e-7 * (tail + 1e-6) + 1e-15 / max(tail, 1e-8)
    # What errs in the padding is no error of the matrix, but it is one of the padded tensor.
    whole = math.hypot(error, math.sqrt(m.certificate.padding_share or 0.0))
    assert tail <= whole + slack
    assert error <= math.sqrt(max(layout.n_sites - 1, 1)) * tail + slack
    assert m.certificate.lower_bound <= tail + slack
    assert error <= m.certificate.upper_bound * (1 + 1e-12)


@given(cases(), st.integers(1, 5))
def test_rounding_to_a_fixed_bond_is_idempotent(case, bond):
    layout, W = case
    once = decompose(layout, W)[0].round(max_bond=bond)
    twice = once.round(max_bond=bond)
    # A later cut can leave an earlier bond with less than its rank, which a second pass sees.
    assert all(b <= a for a, b in zip(once.bond_dims, twice.bond_dims, strict=True))
    assert_close(twice.to_matrix(), once.to_matrix(), 1e-12)


@given(cases(), st.sampled_from([0.3, 1e-2, 1e-5]))
def test_rounding_to_a_tolerance_twice(case, rtol):
    layout, W = case
    m, full = decompose(layout, W)
    once = m.round(rtol=rtol)
    twice = once.round(rtol=rtol)
    assert all(b <= a for a, b in zip(once.bond_dims, twice.bond_dims, strict=True))
    assert relative_error(twice.to_matrix(), full) <= 2 * rtol


@given(cases(kinds=SEPARATED), st.integers(1, 5))
def test_cutting_at_once_or_afterwards_is_the_same(case, bond):
    layout, W = case
    direct, _ = decompose(layout, W, max_bond=bond)
    later = decompose(layout, W)[0].round(max_bond=bond)
    assert later.bond_dims == direct.bond_dims
    assert later.certificate.truncation_error == pytest.approx(
        direct.certificate.truncation_error, rel=1e-6, abs=1e-12
    )


@given(cases(DTYPES), st.data())
def test_cores_are_isometric_around_the_center(case, data):
    layout, W = case
    gauge = data.draw(st.sampled_from(("central", "left", "right", "identity")))
    m, _ = decompose(layout, W, gauge=gauge)
    expected = {"central": m.n_sites // 2, "left": m.n_sites - 1, "right": 0}
    assert m.center == expected.get(gauge, m.center)
    for k, core in enumerate(m.cores):
        if k != m.center:
            assert_isometric(core, "left" if k < m.center else "right")


@given(cases())
def test_symmetric_gauge_splits_the_spectrum_evenly(case):
    layout, W = case
    m, _ = decompose(layout, W, gauge="symmetric")
    assert m.center is None
    for bond in range(1, m.n_sites):
        s = m.singular_values(bond)
        left = _environment(m.cores[:bond])
        scale = s.max(initial=0.0) or 1.0
        assert np.abs(left / scale - np.diag(s) / scale).max() < 1e-9


def _environment(cores):
    env = np.eye(1)
    for core in cores:
        flat = core.reshape(core.shape[0], -1, core.shape[-1])
        env = np.einsum("ab,asc,bsd->cd", env, flat.conj(), flat)
    return env


@given(layouts(), st.data())
def test_networks_from_cores(layout, data):
    dtype = data.draw(st.sampled_from(("float64", "complex128")))
    cores = data.draw(mpo_cores(layout, dtype=dtype))
    m = tn.MPO(cores, layout.rows, layout.cols)
    W = m.to_matrix()
    assert m.center is None
    assert m.certificate is None
    assert m.norm() == pytest.approx(np.linalg.norm(W))
    assert tn.MPO(cores).norm() == pytest.approx(np.linalg.norm(tn.MPO(cores).to_matrix()))
    assert_close(m.T.to_matrix(), W.T, 1e-12)
    assert_close(m.H.to_matrix(), W.conj().T, 1e-12)
    x = np.random.default_rng(0).normal(size=(layout.cols, 3)).astype(dtype)
    assert_close(m @ x, W @ x, 1e-11)
    assert_close(x.T @ m.T, x.T @ W.T, 1e-11)
    assert_close(m @ x[:, 0], W @ x[:, 0], 1e-11)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_tensor_trains(shape, data):
    T = data.draw(tensors(tuple(shape)))
    t = tn.tt(T)
    assert_close(t.to_tensor(), T)
    cut = tn.tt(T, max_bond=2)
    assert max(cut.bond_dims) <= 2
    error = relative_error(cut.to_tensor(), T)
    assert cut.certificate.relative_error == pytest.approx(error, abs=2e-13, rel=1e-6)


class GaugeMoves(RuleBasedStateMachine):
    """Any sequence of gauge moves and exact roundings leaves the matrix."""

    @initialize(layout=layouts(max_sites=5), data=st.data())
    def start(self, layout, data):
        self.network = tn.MPO(data.draw(mpo_cores(layout)))
        self.matrix = self.network.to_matrix()
        self.norm = np.linalg.norm(self.matrix)

    @rule(data=st.data())
    def move(self, data):
        site = data.draw(st.integers(0, self.network.n_sites - 1))
        self.network = self.network.move_center(site)
        assert self.network.center == site

    @rule()
    def round(self):
        before = self.network.bond_dims
        self.network = self.network.round()
        assert all(b <= a for a, b in zip(before, self.network.bond_dims, strict=True))

    @rule()
    def transpose_twice(self):
        self.network = self.network.T.T

    @invariant()
    def same_matrix(self):
        assert np.linalg.norm(self.network.to_matrix() - self.matrix) <= 1e-12 * self.norm

    @invariant()
    def isometric_around_the_center(self):
        for k, core in enumerate(self.network.cores):
            if self.network.center is not None and k != self.network.center:
                assert_isometric(core, "left" if k < self.network.center else "right")


TestGaugeMoves = GaugeMoves.TestCase


@given(st.sampled_from(DTYPES))
def test_storage_error_is_of_the_size_of_the_type(dtype):
    W = np.random.default_rng(0).normal(size=(30, 30)).astype(dtype)
    m = tn.mpo(W, ((2, 3, 5), (5, 3, 2)), gauge="symmetric")
    if dtype in ("float64", "complex128"):
        assert m.certificate.storage_error == 0.0
    else:
        assert 0.1 * eps(dtype) < m.certificate.storage_error < 2 * eps(dtype)
