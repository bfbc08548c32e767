"""The losses: what transformers computes, as sums, at masked positions alone."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from transformers import AlbertConfig

import mpobert_plugin as mp
from mpobert_plugin.errors import ModelTypeError
from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.data.samples import IGNORED
from mpobert_plugin.train.objective import Objective
from tests.mpobert_plugin.train.tiny import ALBERT, MODELS, batch_of, dense_labels


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_transformers(name, converted):
    torch.manual_seed(0)
    model = getattr(transformers, name)(MODELS[name]).eval()
    if converted:
        mp.convert(model, n=3)
    batch = batch_of()
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if name != "RobertaForMaskedLM":
        inputs["token_type_ids"] = batch.token_type_ids
    order = {
        "AlbertForPreTraining": "sentence_order_label",
        "BertForPreTraining": "next_sentence_label",
    }
    if name in order:
        inputs[order[name]] = batch.orders
    loss = model(**inputs, labels=dense_labels(batch)).loss
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    ours = Objective(model)(batch).mean(batch.counts())
    got = torch.autograd.grad(ours, list(model.parameters()), allow_unused=True)
    assert ours.item() == pytest.approx(loss.item(), rel=1e-6)
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-6)


def test_m13_a_model_of_zeros_is_a_uniform_guess():
    sizes = {**ALBERT.to_dict(), "vocab_size": 30000}
    model = transformers.AlbertForPreTraining(AlbertConfig(**sizes)).eval()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    batch = batch_of(2, 12, 1)
    losses = Objective(model)(batch)
    counts = batch.counts()
    assert counts.tolist() == [2, 2]
    assert losses.tokens.item() / 2 == pytest.approx(math.log(30000), abs=1e-5)
    assert losses.orders.item() / 2 == pytest.approx(math.log(2), abs=1e-6)
    assert losses.mean(counts).item() == pytest.approx(11.002100, abs=1e-5)


def test_m16_nothing_asked_for_gives_zero_and_zero_gradients():
    model = transformers.AlbertForPreTraining(ALBERT).eval()
    batch = batch_of()
    empty = Batch(**{**vars(batch), "labels": torch.full_like(batch.labels, IGNORED)})
    empty = Batch(**{**vars(empty), "orders": torch.full_like(batch.orders, IGNORED)})
    loss = Objective(model)(empty).mean(empty.counts())
    loss.backward()
    assert loss.item() == 0.0
    assert empty.counts().tolist() == [0, 0]
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_m21_sums_do_not_depend_on_the_division():
    torch.manual_seed(0)
    model = transformers.AlbertForPreTraining(ALBERT).double().eval()
    objective, batch = Objective(model), batch_of()
    counts = batch.counts()
    whole = objective(batch).mean(counts)
    for size in (1, 2, 4):
        parts = [
            Batch(*(tensor[start : start + size] for tensor in vars(batch).values()))
            for start in range(0, 4, size)
        ]
        total = sum(objective(part).mean(counts) for part in parts)
        assert total.item() == pytest.approx(whole.item(), rel=1e-6)


def test_right_answers_are_counted():
    model = transformers.AlbertForPreTraining(ALBERT).eval()
    batch = batch_of()
    with torch.no_grad():
        logits = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    at = logits.prediction_logits.argmax(-1).gather(1, batch.positions)
    right = Batch(**{**vars(batch), "labels": torch.where(batch.labels == IGNORED, IGNORED, at)})
    losses = Objective(model)(right)
    assert int(losses.right_tokens) == int(right.counts()[0])
    assert losses.numbers().shape == (4,)


def test_models_without_a_head_for_masked_tokens_are_refused():
    with pytest.raises(ModelTypeError, match=r"head for masked tokens .* got a AlbertModel"):
        Objective(transformers.AlbertModel(ALBERT))
    assert not Objective(transformers.AlbertForMaskedLM(ALBERT)).has_order
