"""Spectra of all unfoldings from two Gram matrices, the second of fewer rows where it can be."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet.backend import backend_of
from tensornet.spectra import tensor_spectra

SITES = (8, 16, 16, 16, 8)


def tensor(rank, noise=0.0, dtype=np.float32, seed=0):
    """Return a tensor whose unfoldings have a rank, and noise of a relative size on top."""
    rng = np.random.default_rng(seed)
    bonds = (1, *[min(rank, 8) if k in (0, 3) else rank for k in range(4)], 1)
    chain = rng.standard_normal((1, 1))
    for k, size in enumerate(SITES):
        core = rng.standard_normal((bonds[k], size, bonds[k + 1]))
        if np.issubdtype(dtype, np.complexfloating):
            core = core + 1j * rng.standard_normal(core.shape)
        chain = np.tensordot(chain, core / np.sqrt(size * bonds[k]), 1)
    whole = chain.reshape(SITES)
    extra = rng.standard_normal(SITES)
    whole = whole + noise * extra * (np.linalg.norm(whole) / np.linalg.norm(extra))
    return whole.astype(dtype)


def exact_tails(a):
    """Return the discarded weights by SVDs in double precision."""
    found = []
    for bond in range(1, a.ndim):
        wide = a.astype(np.result_type(a.dtype, np.float64))
        values = np.linalg.svd(wide.reshape(int(np.prod(SITES[:bond])), -1), compute_uv=False)
        found.append(np.append(np.cumsum(values[::-1] ** 2)[::-1], 0.0))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    ("rank", "noise"), [(4, 0.0), (20, 0.0), (20, 1e-5), (20, 1e-2), (90, 0.0)]
)
def test_tails_are_those_of_singular_values(rank, noise, dtype):
    a = tensor(rank, noise, dtype)
    found = tensor_spectra(a, backend_of(a), single=True)
    total = float(np.linalg.norm(a)) ** 2
    for tails, right in zip(found.tails, exact_tails(a), strict=True):
        size = min(len(tails), len(right))
        assert np.allclose(tails[:size], right[:size], rtol=1e-4, atol=2e-6 * total)
        assert np.all(tails[size:] <= 2e-6 * total)


def test_a_side_of_low_rank_leaves_fewer_rows_for_the_other(monkeypatch):
    from tensornet import spectra

    seen = []

    def gram(a, single, backend):
        seen.append(tuple(a.shape))
        return kept(a, single, backend)

    kept = spectra._gram
    monkeypatch.setattr(spectra, "_gram", gram)
    for rank, rows in ((20, 20 * 16), (90, 128 * 16)):
        seen.clear()
        a = tensor(rank)
        tensor_spectra(a, backend_of(a), single=True)
        assert seen == [(128, 2048), (128, rows)]
    seen.clear()
    a = tensor(20, dtype=np.float64)
    tensor_spectra(a, backend_of(a), single=False)
    assert seen == [(128, 2048), (128, 2048)]


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("rtol", [1e-5, 1e-3, 0.1])
def test_a_promise_holds_where_a_side_has_low_rank(noise, rtol):
    whole = tensor(20, noise)
    matrix = whole.reshape(128, 2048)
    shape = ((8, 16, 1, 1, 1), (1, 1, 16, 16, 8))
    found = tn.mpo(matrix, shape=shape, rtol=rtol)
    off = np.linalg.norm(found.to_matrix().astype(float) - matrix) / np.linalg.norm(matrix)
    assert off <= rtol * (1 + 1e-3) + 1e-6
