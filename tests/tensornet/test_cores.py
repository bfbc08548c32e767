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
