"""Fused attention: no mask without padding, a whole one with it, and the host's own elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from torch.nn import functional
from transformers import BertConfig, MPNetConfig

from mpobert_plugin.locate import base_of
from mpobert_plugin.train.objective import Objective, is_padded, takes_whole_masks
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.setup import set_up
from tests.mpobert_plugin.train.computing import HOSTS, SIZES, batches, model_of
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in


def full(batch):
    return replace(batch, sizes=torch.full_like(batch.sizes, batch.input_ids.shape[1]))


@pytest.fixture
def masks(monkeypatch):
    seen = []
    real = functional.scaled_dot_product_attention

    def attention(query, key, value, attn_mask=None, **options):
        seen.append(attn_mask)
        return real(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    return seen


@pytest.mark.parametrize("host", HOSTS)
def test_masks_are_whole_or_none_and_change_nothing(host, masks):
    model = model_of(host).eval()
    objective, batch = Objective(model), batches(1)[0]
    rows, length = batch.input_ids.shape
    for padded, each in ((True, batch), (False, full(batch))):
        assert is_padded(each) is padded
        masks.clear()
        found = objective(each)
        if padded:
            assert {(tuple(mask.shape), mask.dtype) for mask in masks} == {
                ((rows, 1, length, length), torch.bool)
            }
        else:
            assert masks
            assert all(mask is None for mask in masks)
        inputs = {"input_ids": each.input_ids, "attention_mask": each.attention_mask}
        if model.config.type_vocab_size > 1:
            inputs["token_type_ids"] = each.token_type_ids
        hidden = base_of(model)(**inputs)[0]
        at = hidden.gather(1, each.positions[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = objective._tokens(at).flatten(0, 1)
        wanted = functional.cross_entropy(logits, each.labels.flatten(), reduction="sum")
        assert torch.allclose(found.tokens, wanted, rtol=1e-6)


def test_who_makes_masks_of_their_own():
    sizes = {**SIZES, "num_hidden_layers": 1}
    eager = transformers.BertForMaskedLM(BertConfig(**sizes))
    assert takes_whole_masks(eager)
    eager.set_attn_implementation("eager")
    assert not takes_whole_masks(eager)
    mpnet = transformers.MPNetForMaskedLM(MPNetConfig(**sizes))
    assert not takes_whole_masks(mpnet)
    # Such a host gets the plain mask of tokens, and is right with padding or without.
    batch = batches(1)[0]
    objective = Objective(eager.eval())
    longer = full(batch)
    assert torch.isfinite(objective(batch).tokens)
    eager.set_attn_implementation("sdpa")
    fused = objective(longer).tokens
    eager.set_attn_implementation("eager")
    assert torch.allclose(objective(longer).tokens, fused, rtol=1e-5)


def test_a_run_takes_fused_attention_and_says_so(tmp_path):
    model = model_of("bert")
    model.set_attn_implementation("eager")
    parts = set_up(model, corpus_in(tmp_path), BASE, Processes())
    assert model.config._attn_implementation == "sdpa"
    assert "Attention is computed by 'sdpa', where the model had 'eager'." in parts.notes
