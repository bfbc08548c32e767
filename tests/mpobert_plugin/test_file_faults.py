"""State dicts and folders that are incomplete, damaged or of another task."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    PreTrainedModel,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, MPOBertWarning
from tests.mpobert_plugin.models import logits, stir_adapters, tiny_albert, tiny_bert


def converted(cls: type[PreTrainedModel] = BertForMaskedLM, **options: Any) -> PreTrainedModel:
    model = mp.convert(tiny_bert(cls), n=3, adapter_rank=2, **options)
    stir_adapters(model)
    return model


# A model on the meta device takes a state dict


@pytest.mark.parametrize("make", [converted, lambda: mp.from_albert(tiny_albert(), 3, n=3)])
def test_a_model_on_meta_takes_a_state_dict_and_has_its_buffers(make: Any) -> None:
    source = make()
    target = copy.deepcopy(source).to("meta")
    mp.load_state_dict(target, copy.deepcopy(source).state_dict(), assign=True)
    assert not any(t.is_meta for t in (*target.parameters(), *target.buffers()))
    torch.testing.assert_close(logits(target), logits(source), rtol=0, atol=0)
    assert all(p.requires_grad for p in target.parameters())


def test_a_preset_built_on_meta_takes_a_state_dict() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    sizes |= {"vocab_size": 99, "embedding_size": 16, "max_position_embeddings": 40}
    options: dict[str, Any] = {"head": "masked_lm", "num_layers": 2, "shapes": None, "n": 3}
    source = mp.build("mpobert-12", **options, **sizes).eval()
    target = mp.build("mpobert-12", device="meta", **options, **sizes).eval()
    mp.load_state_dict(target, source.state_dict(), assign=True)
    torch.testing.assert_close(logits(target), logits(source), rtol=0, atol=0)


def test_a_new_head_on_meta_is_initialized_as_in_a_new_model() -> None:
    base = converted(BertModel)
    target = converted(BertForMaskedLM).to("meta")
    with pytest.warns(MPOBertWarning, match=r"do\S* not have start at random: cls\.predictions"):
        mp.load_state_dict(target, base.state_dict(), assign=True)
    assert torch.isfinite(logits(target)).all()
    std = target.cls.predictions.transform.dense.weight.std().item()
    assert std == pytest.approx(target.config.initializer_range, rel=0.2)


def test_a_buffer_that_nobody_can_fill_is_named() -> None:
    source = converted()
    target = copy.deepcopy(source)
    target.bert.register_buffer("secret", torch.ones(2), persistent=False)
    target.to("meta")
    with pytest.raises(CheckpointError, match=r"got bert\.secret on the meta device"):
        mp.load_state_dict(target, source.state_dict(), assign=True)


def test_a_model_on_meta_needs_assign() -> None:
    source = converted()
    target = copy.deepcopy(source).to("meta")
    with pytest.raises(CheckpointError, match="assign=True"):
        mp.load_state_dict(target, source.state_dict())


# What is no state dict


@pytest.mark.parametrize("given", [None, 3, [("a", torch.ones(1))], "x"])
def test_a_state_dict_is_a_mapping(given: Any) -> None:
    with pytest.raises(CheckpointError, match=f"got {type(given).__name__}"):
        mp.load_state_dict(tiny_bert(), given)


def test_values_of_a_state_dict_are_floating_point_tensors() -> None:
    model = converted()
    state = model.state_dict()
    name = "bert.mpo.query.central"
    for value, message in [
        (state[name].tolist(), f"got list for '{name}'"),
        (state[name].int(), rf"{name} .* got torch\.int32"),
        (state[name].to("meta"), rf"{name} .* meta device"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            mp.load_state_dict(model, {**state, name: value})


# Heads of another task


@pytest.mark.parametrize(
    ("source", "target", "new"),
    [
        (BertForMaskedLM, BertForPreTraining, "cls.seq_relationship"),
        (AlbertForMaskedLM, AlbertForPreTraining, "sop_classifier"),
    ],
)
def test_a_masked_lm_goes_into_a_model_for_pretraining(
    source: type[PreTrainedModel],
    target: type[PreTrainedModel],
    new: str,
    tmp_path: Path,
) -> None:
    plain = tiny_bert(source) if source is BertForMaskedLM else tiny_albert(source)
    model = mp.convert(plain, n=3)
    model.save_pretrained(tmp_path)
    with pytest.warns(MPOBertWarning, match=new):
        loaded = target.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.save_pretrained(tmp_path)
        target.from_pretrained(tmp_path)


def test_a_head_with_holes_is_damaged(tmp_path: Path) -> None:
    model = converted(BertForPreTraining)
    state = model.state_dict()
    del state["cls.predictions.transform.dense.weight"]
    with pytest.raises(CheckpointError, match=r"missing: cls\.predictions\.transform"):
        mp.load_state_dict(model, state)
