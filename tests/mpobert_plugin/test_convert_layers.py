"""What a conversion tells beforehand and afterwards, and layers that share from the start."""

from __future__ import annotations

import copy

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError, SharingError
from tests.mpobert_plugin.models import assert_untouched, logits, snapshot, tiny_bert


def test_plan_can_be_seen_before():
    model = tiny_bert()
    before = snapshot(model)
    plan = mp.make_plan(model, mp.MPOConfig(sharing="groups:2", adapter_rank=4))
    assert_untouched(model, before)
    text = str(plan)
    assert "query             32 x 32 as 2x2 2x2 2x2 2x2 2x2, bonds 4 16 16 4" in text
    assert "central in 2 groups (0*2 1*2)" in text
    assert "adapter of rank 4" in text


def test_describe_and_assert_shared():
    model = mp.convert(tiny_bert(), sharing="all", fit="mean")
    text = mp.describe(model)
    assert "central       1 x 16 x 2 x 2 x 16          shared by layers 0 to 3" in text
    mp.assert_shared(model)
    layer = model.bert.encoder.layer[1].attention.self
    layer.query = copy.deepcopy(layer.query)
    with pytest.raises(SharingError, match=r"bert.encoder.layer.1.attention.self.query must read"):
        mp.assert_shared(model)


def test_one_module_in_several_places():
    plain = tiny_bert().double()
    layers = plain.bert.encoder.layer
    layers[1] = layers[0]
    layers[3] = layers[2]
    before, dense = logits(plain), mp.account(plain)
    with pytest.raises(
        ConversionError, match=r"bert\.encoder\.layer\.1 and bert\.encoder\.layer\.0 are one module"
    ):
        mp.convert(plain, sharing="all", fit="mean")
    model = mp.convert(plain)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)
    assert model.bert.mpo["query"].central.shape[0] == 2
    assert model.bert.mpo["query"].auxiliary_0.shape[0] == 2
    assert mp.account(model).dense == mp.account(tiny_bert()).dense
    assert dense.total == mp.account(tiny_bert()).total


def test_one_parameter_in_several_layers():
    plain = tiny_bert().double()
    layers = plain.bert.encoder.layer
    layers[2].intermediate.dense.weight = layers[0].intermediate.dense.weight
    before = logits(plain)
    model = mp.convert(plain)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)
    assert model.bert.mpo["ffn_in"].spec.central == (0, 1, 0, 2)
    assert model.bert.mpo["ffn_in"].spec.auxiliary == (0, 1, 0, 2)
    assert model.bert.mpo["query"].spec.central == (0, 1, 2, 3)


def test_integers_of_other_libraries():
    numpy = pytest.importorskip("numpy")
    model = mp.convert(tiny_bert(), n=numpy.int64(3), max_bond=numpy.int32(4))
    spec = model.config.quantization_config.plan.banks[0]
    assert spec.bond_dims == (1, 4, 4, 1)
    assert "numpy" not in model.config.to_json_string()
    with pytest.raises(ConfigError, match="tuple of factors for the size 32, got 5"):
        mp.convert(tiny_bert(), shapes={32: 5})
