"""Numbers and networks that go together, and what is said of those that do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import tensornet as tn
from tests.tensornet.twins import OTHER, SQUARE, close, host, network

errors = tn.errors


torch = pytest.importorskip("torch")


# ------------------------------------------------------------------ scalars


@pytest.mark.parametrize(
    "c",
    [
        2,
        -1.5,
        np.float32(3),
        np.float64(0.25),
        np.int8(4),
        Fraction(1, 3),
        torch.tensor(2.5),
        np.array(7.0),
    ],
)
def test_real_numbers_of_all_kinds_keep_the_type(c):
    for m in (network(OTHER, dtype="float32"), tn.tt(np.ones((3, 4), "float32"))):
        value = float(c)
        for result, expected in ((m * c, value), (c * m, value), (m / c, 1 / value)):
            assert result.dtype == np.float32
            assert result.norm() == pytest.approx(abs(expected) * m.norm(), rel=1e-5)
            assert type(result) is type(m)


def test_complex_numbers_make_real_networks_complex():
    m = network(OTHER, dtype="float32")
    result = (1 + 2j) * m
    assert result.dtype == np.complex64
    close(result.to_matrix(), (1 + 2j) * m.to_matrix(), "float32")
    assert (m * np.complex128(2)).dtype == np.complex64
    assert (torch.tensor(2j) * network(OTHER, library="torch")).dtype == torch.complex128
    assert (m / 2j).dtype == np.complex64
    half = network(OTHER, dtype="float16")
    with pytest.raises(errors.DTypeError, match="complex number with a float16 network"):
        half * 1j


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_zero_gives_a_zero_network(library):
    for c in (0, 0.0, -0.0, np.float32(0), 0j):
        zero = c * network(SQUARE, library=library)
        assert zero.bond_dims == (1, 1, 1, 1)
        assert zero.norm() == 0.0
        assert zero.log10_norm() == -math.inf
        assert np.array_equal(zero.entropies(), [0, 0])
        assert not host(zero.to_matrix()).any()
        assert host(zero.trace()) == 0
        assert zero.round(rtol=0.1).bond_dims == (1, 1, 1, 1)
        assert not host((zero @ zero + zero).to_matrix()).any()


def test_numbers_far_from_one():
    m = tn.MPO([np.full((1, 1, 1, 1), 1e-30, "float32")])
    assert (m * 1e60).to_matrix().item() == pytest.approx(1e30, rel=1e-6)
    assert (m / 1e-60).to_matrix().item() == pytest.approx(1e30, rel=1e-6)
    with pytest.raises(errors.RangeError, match="core 0 must fit the range of float32"):
        m * 1e80
    # Handlers of tolerance errors and of Python's own overflow catch it too.
    for kind in (errors.ToleranceError, OverflowError):
        with pytest.raises(kind, match="core 0 must fit the range of float64, got larger entries"):
            tn.MPO([np.ones((1, 1, 1, 1))]) * 1e300 * 1e300
    tiny = tn.MPO([np.full((1, 1, 1, 1), 1e-310)])
    assert (tiny / 1e-310).to_matrix().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("c", "error", "text"),
    [
        (math.nan, errors.NonFiniteError, "c in c * m must be finite, got nan"),
        (-math.inf, errors.NonFiniteError, "got -inf"),
        (complex(0, math.inf), errors.NonFiniteError, "got infj"),
        (10**400, errors.NonFiniteError, "got inf"),
        (True, errors.OptionError, "must be a number, got True"),
        (np.ones(3), errors.ArrayTypeError, "got ndarray of shape (3,). Entrywise products are"),
        (torch.ones(1), errors.ArrayTypeError, "got Tensor of shape (1,)"),
        (network(OTHER), errors.ArrayTypeError, "matrix products m @ m2"),
        ("2", TypeError, "unsupported operand|can't multiply"),
        (None, TypeError, "unsupported operand"),
    ],
)
def test_what_is_no_number(c, error, text):
    with pytest.raises(error) as caught:
        network(OTHER) * c
    assert any(part in str(caught.value) for part in text.split("|"))


def test_division_by_zero():
    with pytest.raises(errors.OptionError, match="c in m / c must not be zero, got 0"):
        network(OTHER) / 0
    with pytest.raises(TypeError, match="unsupported operand"):
        1 / network(OTHER)


# ------------------------------------------------------------------ what does not go together


def test_networks_that_do_not_go_together():
    a, wide = network(SQUARE), network(OTHER)
    for operation in (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x.hadamard(y), tn.inner):
        with pytest.raises(errors.ShapeError) as caught:
            operation(a, wide)
        assert "21x21 in sites (2, 3, 4)x(2, 3, 4)" in str(caught.value)
        assert "21x23 in sites (2, 3, 4)x(4, 3, 2)" in str(caught.value)
        with pytest.raises(errors.DTypeError, match="got float64 and float32"):
            operation(a, network(SQUARE, dtype="float32"))
        with pytest.raises(errors.ArrayTypeError, match="pytorch with a numpy network"):
            operation(a, network(SQUARE, library="torch"))
        with pytest.raises(errors.ArrayTypeError, match="another MPO, got ndarray of shape"):
            operation(a, np.ones((21, 21)))
        with pytest.raises(errors.ArrayTypeError, match="another MPO, got TensorTrain"):
            operation(a, tn.tt(np.ones((2, 2))))
    for other in (3, 0.5, False, None):
        with pytest.raises(errors.ArrayTypeError, match="m \\+ m2 must have another MPO"):
            a + other
    with pytest.raises(errors.ArrayTypeError, match="MPO or TensorTrain, got ndarray"):
        tn.inner(np.ones(3), a)
    # A true size that differs is another matrix, even where the factors agree.
    with pytest.raises(errors.ShapeError, match="22x21"):
        a + network(tn.MatrixLayout((2, 3, 4), (2, 3, 4), 22, 21))


def test_products_that_do_not_fit():
    text = r"as many columns in the first as rows in the second, got 21x23 and "
    for other in (SQUARE, tn.MatrixLayout((4, 3, 2), (2, 3, 4))):
        with pytest.raises(errors.ShapeError, match=rf"{text}{other.rows}x{other.cols}\.$"):
            network(OTHER) @ network(other)
    with pytest.raises(errors.ShapeError, match=rf"{text}21x23\. m @ m2\.T and m\.T @ m2 have"):
        network(OTHER) @ network(OTHER)
    with pytest.raises(errors.ShapeError, match=r"got 21 as \(2, 3, 4\) and 21 as \(4, 3, 2\)"):
        network(SQUARE) @ network(tn.MatrixLayout((4, 3, 2), (2, 3, 4), 21, 21))
    with pytest.raises(errors.DTypeError, match="float64 and complex64"):
        network(SQUARE) @ network(SQUARE, dtype="complex64")


def test_half_precision_that_overflows_is_an_error():
    m = tn.MPO([np.full((1, 2, 2, 1), 300.0, "float16")])
    for operation in (lambda: m @ m, lambda: m.hadamard(m), lambda: 300 * m):
        with pytest.raises(errors.RangeError, match="core 0 must fit the range of float16"):
            operation()
    assert tn.inner(m, m) == 360_000.0
    many = tn.MPO([np.full((1, 60, 60, 1), 1000.0, "float16")])
    assert many.trace() == 60_000.0
