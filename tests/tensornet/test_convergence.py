"""Drivers that do not converge, as on GPUs with repeated values: others take over, and say so."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch

import tensornet as tn
from tensornet import backend as backends
from tensornet.backend import load_backend
from tensornet.eigen import hermitian_pairs
from tensornet.linalg import thin_svd
from tensornet.stack_bases import stack_basis
from tensornet.truncation import Truncation

NUMPY, TORCH = load_backend("numpy"), load_backend("pytorch")
SITES = ((4, 4, 4), (4, 4, 4))
RNG = np.random.default_rng(0)
ORTHOGONAL = np.linalg.qr(RNG.normal(size=(64, 64)))[0]
# Every singular value but a few is repeated.
REPEATED = ORTHOGONAL * np.repeat([3.0, 2.0, 1.0, 0.5], 16)
METRIC = np.diag(np.repeat([1.0, 4.0], 32))


class Gpu:
    """Operations of torch whose drivers fail where values are repeated."""

    def __getattr__(self, name):
        if name in ("eigh", "svd"):
            return self.fail
        return getattr(TORCH.tl, name)

    @staticmethod
    def fail(*_, **__):
        raise torch.linalg.LinAlgError("the algorithm failed to converge: repeated eigenvalues")


@pytest.fixture
def gpu(monkeypatch):
    """Make torch's arrays those of a device on which neither driver converges."""
    device = replace(TORCH, tl=Gpu(), place=lambda _: "cuda:0")
    real = backends.load_backend
    monkeypatch.setattr(
        backends, "load_backend", lambda name: device if name == "pytorch" else real(name)
    )
    return device


@pytest.fixture
def no_driver(monkeypatch):
    """Make every driver of scipy's eigensolver fail."""

    def fail(*_, **__):
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(scipy.linalg, "eigh", fail)


def relative(m, w):
    w = np.asarray(w, dtype="float64")
    return np.linalg.norm(np.asarray(m.to_matrix(), dtype="float64") - w) / np.linalg.norm(w)


DOORS = {
    "a cap": lambda w: tn.mpo(w, SITES, max_bond=8),
    "a tolerance": lambda w: tn.mpo(w, SITES, rtol=0.4),
    "a budget": lambda w: tn.mpo(w, SITES, max_params=1500),
    "the symmetric gauge": lambda w: tn.mpo(w, SITES, max_bond=8, gauge="symmetric"),
    "rounding": lambda w: tn.mpo(w, SITES, bonds="full").round(max_bond=8),
    "a train": lambda w: tn.tt(w.reshape(16, 16, 16), max_bond=8),
    "a batch": lambda w: tn.mpo(w[None] * 1.0, SITES, max_bond=8)[0],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("door", DOORS)
def test_t23_a_gpu_that_fails_on_repeated_values_is_helped_by_the_host(gpu, door, dtype, caplog):
    w = torch.as_tensor(REPEATED.astype(dtype))
    expected = DOORS[door](REPEATED.astype(dtype))
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        made = DOORS[door](w)
    assert made.bond_dims == expected.bond_dims
    assert all(core.dtype == w.dtype for core in made.cores)
    ours, theirs = made.certificate.relative_error, expected.certificate.relative_error
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    said = [r.getMessage() for r in caplog.records]
    assert said
    for line in said:
        assert " on cuda:0 failed on " in line
        assert "repeated eigenvalues); trying another driver" in line
        assert dtype in line or "float64" in line


def test_t23_a_gpu_that_fails_on_a_metric(gpu, caplog):
    w = torch.as_tensor(REPEATED)
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        made = tn.mpo(w, SITES, metric=torch.as_tensor(METRIC), max_params=1500)
    plain = tn.mpo(REPEATED, SITES, metric=METRIC, max_params=1500)
    assert made.certificate.relative_error == pytest.approx(
        plain.certificate.relative_error, rel=1e-2
    )
    assert "the eigensolver on cuda:0 failed on a 64 x 64 matrix in float64" in caplog.text


def test_singular_values_say_which_driver_failed(gpu, caplog):
    a = torch.as_tensor(REPEATED[:, :40].copy())
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        u, s, vh = thin_svd(a, gpu)
    assert np.allclose(s, np.linalg.svd(np.asarray(a), compute_uv=False))
    assert np.allclose((u * torch.as_tensor(s)) @ vh, a)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "the singular value decomposition on cuda:0 failed on a 64 x 40 matrix in float64 "
        "(the algorithm failed to converge: repeated eigenvalues); trying another driver"
    )


def test_stacks_say_so_and_are_decomposed_one_by_one(gpu, caplog):
    stack = torch.as_tensor(np.stack([REPEATED[:8], 2 * REPEATED[8:16]]))
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        found = stack_basis(stack, [Truncation(5)] * 2, gpu, lossless=False, narrow=False)
    assert found.kept == 5
    assert found.discarded == pytest.approx(
        [float((torch.linalg.svdvals(a) ** 2)[5:].sum()) for a in stack]
    )
    first = caplog.records[0].getMessage()
    assert first.startswith("the eigensolver on cuda:0 failed on 2 matrices, 8 x 8, in float64 (")


def test_eigenvalues_of_any_sign_come_back_in_falling_order(gpu, caplog):
    a = np.diag([1.0, -3.0, 2.0, 2.0])
    for backend, matrix in ((NUMPY, a), (TORCH, torch.as_tensor(a)), (gpu, torch.as_tensor(a))):
        values, vectors = hermitian_pairs(matrix, backend)
        assert np.allclose(values, [2.0, 2.0, 1.0, -3.0])
        assert np.allclose(matrix @ vectors, vectors * backend.like(values.copy(), matrix))
    assert len(caplog.records) == 1


def test_without_any_driver_for_any_sign_there_is_an_error(no_driver):
    with pytest.raises(np.linalg.LinAlgError, match="no driver for eigenvalues converged"):
        hermitian_pairs(np.eye(3), NUMPY)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_bond": 7},
        {"rtol": 0.4},
        {"max_params": 1500},
        {"gauge": "symmetric"},
        {"max_bond": 7, "gauge": "symmetric"},
    ],
    ids=str,
)
def test_without_an_eigensolver_singular_values_serve(no_driver, limits, dtype):
    w = RNG.normal(size=(64, 64)).astype(dtype)
    m = tn.mpo(w, SITES, **limits)
    wide = w.astype(np.result_type(w.dtype, "float64"))
    cores = [core.astype(wide.dtype) for core in m.cores]
    error = np.linalg.norm(tn.contract_matrix(cores, m.layout) - wide) / np.linalg.norm(wide)
    rel = 0.05 if dtype == "float16" else 1e-3  # what storing loses is an estimate
    assert m.certificate.relative_error == pytest.approx(error, rel=rel, abs=1e-6)
    if "rtol" in limits:
        assert error <= 0.4
    if "max_bond" in limits:
        assert max(m.bond_dims) == 7
        assert error < 0.9


def test_rounding_and_searching_without_an_eigensolver(no_driver):
    w = RNG.normal(size=(64, 64)).astype("float32")
    once = tn.mpo(w, SITES, max_bond=10)
    rounded = (once + once).round(max_bond=5)
    assert rounded.bond_dims == (1, 5, 5, 1)
    assert relative(rounded, 2 * np.asarray(once.to_matrix())) < 0.9
    found = tn.search_shape(w, max_params=2000, n=[2, 3])
    assert found.best.n_params <= 2000
