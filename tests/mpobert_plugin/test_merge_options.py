"""Merging whatever a conversion makes: budgets, joint fits, parts outside layers, strategies."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, BertForSequenceClassification

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, logits, stir_adapters, tiny_albert, tiny_bert
from tests.mpobert_plugin.real import load_albert, needs_albert, reaction_batches

ROLES = ["query", "key", "value", "attention_output", "ffn_in", "ffn_out"]
CONVERSIONS = {
    "budget": lambda: mp.convert(tiny_bert(), ratio=0.7),
    "budget, shared": lambda: mp.convert(tiny_bert(), ratio=0.8, sharing="groups:2", fit="mean"),
    "joint with residuals": lambda: mp.convert(
        tiny_bert(), sharing="all", fit="joint", max_bond=6, adapter_rank=2
    ),
    "pooler and projection": lambda: mp.convert(
        tiny_bert(BertForSequenceClassification, num_labels=2),
        targets=[*ROLES, "pooler"],
        max_bond=6,
        adapter_rank=2,
    ),
    "everything": lambda: mp.convert(
        tiny_albert(), targets=[*ROLES, "embedding", "embedding_projection"], max_bond=8
    ),
    "policies by role": lambda: mp.convert(
        tiny_bert(), sharing={"query": "all", "key": "groups:2"}, fit="first", share_bias=True
    ),
}


def made(name):
    model = CONVERSIONS[name]().eval()
    stir_adapters(model)
    return model


def without_warnings(function, model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mp.errors.MPOBertWarning)
        return function(model)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_every_conversion_merges(name, tmp_path):
    model = made(name)
    merged = mp.merge(model)
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-5)
    assert not any("mpobert" in type(module).__module__ for module in merged.modules())
    merged.save_pretrained(tmp_path)
    loaded, info = type(merged).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert torch.equal(logits(loaded), logits(merged))
    model.save_pretrained(tmp_path / "mpo")
    again = mp.merge(type(model).from_pretrained(tmp_path / "mpo"))
    assert again.state_dict().keys() == merged.state_dict().keys()
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in merged.state_dict().items())


@pytest.mark.parametrize("name", ["joint with residuals", "pooler and projection"])
def test_adapters_of_every_conversion_come_out_again(name):
    model = made(name)
    before, output = copy.deepcopy(model.state_dict()), logits(model)
    report = without_warnings(mp.merge_adapters, model)
    assert report.adapters > 0
    torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-5)
    assert mp.account(model).by_kind.get("adapter") is None
    mp.unmerge_adapters(model)
    assert torch.equal(logits(model), output)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("training", ["batched", "per_layer", "factorized"])
@pytest.mark.parametrize("evaluation", ["cached", "per_group", "factorized"])
def test_every_strategy(training, evaluation):
    model = mp.convert(tiny_bert(), max_bond=4, adapter_rank=2, adapter_targets=["query"])
    mp.set_strategy(model, training, when="training")
    mp.set_strategy(model, evaluation, when="evaluation")
    stir_adapters(model)
    output = logits(model)
    merged = mp.merge(model)
    torch.testing.assert_close(logits(merged), output, rtol=0, atol=1e-5)
    assert not merged.bert._forward_pre_hooks
    for part in merged.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    mp.merge_adapters(model)
    torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-5)
    model.train()
    model(ids(), labels=ids()).loss.backward()
    model.eval()
    mp.unmerge_adapters(model)
    torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-6)


def test_a_causal_model_with_merged_adapters_generates_the_same():
    from transformers import GPT2Config

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=40)
    model = mp.convert(AutoModelForCausalLM.from_config(config).eval(), adapter_rank=2)
    stir_adapters(model)
    given = {"input_ids": ids(), "attention_mask": torch.ones_like(ids())}
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    before = model.generate(**given, **options)
    mp.merge_adapters(model)
    assert torch.equal(model.generate(**given, **options), before)
    mp.unmerge_adapters(model)
    assert torch.equal(model.generate(**given, **options), before)


def test_a_resized_vocabulary():
    model = mp.convert(tiny_bert(), max_bond=4)
    model.resize_token_embeddings(120)
    merged = mp.merge(model)
    assert merged.config.vocab_size == 120
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-6)
    assert merged.cls.predictions.decoder.weight is merged.bert.embeddings.word_embeddings.weight


def test_freezing_and_merging_outside_parts():
    model = made("pooler and projection")
    counts = mp.freeze(model, ["central", "head"])
    merged = mp.merge(model)
    assert merged.bert.pooler.dense.weight.requires_grad
    assert not merged.bert.pooler.dense.bias.requires_grad
    assert not merged.bert.embeddings.word_embeddings.weight.requires_grad
    assert counts["head"] == 66


@needs_albert
class TestTheRealAlbert:
    @pytest.mark.parametrize(
        ("dtype", "tolerance"),
        [pytest.param(torch.float32, 5e-4, marks=pytest.mark.slow), (torch.float64, 1e-8)],
    )
    def test_merging_an_exact_conversion_gives_the_albert_back(self, dtype, tolerance):
        albert = load_albert(dtype)
        (batch, *_) = reaction_batches(n=8, size=8)
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        merged = mp.merge(mp.convert(load_albert(dtype)))
        assert merged.num_parameters() == albert.num_parameters()
        with torch.no_grad():
            difference = (merged(**given).logits - albert(**given).logits).abs().max()
        assert difference < tolerance
        deep = mp.merge(mp.from_albert(albert, 12))
        assert len(deep.albert.encoder.albert_layer_groups) == 12
        with torch.no_grad():
            difference = (deep(**given).logits - albert(**given).logits).abs().max()
        assert difference < tolerance

    def test_adapters_merge_and_come_out_bit_for_bit(self):
        model = mp.from_albert(load_albert(), 6, adapter_rank=4)
        stir_adapters(model)
        (batch, *_) = reaction_batches(n=4, size=4)
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        with torch.no_grad():
            before = model(**given).logits
        report = without_warnings(mp.merge_adapters, model)
        assert report.largest < 6e-8
        with torch.no_grad():
            difference = (model(**given).logits - before).abs().max() / before.abs().max()
        assert difference < 1e-4
        mp.unmerge_adapters(model)
        with torch.no_grad():
            assert torch.equal(model(**given).logits, before)
