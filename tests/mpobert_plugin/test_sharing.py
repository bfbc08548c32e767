"""Sharing policies: maps, their text form, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpobert_plugin.errors import SharingError
from mpobert_plugin.sharing import decode, encode, layer_map, members


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, (0, 1, 2, 3)),
        (False, (0, 1, 2, 3)),
        ("none", (0, 1, 2, 3)),
        (True, (0, 0, 0, 0)),
        ("all", (0, 0, 0, 0)),
        ("albert", (0, 0, 0, 0)),
        ("groups:1", (0, 0, 0, 0)),
        ("groups:3", (0, 0, 1, 2)),
        ("groups:4", (0, 1, 2, 3)),
        ([[1, 3], [0, 2]], (0, 1, 0, 1)),
        ([range(2), (2, 3)], (0, 0, 1, 1)),
    ],
)
def test_maps(policy, expected):
    assert layer_map(policy, 4) == expected


def test_groups_of_48_layers_are_16_each():
    assert [len(block) for block in members(layer_map("groups:3", 48))] == [16, 16, 16]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("groups", "sharing must be 'none', 'all', 'groups:k', 'albert', a list of blocks of"),
        ("groups:x", "got 'groups:x'"),
        ("groups:-1", "got 'groups:-1'"),
        ("groups:0", "1 to 4 groups, since the model has 4 layers, got 'groups:0'"),
        ("groups:5", "1 to 4 groups, since the model has 4 layers, got 'groups:5'"),
        ("All", "got 'All'"),
        (3, "got 3"),
        ([0, 1], "got [0, 1]"),
        ([[0, 1], []], "got []"),
        ([[0, 1.5]], "got [0, 1.5]"),
        ([[0, 1, 2, 4]], "layers 0 to 3, got layer 4"),
        ([[0, 1], [1, 2, 3]], "each layer once, got 1 twice"),
        ([[0, 1]], "layers [2, 3] are in no block"),
        ([], "layers [0, 1, 2, 3] are in no block"),
    ],
)
def test_refusals_name_what_came(policy, text):
    with pytest.raises(SharingError) as caught:
        layer_map(policy, 4)
    assert text in str(caught.value)


@given(st.integers(1, 60), st.data())
def test_text_form_is_exact(n_layers, data):
    numbers = data.draw(st.lists(st.integers(0, 5), min_size=n_layers, max_size=n_layers))
    seen: dict[int, int] = {}
    slices = tuple(seen.setdefault(number, len(seen)) for number in numbers)
    assert decode(encode(slices), n_layers) == slices


@pytest.mark.parametrize(
    "text", ["0*999999999999", "0-999999999999", "0*3", "0*5", "a", "1*4", "-1"]
)
def test_bad_texts_are_refused_before_anything_is_made(text):
    with pytest.raises(SharingError, match="layer map"):
        decode(text, 4)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda layer, role: layer % 2, (0, 1, 0, 1, 0)),
        (lambda layer, role: "end" if layer in (0, 4) else "middle", (0, 1, 1, 1, 0)),
        (lambda layer, role: None, (0, 1, 2, 3, 4)),
        (lambda layer, role: None if layer else role, (0, 1, 2, 3, 4)),
        (lambda layer, role: None if layer < 2 else (1, "rest"), (0, 1, 2, 2, 2)),
        (lambda layer, role: ("alone", layer // 4), (0, 0, 0, 0, 1)),
        (lambda layer, role: layer // 2 if role == "query" else 0, (0, 0, 1, 1, 2)),
    ],
)
def test_functions_of_layer_and_role(rule, expected):
    assert layer_map(rule, 5, role="query") == expected


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda layer: 0, "takes 1 positional argument but 2 were given"),
        (lambda layer, role: [layer], "got an error for layer 0 of 'key': "),
    ],
)
def test_functions_that_do_not_fit(rule, text):
    with pytest.raises(SharingError) as caught:
        layer_map(rule, 3, "share_bias", "key")
    assert "share_bias must be a function of layer and role that returns a key" in str(caught.value)
    assert text in str(caught.value)


def test_errors_of_a_function_come_through():
    with pytest.raises(ZeroDivisionError):
        layer_map(lambda layer, role: 1 // layer, 3)
