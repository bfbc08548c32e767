"""Eigensolvers that fail are replaced by others, and say so; ranks are seen through pivots."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch

import tensornet as tn
from tensornet.backend import load_backend
from tensornet.eigen import (
    eigenpairs,
    eigenvalues,
    independent_columns,
    low_rank_pairs,
    single_pairs,
)

NUMPY, TORCH = load_backend("numpy"), load_backend("pytorch")


def gram(m, rank=None, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(m, rank or 2 * m))
    if dtype.startswith("complex"):
        a = a + 1j * rng.normal(size=a.shape)
    return (a @ a.conj().T).astype(dtype)


def failing(drivers, monkeypatch):
    """Make the named drivers of LAPACK fail; return those that were tried."""
    true, tried = scipy.linalg.eigh, []

    def eigh(a, **options):
        tried.append(options["driver"])
        if options["driver"] in drivers:
            raise np.linalg.LinAlgError("did not converge")
        return true(a, **options)

    monkeypatch.setattr(scipy.linalg, "eigh", eigh)
    return tried


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("count", [None, 3, 11])
def test_largest_first(dtype, count):
    G = gram(20, dtype=dtype)
    values, vectors = eigenpairs(G, NUMPY, count)
    k = 3 if count == 3 else 20
    exact = np.linalg.eigvalsh(G.astype("complex128"))[::-1]
    tolerance = 1e-4 if dtype in ("float32", "complex64") else 1e-12
    assert values.shape == (k,)
    assert np.allclose(values, exact[:k], rtol=tolerance)
    assert vectors.dtype == G.dtype
    assert np.allclose(G @ vectors, vectors * values, atol=tolerance * exact[0])
    assert np.allclose(eigenvalues(G, NUMPY), exact, rtol=tolerance)


@pytest.mark.parametrize(
    ("count", "drivers", "tried"),
    [
        (None, {"evd"}, ["evd", "evr"]),
        (None, {"evd", "evr"}, ["evd", "evr", "ev"]),
        (2, {"evr"}, ["evr", "evd"]),
    ],
)
def test_another_driver_takes_over_and_a_line_says_so(count, drivers, tried, monkeypatch, caplog):
    G = gram(20)
    seen = failing(drivers, monkeypatch)
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        values, _ = eigenpairs(G, NUMPY, count)
    assert np.allclose(values, np.linalg.eigvalsh(G)[::-1][: len(values)])
    assert seen == tried
    assert len(caplog.records) == len(drivers)
    first = f"LAPACK's {tried[0]} failed on a 20 x 20 matrix in float64 (did not converge)"
    assert f"{first}; trying another driver" in caplog.text


def test_without_any_driver_there_is_nothing(monkeypatch, caplog):
    failing({"evd", "evr", "ev"}, monkeypatch)
    assert eigenpairs(gram(5), NUMPY) is None
    assert eigenvalues(gram(5), NUMPY) is None
    assert low_rank_pairs(gram(12, 2), 1e-9, NUMPY) is None
    W = np.random.default_rng(0).normal(size=(8, 8))
    m = tn.mpo(W, ((2, 2, 2), (2, 2, 2)), max_bond=3)
    assert m.certificate.relative_error == pytest.approx(
        np.linalg.norm(m.to_matrix() - W) / np.linalg.norm(W)
    )


def test_a_device_whose_driver_fails_is_helped_by_the_host(caplog):
    def fail(_):
        raise torch.linalg.LinAlgError("repeated eigenvalues")

    class Broken:
        eigh = staticmethod(fail)
        to_numpy = staticmethod(TORCH.tl.to_numpy)
        flip = staticmethod(TORCH.tl.flip)

    device = replace(TORCH, tl=Broken(), place=lambda _: "cuda:0")
    G = torch.eye(6, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, logger="tensornet"):
        values, vectors = eigenpairs(G, device)
    assert values.tolist() == [1.0] * 6
    assert torch.allclose(vectors.T @ vectors, G)
    assert "the eigensolver on cuda:0 failed on a 6 x 6 matrix in float64" in caplog.text
    working = replace(TORCH, place=lambda _: "cuda:0")
    values, vectors = eigenpairs(torch.as_tensor(gram(6)), working, 2)
    assert np.allclose(values, np.linalg.eigvalsh(gram(6))[::-1])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_low_rank_is_seen_without_the_whole_spectrum(dtype):
    G = gram(30, 7, dtype)
    values, vectors = low_rank_pairs(G, 1e-10 * np.trace(G).real, NUMPY)
    assert values.shape == (7,)
    assert np.allclose(vectors.conj().T @ vectors, np.eye(7))
    assert np.allclose((vectors * values) @ vectors.conj().T, G)
    assert low_rank_pairs(gram(30, dtype=dtype), 1e-10, NUMPY) is None


def test_what_the_span_misses_is_allowed():
    G = np.diag(10.0 ** -np.arange(30.0))
    for allowed in (1e-3, 1e-6, 1e-9):
        values, _ = low_rank_pairs(G, allowed, NUMPY)
        missed = np.trace(G) - values.sum()
        assert 0.0 <= missed <= allowed
        assert len(values) < 12


def test_columns_that_others_span_are_left_out():
    a = np.random.default_rng(0).normal(size=(9, 3))
    repeated = np.hstack([1e6 * a, a @ a[:3], np.zeros((9, 2))])
    chosen = independent_columns(repeated.T @ repeated)
    assert len(chosen) == 3
    assert sorted(chosen) == chosen.tolist()
    assert (
        np.linalg.matrix_rank(repeated[:, chosen] / np.linalg.norm(repeated[:, chosen], axis=0))
        == 3
    )


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("backend", [NUMPY, TORCH])
def test_low_rank_in_single_precision(dtype, backend):
    G = gram(80, 9, dtype)
    there = G if backend is NUMPY else torch.from_numpy(G)
    values, vectors = single_pairs(there, backend)
    vectors = np.asarray(vectors)
    assert len(values) < 40
    assert vectors.dtype == G.dtype
    assert np.allclose(values[:9], np.linalg.eigvalsh(G)[::-1][:9], rtol=1e-4)
    assert np.abs((vectors * values) @ vectors.conj().T - G).max() < 1e-5 * np.abs(G).max()
    assert np.abs(vectors.conj().T @ vectors - np.eye(len(values))).max() < 1e-5


@pytest.mark.parametrize(
    "G",
    [gram(80).astype("f"), gram(20, 3).astype("f"), np.zeros((80, 80), "f"), np.eye(80, dtype="f")],
)
def test_other_ranks_have_all_their_vectors(G):
    values, vectors = single_pairs(G, NUMPY)
    assert values.shape == (len(G),)
    assert np.allclose((vectors * values.astype("f")) @ vectors.T, G, atol=1e-4 * max(G.max(), 1))


@pytest.mark.parametrize("options", [{"rtol": 0.1}, {"max_bond": 20}, {"max_params": 9000}])
def test_deficient_matrices_in_single_precision_keep_their_promises(options):
    rng = np.random.default_rng(1)
    layout = tn.matrix_layout(256, 256, 4)
    cores = [rng.normal(size=s) for s in layout.core_shapes(layout.structural_bonds(12))]
    w = tn.contract_matrix(cores, layout).astype(np.float32)
    m = tn.mpo(w, layout, **options)
    error = np.linalg.norm(m.to_matrix() - w) / np.linalg.norm(w)
    assert error == pytest.approx(m.certificate.relative_error, rel=1e-3, abs=1e-6)
    assert error <= options.get("rtol", 1.0)
    assert m.n_params <= options.get("max_params", 10**9)
    assert max(m.bond_dims) <= 12  # what a wider type would see as rank is noise
