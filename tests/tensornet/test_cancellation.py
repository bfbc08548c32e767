"""Networks whose parts cancel: what rounding leaves of them, and what it says of that."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import tensornet as tn
from tensornet.errors import ToleranceWarning

RNG = np.random.default_rng(0)
W, NOISE = RNG.standard_normal((2, 32, 32))


def difference(size):
    return tn.mpo(W, 3) - tn.mpo(W * (1 + size * NOISE), 3)


def exact(network):
    """Return all entries of a network, contracted in more digits than it is computed with."""
    total = np.ones((1, 1), dtype=np.longdouble)
    for core in network.cores:
        total = np.tensordot(total, np.asarray(core, dtype=np.longdouble), axes=1)
        total = total.reshape(-1, total.shape[-1])
    return total


def compared(whole, **limits):
    """Return the true and the stated error of a rounding."""
    rounded = whole.round(**limits)
    truth = exact(whole)
    missing = (exact(rounded) - truth).astype(float)
    error = np.linalg.norm(missing) / np.linalg.norm(truth.astype(float))
    return error, rounded.certificate.relative_error


@pytest.mark.parametrize("size", [1e-13, 1e-12, 1e-10, 1e-8])
def test_what_is_left_has_the_error_that_is_stated(size):
    error, stated = compared(difference(size), max_bond=64)
    assert error <= stated <= 30 * error


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_little_at_each_of_many_bonds_counts_too(dtype):
    """The second difference of a sine on 2^16 points, of which four digits are left."""
    difference_of_sine = tn.TensorTrain([core.astype(dtype) for core in second_difference(16)])
    error, stated = compared(difference_of_sine, max_bond=64)
    assert error < 1e-6
    if dtype == "float64":
        assert error <= stated <= 30 * error


def second_difference(n):
    """Return the cores of (2 - shift - shift^T) sin(pi x) on 2^n points, as products of both."""
    one, down = np.eye(2), np.eye(2, k=1)
    middle = np.zeros((3, 2, 2, 3))
    middle[0, :, :, 0], middle[0, :, :, 1], middle[0, :, :, 2] = one, down.T, down
    middle[1, :, :, 1], middle[2, :, :, 2] = down, down.T
    last = np.stack([2 * one - down - down.T, -down, -down.T])[..., None]
    angles = np.pi / (2**n + 1) * 2.0 ** np.arange(n - 1, -1, -1)
    turns = [turn(angle) for angle in angles]
    start = np.array([np.sin(np.pi / (2**n + 1)), np.cos(np.pi / (2**n + 1))])
    turns[0], turns[-1] = turns[0][:1], turns[-1] @ start[:, None]
    cores = []
    for k, wave in enumerate(turns):
        stencil = last if k == n - 1 else middle[:1] if k == 0 else middle
        core = np.einsum("aijb,cjd->acibd", stencil, wave)
        cores.append(core.reshape(core.shape[0] * core.shape[1], 2, -1))
    return cores


def turn(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([np.eye(2), np.array([[c, s], [-s, c]])], axis=1)


def test_what_does_not_cancel_is_not_counted():
    bonds = (1, *[4] * 11, 1)
    network = tn.TensorTrain([RNG.normal(size=(a, 2, b)) for a, b in itertools.pairwise(bonds)])
    assert network.round(max_bond=64).certificate.relative_error < 1e-15
    assert (tn.mpo(W, 3) + tn.mpo(NOISE, 3)).round(rtol=1e-14).certificate.relative_error < 1e-14


def test_a_tolerance_below_what_is_left_is_told():
    with pytest.warns(ToleranceWarning, match=r"rtol=1e-08 is less than the error of about 1\."):
        assert difference(1e-9).round(rtol=1e-8).certificate.relative_error > 1e-8
    assert difference(1e-4).round(rtol=1e-8).certificate.relative_error < 1e-8


def test_residuals_shrink_to_the_last_digits():
    """An inverse by products and differences of networks, each rounded (Schulz 1933)."""
    matrix = np.eye(32) + 0.1 * W / np.linalg.norm(W, 2)
    network, eye = tn.mpo(matrix, 3), tn.mpo(np.eye(32), 3)
    inverse = network.T
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            residual = (eye - network @ inverse).round(rtol=1e-6)
            inverse = (inverse + inverse @ residual).round(rtol=1e-10)
    assert np.linalg.norm(matrix @ inverse.to_matrix() - np.eye(32)) < 1e-8


def test_what_is_nothing_but_rounding_is_zero_without_an_error():
    for size in (0.0, 1e-16):
        rounded = difference(size).round(rtol=1e-6)
        assert rounded.norm() == rounded.certificate.relative_error == 0.0
