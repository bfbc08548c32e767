"""The spectra that choose the common bonds of a stack are those that cut it."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet import fitting, stack_bonds
from tensornet.spectra import tensor_spectra
from tensornet.testing import assert_close

SITES = ((2, 3, 4), (3, 4, 3))


def gaussian(batch=4, dtype="float64", seed=0):
    W = np.random.default_rng(seed).normal(size=(batch, 24, 36))
    return W.astype(dtype)


@pytest.mark.parametrize(("at_once", "times"), [(2**26, 4), (2 * 24 * 36, 4), (1, 8)])
def test_spectra_are_computed_once_as_far_as_there_is_room(monkeypatch, at_once, times):
    calls = []

    def counted(*args, **options):
        calls.append(args)
        return tensor_spectra(*args, **options)

    W = gaussian(dtype="float32")
    expected = tn.mpo(W, SITES, rtol=0.3)
    monkeypatch.setattr(fitting, "tensor_spectra", counted)
    monkeypatch.setattr(stack_bonds, "AT_ONCE", at_once)
    batch = tn.mpo(W, SITES, rtol=0.3)
    assert len(calls) == times
    assert batch.bond_dims == expected.bond_dims
    assert_close(batch.to_matrices(), expected.to_matrices(), 1e-5)
