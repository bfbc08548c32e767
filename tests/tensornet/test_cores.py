"""Errors of padded matrices, measured a block of rows at a time, are those of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn


@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 40),
    sites=st.integers(1, 4),
    bond=st.integers(1, 6),
    scale=st.sampled_from([1e-200, 1.0, 1e200]),
)
def test_certificates_of_padded_matrices(rows, cols, sites, bond, scale):
    W = np.random.default_rng(rows * 41 + cols).standard_normal((rows, cols))
    m = tn.mpo(scale * W, sites, max_bond=bond)
    actual = np.linalg.norm(m.to_matrix() / scale - W) / np.linalg.norm(W)
    assert m.certificate.relative_error == pytest.approx(actual, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(13, 7), (1, 17), (29, 1), (31, 8)])
def test_in_every_library_and_single_precision(name, shape):
    W = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given_matrix = W if name == "numpy" else pytest.importorskip("torch").from_numpy(W)
    m = tn.mpo(given_matrix, tn.MatrixLayout((4, 8), (2, 16), *shape), max_bond=2)
    actual = np.linalg.norm(np.asarray(m.to_matrix()).astype(np.float64) - W) / np.linalg.norm(W)
    assert m.certificate.relative_error == pytest.approx(actual, abs=1e-6)


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
def test_spectra_across_every_bond_are_those_of_the_unfoldings(gauge):
    w = np.random.default_rng(3).normal(size=(24, 36))
    shape = ((2, 3, 2, 2), (3, 2, 3, 2))
    m = tn.mpo(w, shape, gauge=gauge)
    tensor = m.layout.fold(w)
    for bond in range(1, 4):
        flat = tensor.reshape(int(np.prod(m.layout.site_dims[:bond])), -1)
        expected = np.linalg.svd(flat, compute_uv=False)
        found = m.singular_values(bond)
        assert np.allclose(found, expected[: len(found)])
        assert len(found) == len(expected)


def test_errors_of_cuts_and_of_storage_are_told_apart():
    w = np.random.default_rng(4).normal(size=(16, 16))
    certificate = tn.mpo(w.astype(np.float16), 2, max_bond=7, gauge="symmetric").certificate
    cuts = sum(certificate.discarded_share) ** 0.5
    assert certificate.truncation_error == pytest.approx(cuts)
    assert cuts > 0.1
    assert certificate.relative_error > certificate.truncation_error


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_central_and_auxiliary_cores_are_all_cores(n):
    m = tn.mpo(np.random.default_rng(5).normal(size=(16, 16)), n)
    t = tn.tt(np.random.default_rng(6).normal(size=(3,) * n))
    for chain in (m, t):
        k = n // 2
        assert chain.central is chain.cores[k]
        assert len(chain.auxiliary) == n - 1
        for found, core in zip(
            chain.auxiliary, chain.cores[:k] + chain.cores[k + 1 :], strict=True
        ):
            assert found is core


def test_both_ends_of_a_symmetric_chain_carry_a_large_scale():
    w = np.random.default_rng(7).normal(size=(16, 16))
    plain = tn.mpo(w, 3, gauge="symmetric").cores
    large = tn.mpo(2.0**400 * w, 3, gauge="symmetric").cores
    assert np.allclose(large[0], 2.0**200 * plain[0])
    assert np.allclose(large[1], plain[1])
    assert np.allclose(large[2], 2.0**200 * plain[2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "float64", "complex128"])
def test_the_symmetric_gauge_splits_singular_values_evenly(dtype):
    rng = np.random.default_rng(8)
    w = rng.normal(size=(24, 24)) + (1j * rng.normal(size=(24, 24)) if dtype[0] == "c" else 0.0)
    m = tn.mpo(w.astype(dtype), ((2, 3, 4), (4, 3, 2)), gauge="symmetric", bonds="full")
    cores = [core.astype(np.result_type(core.dtype, "float64")) for core in m.cores]
    tensor = m.layout.fold(w.astype(dtype).astype(cores[0].dtype))
    rtol = {"float16": 5e-3, "float32": 1e-5, "complex64": 1e-5}.get(dtype, 1e-10)
    for bond in range(1, 3):
        left, right = np.ones((1, 1)), np.ones((1, 1))
        for core in cores[:bond]:
            left = np.tensordot(left, core, 1).reshape(-1, core.shape[3])
        for core in cores[: bond - 1 : -1]:
            right = np.tensordot(core, right, 1).reshape(core.shape[0], -1)
        values = np.linalg.svd(tensor.reshape(len(left), -1), compute_uv=False)
        for gram in (left.conj().T @ left, right @ right.conj().T):
            assert np.allclose(gram, np.diag(values), atol=rtol * values[0])
