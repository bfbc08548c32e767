"""Cores put into a narrow element type: factors, errors, range, and memory of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensornet.backend import load_backend
from tensornet.errors import RangeError
from tensornet.storage import narrowed

NUMPY, TORCH = load_backend("numpy"), load_backend("pytorch")
RNG = np.random.default_rng(0)
CORES = (RNG.normal(size=(1, 6, 4)), RNG.normal(size=(4, 6, 1)))


def lost(core, factor, dtype):
    """Return the share of a core's squared norm that rounding takes, by plain arithmetic."""
    small = (factor * core).astype(dtype).astype("float64")
    return ((small / factor - core) ** 2).sum() / (core**2).sum()


@pytest.mark.parametrize("factors", [(), (2.0, 0.5), (3.0, 1.0), (1.0, 1e-3)])
def test_each_core_takes_its_factor_and_errors_add_in_squares(factors):
    found, error = narrowed(CORES, "float16", NUMPY, factors)
    given = factors or (1.0, 1.0)
    for core, small, factor in zip(CORES, found, given, strict=True):
        assert np.array_equal(small, (factor * core).astype("float16"))
    squares = sum(lost(core, f, "float16") for core, f in zip(CORES, given, strict=True))
    assert error == pytest.approx(np.sqrt(squares), rel=1e-6)
    assert error > 1e-4


def test_errors_are_relative_to_each_core():
    large = (1e4 * CORES[0], 1e-3 * CORES[1])
    assert narrowed(large, "float32", NUMPY)[1] < 1e-7
    assert narrowed((np.zeros((1, 2, 1)),), "float16", NUMPY)[1] == 0.0


def test_double_precision_loses_nothing_and_is_copied_unless_it_is_fresh():
    found, error = narrowed(CORES, "float64", NUMPY)
    assert error == 0.0
    assert all(np.array_equal(a, b) for a, b in zip(found, CORES, strict=True))
    assert not any(np.shares_memory(a, b) for a, b in zip(found, CORES, strict=True))
    same, _ = narrowed(CORES, "float64", NUMPY, fresh=True)
    assert all(a is b for a, b in zip(same, CORES, strict=True))


def test_a_fresh_view_of_something_larger_gets_memory_of_its_own():
    wide = RNG.normal(size=(1, 6, 8))
    (found,), _ = narrowed((wide[:, :, ::2],), "float64", NUMPY, fresh=True)
    assert found.flags.c_contiguous
    assert not np.shares_memory(found, wide)
    tensor = torch.as_tensor(wide)
    (stored,), _ = narrowed((tensor[:, :, :4],), "float64", TORCH, fresh=True)
    assert stored.untyped_storage().nbytes() == stored.numel() * 8


def test_narrow_cores_own_their_memory_and_lie_in_order():
    turned = np.asfortranarray(RNG.normal(size=(2, 6, 4)))
    (found,), _ = narrowed((turned,), "float32", NUMPY)
    assert found.flags.c_contiguous
    assert found.flags.owndata


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_leaves_the_range_is_refused_by_its_core(dtype):
    large = {"float16": 1e6, "float32": 1e40}[dtype]
    with pytest.raises(RangeError, match=f"core 1 must fit the range of {dtype}, got larger"):
        narrowed((CORES[0], large * CORES[1]), dtype, NUMPY)
    narrowed((CORES[0], large * CORES[1]), dtype, NUMPY, (1.0, 1.0 / large))
