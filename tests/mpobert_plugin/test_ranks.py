"""Adapters with a rank of their own for each role."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, TargetError
from tests.mpobert_plugin.models import (
    ids,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
    twin_output,
)


def ranks(model):
    plan = model.config.quantization_config.plan
    found = {bank.role: bank.adapter_rank for bank in plan.banks if bank.adapter_rank}
    return found | {spec.role: spec.rank for spec in plan.beside}


def test_each_role_has_the_rank_that_is_named_for_it(tmp_path):
    model = mp.convert(tiny_bert(), adapter_rank={"query": 3, "ffn_in": 1})
    assert ranks(model) == {"query": 3, "ffn_in": 1}
    assert tuple(model.bert.mpo["query"].adapter_up.shape) == (4, 32, 3)
    stir_adapters(model)
    with torch.no_grad():
        expected = twin_output(model, input_ids=ids())[0]
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert loaded.config.quantization_config.adapter_rank == {"query": 3, "ffn_in": 1}
    assert torch.equal(logits(loaded), logits(model))
    torch.testing.assert_close(logits(mp.merge(model)), logits(model), rtol=0, atol=1e-5)


def test_a_rank_for_the_others():
    model = mp.from_albert(tiny_albert(), 3, adapter_rank={"value": 4, "key": 0, "*": 2})
    assert ranks(model) == {
        "query": 2,
        "value": 4,
        "attention_output": 2,
        "embedding_projection": 2,
    }
    assert model.albert.mpo["value"].spec.adapter_scale == 1.0


def test_a_role_beside_the_layers_and_alpha():
    model = mp.from_albert(
        tiny_albert(), 3, adapter_rank={"embedding_projection": 4, "query": 2}, adapter_alpha=8
    )
    assert ranks(model) == {"embedding_projection": 4, "query": 2}
    assert model.albert.mpo["query"].spec.adapter_scale == 4.0
    assert model.albert.encoder.embedding_hidden_mapping_in.alpha == 8.0


def test_targets_and_ranks_together():
    options = {"adapter_rank": {"query": 2, "*": 1}, "adapter_targets": ["query", "ffn_out"]}
    assert ranks(mp.convert(tiny_bert(), **options)) == {"query": 2, "ffn_out": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter_rank": {"querry": 2}}, "got 'querry'. Did you mean 'query'?"),
        ({"adapter_rank": {}}, "adapter_rank must name roles and their limits, got {}."),
        ({"adapter_rank": {"query": -1}}, "adapter_rank['query'] must be an integer >= 0, got -1."),
        ({"adapter_rank": {"query": 2.0}}, "must be an integer >= 0, got 2.0."),
        ({"adapter_rank": {"query": 33}}, "adapter_rank must be at most 32 for bert.encoder.layer"),
        (
            {"adapter_rank": {"query": 2}, "adapter_targets": ["query", "key"]},
            "must give a rank >= 1 for every role of adapter_targets, got {'query': 2} and 'key'.",
        ),
        (
            {"adapter_rank": {"query": 0}, "adapter_alpha": 2.0},
            "adapter_alpha needs adapter_rank >= 1, got adapter_alpha 2.0 and adapter_rank 0.",
        ),
        ({"adapter_rank": {"ffn_in": 2}, "targets": ["query"]}, "must name roles that are convert"),
    ],
)
def test_impossible_ranks(options, message):
    model = tiny_bert()
    with pytest.raises(ConfigError, match=re.escape(message)):
        mp.convert(model, **options)
    assert not hasattr(model.bert, "mpo")


def test_no_rank_is_no_adapter():
    assert ranks(mp.convert(tiny_bert(), adapter_rank={"query": 0})) == {}
    with pytest.raises(TargetError):
        mp.convert(tiny_bert(), adapter_rank=2, adapter_targets=["querry"])
