"""Stacks under a tolerance: spectra of all at once, and bonds that are chosen for all."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet import batch as batches
from tensornet import stack_bonds
from tensornet.backend import backend_of
from tensornet.fitting import TensorSource
from tensornet.single import Request
from tests.tensornet.test_batch import SITES, decompose, errors_of, gaussian


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("sites", [SITES, ((24, 1), (4, 9)), ((2, 2, 3, 2), (3, 3, 2, 2))])
def test_stacked_spectra_are_those_of_each_matrix(dtype, sites):
    W = gaussian(3, dtype) * np.array([1e-3, 1.0, 0.0], dtype=dtype)[:, None, None]
    if dtype == "complex128":
        W = W + 1j * gaussian(3, seed=1)
    layout = tn.matrix_layout(24, 36, sites)
    job = stack_bonds.Job(layout, Request(None, None, 0.1, "central"), dtype, backend_of(W))
    for join in (np.maximum, np.add):
        one_by_one = stack_bonds._tails(W, job, 1e-3, join, {}, stacked=False)
        stacked = stack_bonds._tails(W, job, 1e-3, join, {}, stacked=True)
        assert len(stacked) == layout.n_sites - 1
        for a, b in zip(one_by_one, stacked, strict=True):
            size = min(len(a), len(b))
            np.testing.assert_allclose(a[:size], b[:size], rtol=1e-5, atol=1e-6)
            assert max(a[size:].max(initial=0), b[size:].max(initial=0)) < 1e-6


@pytest.mark.parametrize("rtol", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_stack_with_a_tolerance_is_cut_as_a_stack(rtol, dtype, monkeypatch):
    W = np.random.default_rng(3).normal(size=(5, 64, 256)).astype(dtype)
    layout = tn.matrix_layout(64, 256, ((2, 2, 4, 4), (4, 4, 4, 4)))
    expected = decompose(W, layout, stacked=False, rtol=rtol)

    def never(*_args):
        raise AssertionError("the stacked sweep was thrown away")

    monkeypatch.setattr(batches, "_one_by_one", never)
    found = decompose(W, layout, stacked=True, rtol=rtol)
    assert found.bond_dims == expected.bond_dims
    assert max(errors_of(found, W)) <= rtol
    for one, other in zip(found.certificates, expected.certificates, strict=True):
        # One by one, a matrix that needs less than the common bonds is filled up with zeros.
        assert one.relative_error <= other.relative_error * (1 + 1e-3)


@pytest.mark.parametrize("asked", [{"rtol": 0.3}, {"max_params": 1500}])
def test_spectra_are_found_once_for_each_matrix_of_a_large_stack(asked, monkeypatch):
    W = np.random.default_rng(4).normal(size=(6, 64, 256)).astype("float32")
    sites = ((2, 2, 4, 4), (4, 4, 4, 4))
    expected = tn.mpo(W, sites, **asked)
    found, find = [], TensorSource.find

    def counted(self, *args, **kwargs):
        found.append(find(self, *args, **kwargs))
        return found[-1]

    # Room for three of the matrices, and for what is found out about all.
    monkeypatch.setattr(stack_bonds, "AT_ONCE", 60_000)
    monkeypatch.setattr(TensorSource, "find", counted)
    batch = tn.mpo(W, sites, **asked)
    assert len(found) == 6
    assert max(one.size for one in found) * 6 <= 60_000 < 4 * 64 * 256
    for one, other in zip(batch.cores, expected.cores, strict=True):
        np.testing.assert_array_equal(one, other)
