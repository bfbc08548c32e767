"""Rounding through Gram matrices: the same networks as rounding in double precision by SVDs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import chains
from tensornet.backend import load_backend
from tensornet.chain_grams import gathered, gathered_tails, round_gathered
from tensornet.linalg import revealing_qr
from tensornet.testing.strategies import layouts, mpo_cores
from tensornet.truncation import Limits

NUMPY = load_backend("numpy")
SITES = ((4, 4, 4), (4, 4, 4))


def gaussian(dtype="float32", seed=0, size=(64, 64)):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=size)
    if dtype.startswith("complex"):
        W = W + 1j * rng.normal(size=size)
    return W.astype(dtype)


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def wide(m):
    return tn.MPO([c.astype(np.result_type(c.dtype, "float64")) for c in m.cores])


def is_isometric(m):
    n = len(m.cores) // 2
    for k, core in enumerate(m.cores):
        rows = core.reshape(-1, core.shape[3])
        cols = core.reshape(core.shape[0], -1)
        if k < n:
            assert np.allclose(rows.conj().T @ rows, np.eye(rows.shape[1]), atol=3e-6)
        if k > n:
            assert np.allclose(cols @ cols.conj().T, np.eye(cols.shape[0]), atol=3e-6)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(
    "limits", [{}, {"max_bond": 7}, {"bonds": [3, 20]}, {"rtol": 0.6}], ids=str
)
def test_as_by_svds(dtype, limits):
    m = tn.mpo(gaussian(dtype), SITES, max_bond=12) + tn.mpo(gaussian(dtype, 1), SITES, max_bond=3)
    ours, exact = m.round(**limits), wide(m).round(**limits)
    assert ours.bond_dims == exact.bond_dims
    assert distance(ours.to_matrix(), exact.to_matrix()) < 3e-6
    error = ours.certificate.truncation_error
    assert error == pytest.approx(exact.certificate.truncation_error, rel=1e-6, abs=1e-7)
    assert ours.certificate.discarded_share == pytest.approx(
        exact.certificate.discarded_share, rel=1e-5, abs=1e-12
    )
    assert ours.certificate.norm == pytest.approx(exact.certificate.norm, rel=1e-9)
    is_isometric(ours)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_a_sum_with_itself_has_the_bonds_of_one(dtype):
    m = tn.mpo(gaussian(dtype), SITES, max_bond=6)
    twice = (m + m).round()
    assert twice.bond_dims == m.bond_dims
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    assert distance(twice.to_matrix() / 2, m.to_matrix()) < tolerance
    assert (m + m + m).round(max_bond=6).bond_dims == m.bond_dims


@given(layouts(max_sites=5), st.data(), st.sampled_from([{}, {"max_bond": 2}, {"rtol": 0.3}]))
def test_errors_are_those_of_the_certificate(layout, data, limits):
    cores = [c.astype("float32") for c in data.draw(mpo_cores(layout))]
    m = tn.MPO(cores)
    before = wide(m).to_matrix()
    norm = np.linalg.norm(before)
    if not 1e-20 < norm < 1e20:
        return
    found = m.round(**limits)
    after = wide(found).to_matrix()
    error = np.linalg.norm(after - before) / norm
    assert error == pytest.approx(found.certificate.relative_error, rel=1e-3, abs=2e-6)
    assert found.n_params <= m.n_params
    if "rtol" in limits:
        assert error <= limits["rtol"] * (1 + 1e-6)


def test_the_library_makes_no_difference():
    m = tn.mpo(gaussian(), SITES, max_bond=9)
    t = tn.mpo(torch.from_numpy(gaussian()), SITES, max_bond=9)
    for limits in ({"max_bond": 5}, {"rtol": 0.8}, {"max_params": 700}):
        ours, torchs = (m + m).round(**limits), (t + t).round(**limits)
        assert ours.bond_dims == torchs.bond_dims
        for a, b in zip(ours.cores, torchs.cores, strict=True):
            assert np.allclose(a, b.numpy(), atol=2e-5)


def test_what_cancels_goes_the_other_way():
    m = tn.mpo(gaussian(), SITES, max_bond=4)
    _, ready = chains._ready((m - m).cores, None)
    assert ready.found is None
    assert (m - m).round().bond_dims == (1, 1, 1, 1)[: len(m.bond_dims)]
    _, ready = chains._ready((m + m).cores, None)
    assert ready.found.growth == pytest.approx(1.0, abs=0.5)


def test_norms_beyond_the_range_go_the_other_way():
    huge = tn.MPO([np.full((1, 2, 2, 1), 1e38, "float32")] * 4)
    assert chains._ready(huge.cores, None)[1].found is None
    assert chains._ready(gaussian("float64").reshape(1, 1, 64, 64, 1), None)[1].found is None
    zero = tn.MPO([np.zeros((1, 2, 2, 3), "float32"), np.zeros((3, 2, 2, 1), "float32")])
    assert zero.round().bond_dims == (1, 1, 1)


def test_tails_are_those_of_the_unfoldings():
    m = tn.mpo(gaussian("float64"), SITES, max_bond=6)
    found = gathered(tuple(c.reshape(c.shape[0], 16, -1) for c in (m + m).cores), NUMPY)
    assert math.sqrt(found.weight) == pytest.approx(2 * m.norm())
    tensor = m.layout.fold(2 * m.to_matrix())
    for bond, tails in enumerate(gathered_tails(found, NUMPY), start=1):
        s = np.linalg.svd(tensor.reshape(16**bond, -1), compute_uv=False)
        exact = np.cumsum(s[::-1] ** 2)[::-1][: len(tails) - 1]
        assert np.allclose(tails[:-1], exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_no_more_columns_than_needed(dtype):
    a = gaussian(dtype, size=(30, 4))
    repeated = np.hstack([a, 3.0 * a, a[:, :2] + a[:, 2:], np.zeros((30, 1))])
    q, b = revealing_qr(repeated, NUMPY)
    assert q.shape == (30, 4)
    assert np.allclose(q.conj().T @ q, np.eye(4))
    assert np.allclose(q @ b, repeated)
    q, b = revealing_qr(a, NUMPY)
    assert q.shape == (30, 4)
    assert np.allclose(q @ b, a)
    q, b = revealing_qr(np.zeros((5, 3)), NUMPY)
    assert np.allclose(q @ b, 0.0)
    assert np.allclose(q.T @ q, np.eye(q.shape[1]))


@pytest.mark.parametrize("side", ["left", "right"])
def test_where_gram_matrices_say_too_little_there_is_no_answer(side):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(16, 16)))[0] for _ in range(2))
    small = 10.0 ** -np.arange(16.0)  # what is cut at 1e-12 has drowned in its square
    cores = [(left * small).reshape(1, 16, 16), right.reshape(16, 16, 1)]
    cores.insert(1, np.eye(16)[:, None, :])
    if side == "right":
        cores = [core.transpose(2, 1, 0) for core in cores[::-1]]
    found = gathered(tuple(cores), NUMPY)
    caps = (1, 16, 16, 1)
    assert round_gathered(found, Limits(caps, 1e-24), NUMPY) is None
    cut = round_gathered(found, Limits(caps, 2e-6), NUMPY)
    assert [core.shape[2] for core in cut.cores] == [4, 3, 1]
    full = np.einsum("aib,bjc,ckd->ijk", *cores)
    kept = np.einsum("aib,bjc,ckd->ijk", *cut.cores)
    assert np.linalg.norm(full - kept) == pytest.approx(1.005e-3, rel=1e-3)
