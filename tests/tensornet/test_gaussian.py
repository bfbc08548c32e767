"""Exact and cut decompositions of Gaussian matrices of the sizes found in Transformers."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn

SITES768 = ((4, 4, 3, 4, 4), (4, 4, 3, 4, 4))


def classic_error(W, layout, bond):
    """Error of the textbook TT-SVD: one direction, one dense SVD a step."""
    rest, kept = layout.fold(W), 1
    norm_sq, lost = np.linalg.norm(W) ** 2, 0.0
    for d in layout.site_dims[:-1]:
        s, vh = np.linalg.svd(rest.reshape(kept * d, -1), full_matrices=False)[1:]
        r = min(bond, len(s))
        lost += float((s[r:] ** 2).sum())
        rest, kept = s[:r, None] * vh[:r], r
    return (lost / norm_sq) ** 0.5


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize(
    ("size", "shape", "bonds"),
    [
        ((768, 768), SITES768, (1, 16, 256, 256, 16, 1)),
        ((768, 3072), ((4, 4, 4, 4, 3), (4, 4, 8, 6, 4)), (1, 16, 256, 288, 12, 1)),
        ((1024, 4096), None, (1, 16, 256, 512, 16, 1)),
    ],
)
def test_exact(size, shape, bonds, dtype, limit):
    W = np.random.default_rng(0).normal(size=size).astype(dtype)
    m = tn.mpo(W, shape)
    assert m.bond_dims == bonds
    assert np.linalg.norm(m.to_matrix() - W) < limit * np.linalg.norm(W)
    assert m.certificate.relative_error < limit


@pytest.mark.parametrize("gauge", ["left", "right", "symmetric"])
def test_exact_in_other_gauges(gauge):
    W = np.random.default_rng(0).normal(size=(768, 768))
    m = tn.mpo(W, SITES768, gauge=gauge)
    assert np.linalg.norm(m.to_matrix() - W) < 1e-13 * np.linalg.norm(W)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cut_to_64_is_the_classic_tt_svd(dtype):
    W = np.random.default_rng(0).normal(size=(768, 768)).astype(dtype)
    m = tn.mpo(W, SITES768, max_bond=64)
    true = np.linalg.norm(m.to_matrix().astype("float64") - W) / np.linalg.norm(W)
    assert m.bond_dims == (1, 16, 64, 64, 16, 1)
    assert true == pytest.approx(0.906, abs=5e-4)
    assert m.certificate.relative_error == pytest.approx(true, abs=1e-5)
    assert true == pytest.approx(classic_error(W.astype("float64"), m.layout, 64), abs=5e-4)


def test_low_rank_is_revealed_in_single_precision():
    rng = np.random.default_rng(0)
    W = (rng.normal(size=(768, 40)) @ rng.normal(size=(40, 768))).astype("float32")
    svd = tn.mpo(W, ((768, 1), (1, 768)))
    assert svd.bond_dims == (1, 40, 1)
    assert np.linalg.norm(svd.to_matrix() - W) < 1e-6 * np.linalg.norm(W)
