"""Gauges and rounding of chains whose norm is beyond the range of numbers, at both ends."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import tensornet as tn
from tests.tensornet.twins import host, made

torch = pytest.importorskip("torch")

N = 40
KINDS = pytest.mark.parametrize("kind", [tn.MPO, tn.TensorTrain], ids=["mpo", "tt"])
ENDS = pytest.mark.parametrize("power", [-40, 40], ids=["below", "above"])
TYPES = pytest.mark.parametrize(
    ("library", "dtype"),
    [("numpy", "float64"), ("numpy", "float32"), ("torch", "float32"), ("numpy", "complex128")],
)


def chain(kind, library="numpy", dtype="float64", power=0, bond=3):
    """Gaussian cores, each times a power of two."""
    rng = np.random.default_rng(1)
    site = (2, 2) if kind is tn.MPO else (3,)
    bonds = [1, *[bond] * (N - 1), 1]
    shapes = ((a, *site, b) for a, b in itertools.pairwise(bonds))
    return kind([made(np.ldexp(rng.normal(size=s), power), library, dtype) for s in shapes])


def times(m, power):
    """The network times a power of two for each core: exact."""
    factor = 2.0**power
    return type(m)([core * factor for core in m.cores])


def apart(a, b):
    return 10 ** ((a - b).log10_norm() - b.log10_norm())


@KINDS
@ENDS
@TYPES
def test_moving_and_rounding_are_those_of_the_chain_within_the_range(kind, power, library, dtype):
    plain, far = chain(kind, library, dtype), chain(kind, library, dtype, power)
    assert far.norm() in (0.0, math.inf) or library == "numpy"
    small = 1e-12 if dtype in ("float64", "complex128") else 2e-5
    for site in (0, 3, N - 1):
        assert apart(far.move_center(site), far) < small
    assert apart(far.round(), far) < small
    near, cut = plain.round(rtol=0.2), far.round(rtol=0.2)
    assert cut.bond_dims == near.bond_dims
    error = cut.certificate.relative_error
    assert error == pytest.approx(near.certificate.relative_error, rel=1e-6)
    assert 0.0 < error <= 0.2
    assert apart(cut, far) == pytest.approx(error, rel=1e-3)
    assert np.allclose(cut.entropies(), near.entropies(), atol=1e-4)
    assert not any(math.isnan(w) for w in cut.certificate.discarded_weight)
    capped = far.round(max_bond=2)
    assert apart(capped, far) == pytest.approx(capped.certificate.relative_error, rel=1e-3)


@ENDS
@pytest.mark.parametrize("start", [None, 0, 7, N - 1])
def test_every_gauge(start, power):
    m = chain(tn.TensorTrain)
    far = times(m if start is None else m.move_center(start), power)
    for target in (0, 20, N - 1):
        moved = far.move_center(target)
        assert moved.center is None  # no core alone can hold 2**1600
        assert apart(moved, far) < 1e-12
        assert apart(moved.move_center(3).round(), far) < 1e-12
    assert np.all(far.singular_values(5) == (0.0 if power < 0 else math.inf))


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric", "identity"])
@ENDS
def test_decompositions_in_every_gauge(gauge, power):
    m = tn.mpo(np.random.default_rng(0).normal(size=(36, 24)), 3, gauge=gauge)
    far = times(m, 18 * power)
    assert apart(far.round(), far) < 1e-12
    for site in range(3):
        assert apart(far.move_center(site), far) < 1e-12
    cut, near = far.round(rtol=0.3), m.round(rtol=0.3)
    assert cut.certificate.relative_error == pytest.approx(near.certificate.relative_error)


def test_a_norm_that_one_core_can_hold_sits_there():
    cores = [np.full((1, 2, 1), x) for x in [1e-200, 1e200] * 10]
    for m in (tn.TensorTrain(cores), tn.TensorTrain(cores[::-1])):
        assert m.move_center(4).center == 4
        assert m.round().center == 10
        assert m.round().norm() == pytest.approx(2.0**10)
        assert host(m.move_center(4).cores[4]).max() > 1.0


@ENDS
def test_padded_matrices(power):
    layout = tn.MatrixLayout((2, 2, 2), (2, 2, 2), 7, 7)
    rng = np.random.default_rng(0)
    cores = [rng.normal(size=s) for s in layout.core_shapes([1, 4, 4, 1])]
    near = tn.MPO(cores, 7, 7).round(max_bond=2)
    far = tn.MPO([np.ldexp(core, 18 * power) for core in cores], 7, 7)
    cut = far.round(max_bond=2)
    assert cut.certificate.relative_error == pytest.approx(near.certificate.relative_error)
    assert apart(cut, far) == pytest.approx(cut.certificate.relative_error)


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_stays_zero(kind, dtype):
    m = chain(kind, dtype=dtype, power=-40)
    zero = kind([*m.cores[:5], m.cores[5] * 0, *m.cores[6:]])
    for made_of in (zero.round(), zero.move_center(7), (m - m).round()):
        assert made_of.log10_norm() == -math.inf
    assert zero.round().certificate.relative_error == 0.0


def test_a_norm_that_all_cores_cannot_hold_is_refused():
    large = np.full((1, 16, 1), 1.7e308)
    with pytest.raises(tn.errors.RangeError, match="have a norm that its cores can hold"):
        tn.TensorTrain([large, large]).round()
    with pytest.raises(tn.errors.RangeError, match="have a norm that its cores can hold"):
        tn.TensorTrain([large, large]).move_center(0)
