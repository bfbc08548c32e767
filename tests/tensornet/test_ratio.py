"""A share of the elements as a budget for one matrix or tensor, and what is refused."""

from __future__ import annotations

import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.errors import OptionError, TensorNetError
from tensornet.fitting import below_ratio

W = np.random.default_rng(0).standard_normal((64, 48))
T = W.reshape(8, 8, 6, 8)
SHAPE = ((4, 4, 4), (3, 4, 4))


def same(a, b):
    assert a.bond_dims == b.bond_dims
    for one, two in zip(a.cores, b.cores, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def ways(**limits):
    """What each function makes under the limits, in turn."""
    yield lambda: tn.mpo(W, SHAPE, **limits)
    yield lambda: tn.mpo(W, SHAPE).round(**limits)
    yield lambda: tn.tt(T, **limits)
    yield lambda: tn.tt(T).round(**limits)


@pytest.mark.parametrize("ratio", [0.3, 1, Fraction(1, 3), np.float32(0.25)])
def test_a_ratio_is_so_many_parameters(ratio):
    most = int(float(ratio) * 64 * 48)
    for by_ratio, by_number in zip(ways(ratio=ratio), ways(max_params=most), strict=True):
        same(by_ratio(), by_number())


def test_a_stack_a_padded_matrix_a_metric_and_another_library():
    stack = np.stack([W, W[::-1]])
    assert (
        tn.mpo(stack, SHAPE, ratio=0.3).bond_dims == tn.mpo(stack, SHAPE, max_params=921).bond_dims
    )
    padded = W[:61, :47]  # its own elements count, not those of the padding
    assert tn.mpo(padded, 3).layout.padded
    same(tn.mpo(padded, 3, ratio=0.5), tn.mpo(padded, 3, max_params=61 * 47 // 2))
    metric = np.diag(np.arange(1.0, 49.0))
    small = tn.mpo(W, SHAPE, ratio=0.2, metric=metric)
    same(small, tn.mpo(W, SHAPE, max_params=614, metric=metric))
    torch = pytest.importorskip("torch")
    same(tn.mpo(torch.as_tensor(W), SHAPE, ratio=0.3), tn.mpo(W, SHAPE, ratio=0.3))
    assert tn.mpo(W, SHAPE, ratio=0.5, max_bond=3).bond_dims == (1, 3, 3, 1)


def test_a_search_within_a_ratio():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tn.errors.FormatWarning)
        found = tn.search_shape(W, n=2, ratio=0.4)
        again = tn.search_shape(W, n=2, max_params=int(0.4 * 64 * 48))
    assert found.limit == ("max_params", 1228)
    assert found.rows == again.rows


@pytest.mark.parametrize("ratio", [0, -0.5, 1.01, float("nan"), True, "0.5", [0.5], 10**400])
def test_what_is_no_ratio(ratio):
    text = f"ratio must be a number in (0, 1], got {ratio!r}. It is stored / dense."
    for call in (*ways(ratio=ratio), lambda: tn.search_shape(W, ratio=ratio)):
        with pytest.raises(OptionError) as caught:
            call()
        assert str(caught.value) == text


def test_a_ratio_below_the_smallest_chain():
    text = "ratio must be at least 0.01433, the 44 parameters of the chain whose bonds are all 1"
    for call in (lambda: tn.mpo(W, SHAPE, ratio=1e-3), lambda: tn.mpo(W, SHAPE).round(ratio=1e-3)):
        with pytest.raises(OptionError, match=f"{text}, got 0.001"):
            call()
    assert tn.mpo(W, SHAPE, ratio=0.01433).n_params == 44
    with pytest.raises(OptionError, match=r"ratio must be at least 0\.0\d+, the \d+ parameters of"):
        tn.search_shape(W, ratio=1e-9)
    with pytest.raises(OptionError, match=r"ratio must be left out: the 6 parameters .* exceed 5"):
        tn.mpo(np.ones((5, 1)), ((5, 1), (1, 1)), ratio=0.9)


@given(st.integers(1, 10**7).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_the_ratio_that_a_message_states_will_do(sizes):
    smallest, dense = sizes
    said = re.search(r"at least ([\d.e-]+),", str(below_ratio(1e-9, smallest, dense)))
    assert said is not None
    assert int(float(said[1]) * dense) >= smallest
    assert float(said[1]) <= min(smallest / dense * 1.01 + 1e-12, 1.0)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"rtol": 0.1}, "ratio must not come with rtol, got rtol=0.1. Leave one of them out."),
        (
            {"max_params": 99},
            "ratio must not come with max_params, got max_params=99. Leave one of them out.",
        ),
    ],
)
def test_a_ratio_comes_alone(limits, text):
    for call in ways(ratio=0.5, **limits):
        with pytest.raises(OptionError) as caught:
            call()
        assert str(caught.value) == text
    both = " and ".join(sorted(["ratio", *limits]))
    with pytest.raises(OptionError, match=f"one of max_params, ratio and rtol, got {both}"):
        tn.search_shape(W, ratio=0.5, **limits)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"bonds": "full"}, "bonds must not be 'full' with ratio, got ratio=0.5."),
        ({"gauge": "identity"}, "gauge must not be 'identity' with limits, got ratio."),
    ],
)
def test_what_leaves_no_room_for_a_ratio(option, text):
    with pytest.raises(TensorNetError, match=re.escape(text)):
        tn.mpo(W, SHAPE, ratio=0.5, **option)
