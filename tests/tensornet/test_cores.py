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
