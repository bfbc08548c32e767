"""Options by role: a path means the roles of all lists that have it, and * all others."""

from __future__ import annotations

from typing import Any

import pytest

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError, SharingError, TargetError

from .models import assert_untouched, snapshot, tiny_bert
from .test_layer_lists import bart, marian, t5

FIRST, SECOND = "encoder__layers__fc1", "decoder__layers__fc1"


def specs(model: Any) -> dict[str, Any]:
    return {spec.role: spec for spec in model.config.quantization_config.plan.banks}


def test_a_path_and_a_star_for_each_option() -> None:
    model = mp.convert(
        bart(),
        targets=["fc1", "fc2"],
        n=2,
        max_bond={"fc1": 2, "*": 4},
        adapter_rank={"fc1": 3, "*": 0},
        shapes={"fc1": 3, "*": 2},
        sharing={"fc1": "all", "*": "none"},
        share_bias={"*": "all"},
        fit="mean",
    )
    found = specs(model)
    for role, spec in found.items():
        one = role in (FIRST, SECOND)
        assert max(spec.bond_dims) == (2 if one else 4)
        assert spec.adapter_rank == (3 if one else 0)
        assert len(spec.row_dims) == (3 if one else 2)
        assert (len(set(spec.central)) == 1) == one
        assert set(spec.bias) == {0}
    assert list(found) == [role.replace("fc1", fc) for role in (FIRST, SECOND)
                           for fc in ("fc1", "fc2")]  # fmt: skip


def test_tolerances_hold_for_all_roles_of_a_path() -> None:
    model = mp.convert(bart(), targets=["fc1", "fc2"], n=2, rtol={"fc1": 0.5, "*": 0.01})
    for role, spec in specs(model).items():
        assert (max(spec.errors) > 0.1) == (role in (FIRST, SECOND))
    assert set(model.config.quantization_config.rtol) == {FIRST, SECOND, "*"}
    # Where only one list is converted, a path names its role.
    one = mp.convert(bart(), targets=[FIRST], n=2, max_bond={"fc1": 2})
    assert [max(spec.bond_dims) for spec in specs(one).values()] == [2]


def test_norms_by_a_star() -> None:
    model = mp.convert(tiny_bert(), share_norm={"*": "all"}, fit="mean")
    plan = model.config.quantization_config.plan
    assert all(set(norm.slices) == {0} for norm in plan.norms)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_bond": {"fc1": 2, FIRST: 3}}, ConfigError, "max_bond must name each role once, got"),
        ({"shapes": {"fc1": 2, FIRST: 2}}, ConfigError, "shapes must name each role once, got"),
        ({"sharing": {"fc1": "all", FIRST: "all"}}, SharingError, "sharing must name each role"),
        ({"max_bond": {"fc3": 2}}, ConfigError, r"got 'fc3'\. Did you mean 'fc1'"),
        ({"adapter_rank": 2}, ConfigError, r"gets an adapter; the family .bart:.* has none by def"),
    ],
)
def test_what_names_nothing_or_a_role_twice(options: dict, kind: type, text: str) -> None:
    model = bart()
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        mp.convert(model, n=2, targets=["fc1"], **options)
    assert_untouched(model, before)


def test_each_path_is_listed_once() -> None:
    with pytest.raises(TargetError) as error:
        mp.convert(bart())
    assert str(error.value).count(" fc1,") == 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (t5, "got shared, which encoder.embed_tokens shares, another embedding, as models with"),
        (marian, "got model.encoder.embed_tokens, which model.shared shares, another embedding"),
        (bart, "model.shared must be a plain Embedding, .* got the BartScaledWordEmbedding of tr"),
    ],
)
def test_embeddings_of_several_lists_are_told_to_be_left_out(make: Any, text: str) -> None:
    with pytest.raises(ConversionError, match=f"{text}.*eave 'embedding' out"):
        mp.convert(make(), targets=["*", "embedding"], n=2)
