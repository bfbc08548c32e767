"""MPOConfig: round trips and refusals."""

from __future__ import annotations

import json

import pytest

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, ConfigError
from tests.mpobert_plugin.models import tiny_bert


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sharing": [[0, 1], range(2, 4)], "share_bias": True, "share_norm": "groups:2"},
        {"shapes": {768: (4, 4, 4, 4, 3)}, "max_bond": 7, "rtol": 0.1, "fit": "mean"},
        {"shapes": {"query": ((4, 8), (4, 8))}, "targets": ["query"]},
        {"shapes": ((4, 8), (8, 4)), "gauge": "central", "n": 2},
        {"adapter_rank": 8, "adapter_alpha": 16.0, "adapter_targets": ("query", "pooler")},
    ],
)
def test_round_trip_through_json(options):
    config = mp.MPOConfig(**options)
    again = mp.MPOConfig.from_dict(json.loads(config.to_json_string()))
    assert again == config
    assert again.to_json_string() == config.to_json_string()
    assert hash(again) == hash(config)


def test_plan_round_trip():
    model = mp.convert(
        tiny_bert(), sharing="groups:2", fit="mean", adapter_rank=2, targets=["query", "ffn_in"]
    )
    config = model.config.quantization_config
    again = mp.MPOConfig.from_dict(json.loads(config.to_json_string()))
    assert again == config
    assert again.plan == config.plan
    assert [spec.role for spec in again.plan.banks] == ["query", "ffn_in"]
    assert json.loads(config.plan.to_json()) == config.plan.to_dict()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shareing": "all"}, "no option 'shareing'. Did you mean 'sharing'"),
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"n": 2.0}, "n must be an integer >= 1, got 2.0"),
        ({"n": True}, "n must be an integer >= 1, got True"),
        ({"max_bond": 0}, "max_bond must be an integer >= 1, got 0"),
        ({"max_bond": "64"}, "max_bond must be an integer >= 1, got '64'"),
        ({"rtol": 0.0}, "rtol must be a number above 0 and below 1, got 0.0"),
        ({"rtol": float("nan")}, "rtol must be a number above 0 and below 1, got nan"),
        ({"adapter_rank": -1}, "adapter_rank must be an integer >= 0, got -1"),
        ({"adapter_alpha": 0}, "adapter_alpha must be a number above 1e-30 and below 1e"),
        ({"adapter_targets": ["query"]}, "adapter_targets needs adapter_rank >= 1"),
        ({"targets": []}, "targets must list at least one name, got []"),
        ({"gauge": "simetric"}, "got 'simetric'. Did you mean 'symmetric'?"),
        ({"gauge": "identity", "max_bond": 3}, "leave out max_bond and rtol"),
        ({"fit": "jiont"}, "fit must be 'joint' or 'mean' or 'first', got 'jiont'"),
        ({"quant_method": "awq"}, "quant_method must be 'mpo', got 'awq'"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(ConfigError) as caught:
        mp.MPOConfig(**options)
    assert text in str(caught.value)


def test_newer_versions_are_refused():
    with pytest.raises(CheckpointError, match=r"must be 1 to 1, got 2. A newer version"):
        mp.MPOConfig(version=2)


def test_repr_shows_what_was_asked_for():
    assert repr(mp.MPOConfig(sharing="all", max_bond=3)) == "MPOConfig(sharing='all', max_bond=3)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plan: plan.pop("banks"), "must have the field 'banks'"),
        (lambda plan: plan.update(extra=1), "got 'extra'"),
        (lambda plan: plan.update(n_layers=0), "n_layers of the stored plan must be an integer"),
        (lambda plan: plan.update(banks={}), "banks of the stored plan must be a list"),
        (lambda plan: plan["banks"].append(plan["banks"][0]), "must name each role once"),
        (lambda plan: plan["banks"][0].pop("rows"), "must have the field 'rows'"),
        (lambda plan: plan["banks"][0].update(rows=-1), "rows of bank 'query'"),
        (lambda plan: plan["banks"][0].update(rows=10**6), "factors that cover 1000000 x 32"),
        (lambda plan: plan["banks"][0].update(bond_dims="2 4 16 16 4 1"), "end bonds 1"),
        (lambda plan: plan["banks"][0].update(bond_dims="1 4 1"), "one bond more"),
        (lambda plan: plan["banks"][0].update(row_dims="2 x"), "in one text, got '2 x'"),
        (lambda plan: plan["banks"][0].update(errors=[0.1]), "must be 4 numbers"),
        (lambda plan: plan["banks"][0].update(errors=["a"] * 4), "must be finite numbers"),
        (lambda plan: plan["norms"][0].update(eps="x"), "eps of norm 'attention_norm'"),
    ],
)
def test_damaged_plans_are_refused(change, text):
    plan = mp.convert(tiny_bert()).config.quantization_config.plan.to_dict()
    change(plan)
    with pytest.raises(CheckpointError) as caught:
        mp.ConversionPlan.from_dict(plan)
    assert text in str(caught.value)
