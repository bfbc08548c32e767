"""Networks whose parts cancel: what rounding leaves of them, and what it says of that."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet.errors import ToleranceError

RNG = np.random.default_rng(0)
W, NOISE = RNG.standard_normal((2, 32, 32))


def difference(size):
    return tn.mpo(W, 3) - tn.mpo(W * (1 + size * NOISE), 3)


def exact(network):
    """Return the matrix of a network, contracted in more digits than it is computed with."""
    total = None
    for core in network.cores:
        wide = np.asarray(core, dtype=np.longdouble)
        total = wide if total is None else np.tensordot(total, wide, axes=1)
    order = [0, *range(1, 7, 2), *range(2, 7, 2), 7]
    return total.transpose(order).reshape(network.shape)


@pytest.mark.parametrize("size", [1e-12, 1e-11, 1e-10, 1e-8])
def test_what_is_left_has_the_error_that_is_stated(size):
    whole = difference(size)
    rounded = whole.round(max_bond=64)
    truth = exact(whole)
    error = np.linalg.norm((exact(rounded) - truth).astype(float)) / np.linalg.norm(
        truth.astype(float)
    )
    stated = rounded.certificate.relative_error
    assert error <= stated <= 1e4 * error
    assert rounded.certificate.storage_error == stated


@pytest.mark.parametrize("size", [1e-12, 1e-10])
def test_a_tolerance_that_cannot_be_kept_is_refused(size):
    with pytest.raises(ToleranceError, match=r"rtol must be at least .* whose parts cancel"):
        difference(size).round(rtol=1e-8)
    assert difference(1e-4).round(rtol=1e-8).certificate.relative_error < 1e-8


def test_what_is_nothing_but_rounding_is_zero_without_an_error():
    for size in (0.0, 1e-16):
        rounded = difference(size).round(rtol=1e-6)
        assert rounded.norm() == rounded.certificate.relative_error == 0.0
