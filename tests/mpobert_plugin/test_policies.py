"""Policies per role and functions: what layers share, what is stored, and bad mappings."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import SharingError, TargetError

from .models import assert_untouched, logits, snapshot, tiny_albert, tiny_bert

ALL = (0, 0, 0, 0)
OWN = (0, 1, 2, 3)


def plan_of(model):
    return model.config.quantization_config.plan


def maps(model, field="central"):
    return {spec.role: getattr(spec, field) for spec in plan_of(model).banks}


def test_a_policy_for_each_role():
    model = mp.convert(
        tiny_bert(),
        sharing={"query": "all", "attention.self.key": "groups:2", "ffn_in": [[0, 3], [1, 2]]},
        share_bias={"value": True},
        share_norm={"output_norm": "groups:2"},
        fit="mean",
    )
    expected = dict.fromkeys(maps(model), OWN)
    expected |= {"query": ALL, "key": (0, 0, 1, 1), "ffn_in": (0, 1, 1, 0)}
    assert maps(model) == expected
    assert set(maps(model, "auxiliary").values()) == {OWN}
    assert maps(model, "bias") == {**dict.fromkeys(expected, OWN), "value": ALL}
    assert {spec.role: spec.slices for spec in plan_of(model).norms} == {
        "attention_norm": OWN,
        "output_norm": (0, 0, 1, 1),
    }
    mp.assert_shared(model)


def test_albert_for_one_role_shares_its_auxiliary_tensors():
    model = mp.convert(tiny_bert(), sharing={"query": "albert", "key": "all"}, fit="first")
    assert maps(model, "auxiliary") == {**dict.fromkeys(maps(model), OWN), "query": ALL}
    assert model.base_model.mpo["query"].auxiliary_0.shape[0] == 1


def alternate(layer, role):
    return layer % 2 if role in ("query", "output_norm") else None


def test_functions_become_blocks(tmp_path):
    model = mp.convert(
        tiny_bert(), sharing=alternate, share_bias=alternate, share_norm=alternate, fit="mean"
    )
    even = [[0, 2], [1, 3]]
    own = [[0], [1], [2], [3]]
    stored = model.config.quantization_config
    assert maps(model)["query"] == (0, 1, 0, 1)
    assert stored.sharing == {**dict.fromkeys(maps(model), own), "query": even}
    assert stored.share_bias == stored.sharing
    assert stored.share_norm == {"attention_norm": own, "output_norm": even}
    json.dumps(stored.to_dict())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert loaded.config.quantization_config == stored
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=0)
    # What is stored asks for the same conversion again.
    again = mp.convert(tiny_bert(), stored)
    assert plan_of(again) == plan_of(model)


def test_one_function_for_all_roles_is_stored_as_one_list():
    model = mp.convert(tiny_bert(), sharing=lambda layer, role: layer // 2, fit="first")
    assert model.config.quantization_config.sharing == [[0, 1], [2, 3]]


def test_functions_within_a_mapping():
    given = {"query": lambda layer, role: layer == 0, "key": "groups:2"}
    model = mp.convert(tiny_bert(), sharing=given, fit="first")
    stored = model.config.quantization_config.sharing
    assert stored["query"] == [[0], [1, 2, 3]]
    assert stored["key"] == "groups:2"
    assert stored["value"] is None
    assert callable(given["query"])
    json.dumps(model.config.quantization_config.to_dict())


def test_options_on_loading(tmp_path):
    tiny_bert().save_pretrained(tmp_path)
    model = BertForMaskedLM.from_pretrained(
        tmp_path, quantization_config=mp.MPOConfig(sharing=alternate, fit="mean")
    )
    assert maps(model)["query"] == (0, 1, 0, 1)
    assert maps(model)["key"] == OWN


def test_layers_of_an_albert():
    plain = tiny_albert()
    model = mp.convert(copy.deepcopy(plain), sharing={"query": "all"})
    assert maps(model)["query"] == ALL
    assert maps(model)["key"] == OWN
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-4, atol=1e-5)
    assert plan_of(mp.convert(copy.deepcopy(plain), sharing={"query": None})).n_layers == 1
    deep = mp.from_albert(plain, 6, sharing=lambda layer, role: layer // 4, share_norm=alternate)
    assert maps(deep)["ffn_out"] == (0, 0, 0, 0, 1, 1)
    assert plan_of(deep).norms[1].slices == (0, 1, 0, 1, 0, 1)


def test_fresh_models():
    model = mp.build(
        "mpobert-12", head="none", device="meta", num_layers=4, sharing={"query": alternate}
    )
    assert maps(model)["query"] == (0, 1, 0, 1)
    assert maps(model)["key"] == OWN
    assert model.config.quantization_config.sharing["query"] == [[0, 2], [1, 3]]


def test_equal_configurations_with_functions():
    one, two = mp.MPOConfig(sharing=alternate), mp.MPOConfig(sharing=alternate)
    assert one == two
    assert one != mp.MPOConfig(sharing=lambda layer, role: 0)
    assert isinstance(hash(one), int)
    assert "alternate" in repr(one)


FAULTS = [
    ({"sharing": {"querry": "all"}}, TargetError, r"sharing must name roles .* 'querry'\. Did you"),
    ({"sharing": {}}, SharingError, "sharing must name the policy of at least one role"),
    ({"sharing": {0: "all"}}, SharingError, "sharing must name roles and their policies, got 0"),
    (
        {"sharing": {"query": "all", "attention.self.query": "none"}},
        SharingError,
        "sharing must name each role once, got 'query' twice",
    ),
    ({"sharing": {"query": "groups:9"}}, SharingError, "1 to 4 groups"),
    ({"sharing": {"query": {"key": "all"}}}, SharingError, "sharing must be 'none'"),
    (
        {"sharing": {"query": "all"}, "targets": ["key"]},
        TargetError,
        r"has \(key\) or '\*', got 'query'",
    ),
    ({"share_bias": {"output_norm": "all"}}, TargetError, "share_bias must name roles"),
    (
        {"share_norm": {"query": "all"}},
        TargetError,
        r"attention_norm, output_norm\) or '\*', got 'query",
    ),
    ({"sharing": lambda layer, role: {}}, SharingError, "for layer 0 of 'query'"),
    ({"sharing": {"query": lambda layer, role: 0}}, SharingError, "unless fit says how"),
]


@pytest.mark.parametrize(("options", "kind", "text"), FAULTS)
def test_bad_policies_leave_the_model_as_it_was(options, kind, text):
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        mp.convert(model, **options)
    assert_untouched(model, before)


def test_forward_of_grouped_roles_is_that_of_the_averaged_weights():
    plain = tiny_bert().double()
    model = mp.convert(copy.deepcopy(plain), sharing={"value": alternate_all}, fit="mean")
    with torch.no_grad():
        for pair in ((0, 2), (1, 3)):
            values = [plain.bert.encoder.layer[k].attention.self.value for k in pair]
            mean = sum(value.weight for value in values) / 2
            for value in values:
                value.weight.copy_(mean)
    torch.testing.assert_close(logits(model), logits(plain))


def alternate_all(layer, role):
    return layer % 2
