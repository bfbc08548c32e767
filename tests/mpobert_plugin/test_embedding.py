"""Embeddings as MPOs: dense twins of every family, words that are found and that must not be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AlbertForPreTraining, BertForMaskedLM, BertModel, OPTConfig, OPTForCausalLM

import mpobert_plugin as mp
from mpobert_plugin.errors import TargetError
from tests.mpobert_plugin.embeddings import (
    TIED,
    UNTIED,
    bank_of,
    check_twin,
    embedding_of,
    head_of,
    with_embedding,
)
from tests.mpobert_plugin.models import (
    ids,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
)
from tests.mpobert_plugin.zoo import language_model, outputs

# Dense twins


@pytest.mark.parametrize("bond", [None, 3])
@pytest.mark.parametrize("model_type", TIED + UNTIED)
def test_dense_twins_of_every_family(model_type, bond):
    tied = {"tie_word_embeddings": False} if model_type in UNTIED else {}
    model = language_model(model_type, **tied).double().train()
    plain = outputs(model)
    with_embedding(model, max_bond=bond)
    assert (head_of(model) is None) == (model_type in UNTIED)
    if bond is None:
        for mine, expected in zip(outputs(model), plain, strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-10)
    check_twin(model)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("dense", [True, False])
def test_twins_whichever_way_is_taken(dense, mode):
    model = with_embedding(getattr(tiny_bert().double(), mode)(), max_bond=4)
    bank = bank_of(model)
    mp.set_cache(model, False)
    for name in ("lookup_plans", "product_plans"):
        ways = [p for p in getattr(bank, name) if p.dense == dense]
        assert ways, name
        setattr(bank, name, ways[:1])
    check_twin(model)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_numbers_of_sites(n):
    check_twin(with_embedding(tiny_bert().double(), n=n, max_bond=6 if n > 1 else None))


def test_llama_that_is_tied():
    model = with_embedding(language_model("llama", tie_word_embeddings=True).double())
    assert isinstance(model.lm_head, mp.MPOHead)
    check_twin(model)


def test_a_model_whose_configuration_ties_nothing_keeps_its_head(tmp_path):
    model = with_embedding(tiny_bert(tie_word_embeddings=False).double(), max_bond=3)
    assert type(model.cls.predictions.decoder) is nn.Linear
    check_twin(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(BertForMaskedLM.from_pretrained(tmp_path)), logits(model))


def test_an_untied_llama_comes_back(tmp_path):
    model = with_embedding(language_model("llama", tie_word_embeddings=False), max_bond=3)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert type(loaded.lm_head) is nn.Linear
    assert torch.equal(outputs(loaded)[0], outputs(model)[0])


# Words that must not and words that must be found


@pytest.mark.parametrize("most", [1, 10_000_000])
@pytest.mark.parametrize("wrong", [99, 100, -1])
def test_t28_ids_out_of_range_raise_as_in_torch(wrong, most):
    model = with_embedding(tiny_bert(), max_bond=4)
    layer, bank = embedding_of(model), bank_of(model)
    assert bank.spec.row_dims == (4, 5, 5)
    bank.lookup_plans = [p for p in bank.lookup_plans if p.dense == (most > 1)][:1]
    assert layer(torch.tensor([[98, 0]])).shape == (1, 2, 32)
    for given in (torch.tensor([[3, wrong]]), torch.tensor([wrong], dtype=torch.int32)):
        with pytest.raises(IndexError, match="index out of range in self"):
            layer(given)
    with pytest.raises(RuntimeError, match="scalar types: Long, Int"):
        layer(torch.tensor([0.5]))


def test_t28_padded_rows_are_in_no_logits():
    model = with_embedding(tiny_bert(), max_bond=4)
    for train in (True, False):
        assert logits(model.train(train)).shape == (2, 7, 99)
    assert head_of(model).out_features == 99
    assert head_of(model).weight.shape == (99, 32)
    loss = model(ids(), labels=ids()).loss
    torch.testing.assert_close(
        loss, nn.functional.cross_entropy(model(ids()).logits.view(-1, 99), ids().view(-1))
    )


@pytest.mark.parametrize("dense", [True, False])
def test_the_row_of_padding_gets_no_gradient_from_lookups(dense):
    model = with_embedding(tiny_bert().double(), max_bond=4)
    layer, bank = embedding_of(model), bank_of(model)
    bank.lookup_plans = [p for p in bank.lookup_plans if p.dense == dense][:1]
    assert layer.padding_idx == 0
    layer(torch.tensor([0, 0])).sum().backward()
    assert all(not p.grad.any() for p in bank.parameters())
    layer(torch.tensor([5, 0, 5])).sum().backward()
    given = {name: p.grad.clone() for name, p in bank.named_parameters()}
    bank.zero_grad()
    plain = nn.Embedding(99, 32, padding_idx=0, _weight=layer.weight.detach()).double()
    plain(torch.tensor([5, 0, 5])).sum().backward()
    (layer.weight * plain.weight.grad).sum().backward()
    for name, p in bank.named_parameters():
        torch.testing.assert_close(given[name], p.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    model = with_embedding(tiny_bert(), max_bond=4).to(dtype)
    layer, bank = embedding_of(model), bank_of(model)
    wide, words, kept = copy.deepcopy(model).float(), torch.arange(99), bank.lookup_plans
    for dense in (True, False):
        for each in (bank, bank_of(wide)):
            each.lookup_plans = [p for p in kept if p.dense == dense][:1]
        rows = layer(words)
        assert rows.dtype == dtype
        assert torch.equal(rows, embedding_of(wide)(words).to(dtype))


@pytest.mark.parametrize("dense", [True, False])
def test_autocast_leaves_rows_and_rounds_logits(dense):
    model = with_embedding(tiny_bert(), max_bond=4).train()
    bank = bank_of(model)
    bank.product_plans = [p for p in bank.product_plans if p.dense == dense][:1]
    with torch.autocast("cpu", torch.bfloat16):
        assert embedding_of(model)(ids()).dtype == torch.float32
        found = model(ids()).logits
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), model(ids()).logits, rtol=0.05, atol=0.05)


def test_no_ids_and_scalars():
    layer = embedding_of(with_embedding(tiny_bert(), max_bond=4))
    assert layer(torch.empty(2, 0, dtype=torch.long)).shape == (2, 0, 32)
    assert layer(torch.tensor(7)).shape == (32,)
    torch.testing.assert_close(layer(torch.tensor(7)), layer.weight[7])


# One matrix for both ends


def test_embedding_and_head_rebuild_the_matrix_once(monkeypatch):
    model = with_embedding(tiny_bert(), max_bond=8).train()
    bank = bank_of(model)
    for name in ("lookup_plans", "product_plans"):
        setattr(bank, name, [p for p in getattr(bank, name) if p.dense])
    rebuilt, plain = [], bank.weights
    monkeypatch.setattr(bank, "weights", lambda: rebuilt.append(1) or plain())
    model(ids()).logits.sum().backward()
    assert len(rebuilt) == 1
    assert bank.scope.matrix is None
    model(ids())
    assert len(rebuilt) == 2
    model.bert(ids())
    assert (len(rebuilt), bank.scope.matrix, bank.scope.is_open) == (3, None, False)
    with pytest.raises(IndexError):
        model(torch.tensor([[99]]))
    assert (bank.scope.matrix, bank.scope.is_open) == (None, False)


def test_evaluation_keeps_the_matrix_until_a_core_changes():
    model = with_embedding(tiny_bert(), max_bond=4)
    before = logits(model)
    assert torch.equal(logits(model), before)
    bank = bank_of(model)
    with torch.no_grad():
        kept = bank.weights()[0]
        assert bank.weights()[0] is kept
        bank.auxiliary_0.mul_(2)
        assert bank.weights()[0] is not kept
    assert not torch.equal(logits(model), before)


def test_the_base_model_alone_rebuilds_nothing_for_few_words(monkeypatch):
    model = with_embedding(tiny_bert(), max_bond=4)
    bank = bank_of(model)
    logits(model)
    with torch.no_grad():
        bank.central.mul_(2)
        before = model.bert(ids()[:1, :2])[0]
        kept = bank._cache
        monkeypatch.setattr(bank, "weights", None)
        assert torch.equal(model.bert(ids()[:1, :2])[0], before)
    assert bank._cache is kept
    monkeypatch.undo()
    logits(model)
    assert bank._cache is not kept


def test_one_gradient_step_trains_both_ends_together():
    model = with_embedding(tiny_bert(), max_bond=4).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(ids(), labels=ids()).loss.backward()
    optimizer.step()
    assert torch.equal(head_of(model).weight, embedding_of(model).weight)


def test_training_goes_on_after_inference_mode():
    model = with_embedding(tiny_bert(), max_bond=4)
    with torch.inference_mode():
        before = model(ids()).logits
    assert torch.equal(logits(model), before)
    model(ids(), labels=ids()).loss.backward()
    assert bank_of(model).central.grad.any()


def test_converted_while_it_is_loaded(tmp_path):
    plain = tiny_bert()
    plain.save_pretrained(tmp_path)
    config = mp.MPOConfig(targets=["embedding", "query"], n=3)
    model = BertForMaskedLM.from_pretrained(tmp_path, quantization_config=config)
    torch.testing.assert_close(logits(model), logits(plain))
    mp.assert_shared(model)


def test_a_family_that_is_read_off_the_layers():
    sizes = {"hidden_size": 8, "ffn_dim": 16, "num_attention_heads": 2, "word_embed_proj_dim": 8}
    torch.manual_seed(0)
    plain = OPTForCausalLM(OPTConfig(vocab_size=99, num_hidden_layers=2, dropout=0.0, **sizes))
    model = with_embedding(plain.double(), "*.q_proj", max_bond=3)
    assert isinstance(model.lm_head, mp.MPOHead)
    check_twin(model, ids())


# The other matrices outside the layers


def test_pooler_and_projection_with_adapters():
    model = tiny_albert(AlbertForPreTraining).double()
    plain = outputs(model)
    roles = ["embedding", "pooler", "embedding_projection", "query"]
    mp.convert(model, targets=roles, n=3, adapter_rank=2, adapter_targets=["pooler", "query"])
    for mine, expected in zip(outputs(model), plain, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-10)
    plan = model.config.quantization_config.plan
    assert [(s.role, s.adapter_rank) for s in plan.outside] == [
        ("embedding", 0),
        ("embedding_projection", 0),
        ("pooler", 2),
    ]
    assert plan.beside == ()
    assert [spec.role for spec in plan.banks] == ["query"]
    stir_adapters(model)
    check_twin(model)
    mp.assert_shared(model)


def test_an_adapter_beside_what_is_not_a_target_stays_beside():
    model = mp.convert(tiny_bert(BertModel), targets=["query", "embedding"], n=3, adapter_rank=2)
    assert [spec.role for spec in model.config.quantization_config.plan.beside] == ["pooler"]
    with pytest.raises(TargetError, match=r"adapter_targets must name .*'embedding'"):
        mp.convert(
            tiny_bert(), targets=["embedding"], adapter_rank=2, adapter_targets=["embedding"]
        )


def test_nothing_outside_the_layers_is_converted_unless_named():
    plan = mp.make_plan(tiny_bert(BertModel), mp.MPOConfig())
    assert plan.outside == ()
    assert "outside" not in plan.to_dict()


def test_by_full_path_too():
    model = mp.convert(tiny_bert(BertModel), targets=["pooler.dense", "embeddings.word_embeddings"])
    assert list(model.mpo)[-2:] == ["embedding", "pooler"]


def test_from_albert_with_an_embedding(tmp_path):
    albert = tiny_albert()
    roles = ["query", "value", "embedding", "embedding_projection"]
    model = mp.from_albert(albert, 6, targets=roles, n=3, max_bond={"embedding": 5})
    assert model.config.num_hidden_layers == 6
    assert bank_of(model).spec.bond_dims == (1, 5, 5, 1)
    mp.assert_shared(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path)), logits(model))
    same = mp.from_albert(albert, 4, targets=roles, n=3)
    torch.testing.assert_close(logits(same), logits(albert))


def test_build_with_an_embedding():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    small = {**sizes, "vocab_size": 999, "embedding_size": 16, "num_layers": 2, "n": 3}
    torch.manual_seed(0)
    model = mp.build("mpobert-12", targets=["query", "embedding", "pooler"], **small)
    std = embedding_of(model).weight.std()
    assert 0.016 < std < 0.024
    assert model.get_output_embeddings() is head_of(model)
    on_meta = mp.build("mpobert-12", targets=["query", "embedding"], device="meta", **small)
    assert bank_of(on_meta).central.is_meta
    assert model(ids())[0].shape == (2, 7, 999)
