"""Assertions and strategies that the library offers to tests: what they accept and refuse."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet.testing import (
    KINDS,
    assert_close,
    assert_isometric,
    layouts,
    matrices,
    max_tail,
    mpo_cores,
    options,
    relative_error,
    tensors,
    tolerance_of,
)

torch = pytest.importorskip("torch")
LAYOUT = tn.MatrixLayout((2, 3), (3, 2))


def rotation(m, n, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(m, m)) + (1j * rng.normal(size=(m, m)) if dtype == "complex128" else 0)
    return np.linalg.qr(a)[0][:, :n]


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        ("float16", 2.0**-10 * 5**0.5),
        ("bfloat16", 2.0**-7 * 5**0.5),
        ("float32", 2.0**-22 * 5**0.5),
        ("complex64", 2.0**-22 * 5**0.5),
        ("float64", 2.0**-45),
        ("complex128", 2.0**-45),
    ],
)
def test_tolerances_are_a_few_roundings_of_each_type(dtype, rounding):
    assert tolerance_of(dtype) == pytest.approx(rounding)


def test_tolerances_grow_with_the_sites_where_cores_are_rounded():
    assert tolerance_of("float32", 20) == pytest.approx(2 * tolerance_of("float32", 5))
    assert tolerance_of("float64", 20) == tolerance_of("float64", 5)


def test_errors_are_relative_to_what_is_expected():
    assert relative_error(np.array([6.0, 8.0]), np.array([3.0, 4.0])) == pytest.approx(1.0)
    assert relative_error(np.array([3.0, 4.0]), np.zeros(2)) == pytest.approx(5.0)
    assert relative_error(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_error(np.array([2e200, 0.0]), np.array([1e200, 0.0])) == pytest.approx(1.0)
    assert relative_error(np.array([2e-200]), np.array([1e-200])) == pytest.approx(1.0)


def test_arrays_of_a_graph_and_of_narrow_types_are_compared():
    a = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    assert relative_error(a, np.ones(3)) == 0.0
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(1.1 * a, torch.ones(3))


def test_what_is_not_close_is_refused():
    one = np.ones(4)
    assert_close(one, one * (1 + 1e-15))
    with pytest.raises(AssertionError, match=r"relative error 1e-05 exceeds 2.84e-14"):
        assert_close(one * (1 + 1e-5), one)
    assert_close(one * (1 + 1e-5), one, 1e-4)
    with pytest.raises(AssertionError, match=r"shape \(4,\) is not \(5,\)"):
        assert_close(one, np.ones(5))
    with pytest.raises(AssertionError, match="relative error nan"):
        assert_close(one * np.nan, one)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_isometric_from_one_side_is_not_so_from_the_other(dtype):
    core = rotation(6, 2, dtype=dtype).reshape(2, 3, 2)
    assert_isometric(core, "left")
    with pytest.raises(AssertionError, match="right isometry is off by"):
        assert_isometric(core, "right")
    turned = core.conj().transpose(2, 1, 0)
    assert_isometric(turned, "right")
    with pytest.raises(AssertionError, match="left isometry is off by"):
        assert_isometric(turned, "left")


def test_lengths_of_columns_count_and_may_be_allowed_to_differ():
    core = rotation(6, 2).reshape(2, 3, 2)
    with pytest.raises(AssertionError, match=r"off by 0.0201, more than"):
        assert_isometric(1.01 * core, "left")
    assert_isometric(1.01 * core, "left", atol=0.03)
    with pytest.raises(AssertionError, match="nan"):
        assert_isometric(core * np.nan, "left")


def test_the_largest_tail_is_that_of_the_worst_bond():
    t = np.zeros((2, 2, 2))
    t[0, 0, 0], t[1, 1, 0], t[1, 1, 1] = 3.0, 4.0, 12.0
    # Across the first bond the values are 3 and 4 with 12; across the second sqrt(...) of 2.
    first = 3.0 / 13.0
    second = np.linalg.svd(t.reshape(4, 2), compute_uv=False)[1] / 13.0
    assert max_tail(t, (1, 1, 2, 1)) == pytest.approx(first)
    assert max_tail(t, (1, 2, 1, 1)) == pytest.approx(second)
    assert max_tail(t, (1, 1, 1, 1)) == pytest.approx(max(first, second))
    assert max_tail(t, (1, 2, 2, 1)) == 0.0
    assert max_tail(np.zeros((2, 2)), (1, 1, 1)) == 0.0


@settings(max_examples=50)
@given(layouts(max_sites=3, max_dim=5, max_size=100))
def test_layouts_keep_their_limits(layout):
    assert 1 <= layout.n_sites <= 3
    assert max(*layout.row_dims, *layout.col_dims) <= 5
    assert math.prod(layout.site_dims) <= 100
    for size, true in zip(layout.padded_shape, layout.shape, strict=True):
        assert max(1, size - 1) <= true <= size


QUICK = settings(  # what is found first: smaller examples would say no more
    max_examples=2000,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda layout: layout.padded,
        lambda layout: not layout.padded and layout.n_sites == 4,
        lambda layout: layout.rows < layout.padded_shape[0],
        lambda layout: layout.cols < layout.padded_shape[1],
        lambda layout: math.prod(layout.site_dims) > 200,
        lambda layout: 1 in layout.site_dims and layout.n_sites > 1,
    ],
)
def test_layouts_of_every_kind_are_drawn(wanted):
    find(layouts(), wanted, settings=QUICK)


def drawn(kind, dtype="float64", shape=(6, 6)):
    found = tensors(shape, dtype=dtype, kinds=(kind,))
    return find(found, lambda a: a.any() or kind == "zero", settings=QUICK)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_kind_have_their_type_and_are_finite(kind, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = drawn(kind, dtype)
    assert a.dtype == dtype
    assert a.shape == (6, 6)
    assert np.isfinite(a).all()
    if dtype.startswith("complex") and kind != "zero":
        assert abs(a.imag).max() > 0.0


def test_kinds_are_what_they_are_called():
    ranks = {kind: np.linalg.matrix_rank(drawn(kind)) for kind in ("low_rank", "gaussian")}
    assert ranks == {"low_rank": 2, "gaussian": 6}
    values = {kind: np.linalg.svd(drawn(kind), compute_uv=False) for kind in KINDS}
    assert np.allclose(values["repeated"], 1.0)
    assert np.allclose(values["identity"], 1.0)
    assert values["decaying"][5] < 1e-4 * values["decaying"][0]
    assert np.count_nonzero(drawn("one_entry")) == 1
    assert len(np.unique(drawn("constant"))) == 1
    assert not drawn("zero").any()
    integers = drawn("integers")
    assert np.array_equal(integers, np.round(integers))
    assert values["tiny"][0] < 1e-148
    assert values["huge"][0] > 1e148


def test_three_axes_are_split_in_the_middle():
    a = drawn("low_rank", shape=(2, 3, 6))
    assert np.linalg.matrix_rank(a.reshape(6, 6)) == 2


@settings(max_examples=50)
@given(st.data())
def test_matrices_have_the_true_shape(data):
    layout = data.draw(layouts())
    assert data.draw(matrices(layout)).shape == layout.shape


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@settings(max_examples=50)
@given(data=st.data())
def test_cores_fit_their_layout_and_no_bond_is_too_large(dtype, data):
    layout = data.draw(layouts())
    cores = data.draw(mpo_cores(layout, max_bond=3, dtype=dtype))
    bonds = [1, *(core.shape[3] for core in cores)]
    assert [core.shape for core in cores] == list(layout.core_shapes(bonds))
    most = layout.structural_bonds(3)
    assert all(1 <= bond <= cap for bond, cap in zip(bonds, most, strict=True))
    for core in cores:
        assert core.dtype == dtype
        assert dtype == "float32" or abs(core.imag).min() > 0.0


@pytest.mark.parametrize(
    "wanted",
    [
        lambda chosen: chosen.get("bonds") == "full",
        lambda chosen: chosen.get("gauge") == "symmetric" and len(chosen) == 1,
        lambda chosen: "max_bond" in chosen,
        lambda chosen: isinstance(chosen.get("bonds"), list),
        lambda chosen: chosen.get("rtol", 1.0) < 1e-4,
    ],
)
def test_options_of_every_kind_are_drawn_and_valid(wanted):
    chosen = find(options(LAYOUT), wanted, settings=QUICK)
    assert tn.mpo(np.arange(36.0).reshape(6, 6), LAYOUT, **chosen).n_sites == 2
