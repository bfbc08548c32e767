"""Norms, spectra and entropies, of chains beyond the range of numbers too."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensornet as tn
from tensornet.testing import relative_error
from tests.tensornet.twins import OTHER, made, network

errors = tn.errors


torch = pytest.importorskip("torch")


# ------------------------------------------------------------------ long chains


def test_t19_sixty_one_copies():
    step = tn.MPO([np.array([[1.0, 1.0], [0.0, 1.0]])[None, :, :, None]])
    product = step
    for _ in range(60):
        product = product @ step
    assert np.array_equal(product.to_matrix(), [[1, 61], [0, 1]])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chains_beyond_the_range_of_numbers(library, dtype):
    n = 200
    long = tn.MPO([made(np.full((1, 4, 4, 1), 10.0), library, dtype)] * n)
    assert long.log10_norm() == pytest.approx(n * math.log10(40), rel=1e-12)
    assert long.norm() == math.inf
    assert (long - long).log10_norm() < n * math.log10(40) - 10
    assert float(tn.inner(long, long)) == math.inf
    assert float(long.trace()) == math.inf
    tiny = tn.TensorTrain([made(np.full((1, 4, 1), 0.01), library, dtype)] * n)
    assert tiny.log10_norm() == pytest.approx(n * math.log10(0.02), rel=1e-7)
    assert tiny.norm() == 0.0
    assert float(tiny.sum()) == pytest.approx(0.04**n, rel=1e-4)
    copying = np.zeros((2, 2, 2))
    copying[0, 0, 0] = copying[1, 1, 1] = 9.0  # nothing but equal indices
    ends = copying.sum(0, keepdims=True), copying.sum(2, keepdims=True)
    cores = [ends[0], *[copying] * (n - 2), ends[1]]
    both = tn.TensorTrain([made(core, library, dtype) for core in cores])
    assert np.allclose(both.entropies(), math.log(2))
    product = tiny.hadamard(tiny) + tiny
    assert product.log10_norm() == pytest.approx(tiny.log10_norm(), rel=1e-6)
    place = (0,) * n
    assert float(both[place]) == (math.inf if dtype == "float32" else pytest.approx(9.0**n))
    assert float(both.hadamard(both)[place]) == math.inf


# ------------------------------------------------------------------ spectra and entropies


def test_spectra_equal_those_of_the_unfoldings():
    t = tn.tt(np.random.default_rng(0).normal(size=(3, 4, 2, 3)), gauge="symmetric")
    T = t.to_tensor()
    for k, s in enumerate(t.spectra(), start=1):
        exact = np.linalg.svd(T.reshape(math.prod(T.shape[:k]), -1), compute_uv=False)
        assert np.allclose(s, exact[: len(s)], atol=1e-12)
        assert np.allclose(s, t.singular_values(k), atol=1e-12)
        p = exact**2 / (exact**2).sum()
        assert t.entropies()[k - 1] == pytest.approx(-(p * np.log(p)).sum())
    assert tn.tt(np.ones(3)).spectra() == ()
    assert tn.tt(np.ones(3)).entropies().shape == (0,)


def test_entropies_of_known_states():
    product = tn.tt(np.multiply.outer(np.arange(1.0, 4), np.arange(1.0, 3)))
    assert product.entropies() == pytest.approx([0.0], abs=1e-14)
    identity = tn.mpo(np.eye(4), ((2, 2), (2, 2)))
    assert identity.entropies() == pytest.approx([0.0], abs=1e-14)
    bell = tn.tt(np.eye(3) * 1e-200)
    assert bell.entropies() == pytest.approx([math.log(3)])


def test_a_small_padded_matrix_is_formed_for_its_norm_where_it_fits_the_range():
    layout = tn.MatrixLayout((2, 2, 2), (2, 2, 2), 7, 7)
    m = network(layout, bond=8)
    assert m.norm() == pytest.approx(np.linalg.norm(m.to_matrix()), rel=1e-13)
    huge = tn.MPO([core * 1e150 for core in m.cores], 7, 7)
    assert huge.norm() == math.inf
    assert huge.log10_norm() == pytest.approx(450 + m.log10_norm())
    many = tn.MPO([np.ones((1, 1, 1, 1))] * 39 + [np.ones((1, 3, 1, 1))], 2, 1)
    assert many.norm() == pytest.approx(math.sqrt(2))
    assert many.round().norm() == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e150])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
def test_what_cancels_rounds_to_nothing(size, dtype):
    size = (
        1.0 if dtype == "float16" else max(min(size, 1e25), 1e-25) if dtype == "float32" else size
    )
    a = network(OTHER, 1, dtype)
    a = a * size
    others = [(a - a), (a + a) - 2 * a, (a - a).hadamard(a / size)]
    for nothing in others[: 2 if dtype == "float16" else 3]:
        for rounded in (nothing.round(), nothing.round(rtol=0.3)):
            assert rounded.bond_dims == (1, 1, 1, 1)
            assert rounded.norm() == 0.0
            assert rounded.certificate.relative_error == 0.0


def test_what_nearly_cancels_keeps_what_is_more_than_rounding():
    a = network(OTHER, 1)
    for share in (1e-4, 1e-8, 1e-11):
        # In another gauge the two have no rounding errors in common.
        rest = (a - (1 - share) * a.move_center(2)).round()
        assert rest.bond_dims == a.round().bond_dims
        assert relative_error(rest.to_matrix(), share * a.to_matrix()) < 1e-14 / share
