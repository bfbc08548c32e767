"""Checkpoints that do not fit are refused with names, numbers and a remedy."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, MPOBertWarning
from tests.mpobert_plugin.models import logits, tiny_bert


def converted(**options):
    return mp.convert(tiny_bert(), sharing="all", fit="mean", **options)


def wrapped(state):
    return {f"module.{name}": tensor for name, tensor in state.items()}


def without_core(state):
    return {k: v for k, v in state.items() if not k.endswith("mpo.query.auxiliary_1")}


def other_bond(state):
    return {
        k: v[..., :3].clone() if k.endswith("query.auxiliary_0") else v for k, v in state.items()
    }


def plain(_state):
    return {name: tensor.clone() for name, tensor in tiny_bert().state_dict().items()}


CASES = {
    "prefix": (wrapped, ["All names start with 'module.'", "removeprefix('module.')", "in total)"]),
    "plain": (plain, ["This is a plain checkpoint", "mpobert_plugin.convert"]),
    "core": (without_core, ["1 of 52 expected tensors are missing: bert.mpo.query.auxiliary_1."]),
    "bond": (
        other_bond,
        ["bert.mpo.query.auxiliary_0 (stored (4, 1, 2, 2, 3), expected (4, 1, 2, 2, 4))", "Bonds"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_m06_state_dicts(case):
    model = converted()
    before = logits(model)
    change, texts = CASES[case]
    with pytest.raises(CheckpointError) as caught:
        mp.load_state_dict(model, change(model.state_dict()))
    for text in (*texts, "Nothing was loaded."):
        assert text in str(caught.value)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("case", CASES)
def test_m06_files(case, tmp_path):
    converted().save_pretrained(tmp_path)
    change, texts = CASES[case]
    path = tmp_path / "model.safetensors"
    state = change(load_file(path))
    # Tied tensors are stored once.
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    save_file({k: v for k, v in state.items() if not k.endswith(tied)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        BertForMaskedLM.from_pretrained(tmp_path)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("case", ["prefix", "plain", "core"])
def test_m06_state_dicts_through_from_pretrained(case):
    model = converted()
    state = CASES[case][0](model.state_dict())
    with pytest.raises(CheckpointError, match="the loaded tensors must fill the base model"):
        BertForMaskedLM.from_pretrained(None, config=model.config, state_dict=state)


def test_m06_plain_models_are_checked_too():
    model = tiny_bert()
    with pytest.raises(CheckpointError) as caught:
        mp.load_state_dict(model, wrapped(model.state_dict()))
    assert "76 of 76 expected tensors are missing" in str(caught.value)
    assert "... (76 in total)" in str(caught.value)
    assert "All names start with 'module.'" in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        mp.load_state_dict(model, converted().state_dict())
    assert "This is an MPO checkpoint: load its folder with from_pretrained" in str(caught.value)
    with pytest.raises(CheckpointError, match="The checkpoint is damaged"):
        mp.load_state_dict(model, dict(list(model.state_dict().items())[:10]))


def test_fitting_state_dicts_are_loaded():
    source, target = converted(adapter_rank=2), converted(adapter_rank=2)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.01)
    mp.load_state_dict(target, source.state_dict())
    assert torch.equal(logits(target), logits(source))
    base = copy.deepcopy(source.bert)
    with torch.no_grad():
        base.mpo["query"].central.mul_(2.0)
    with pytest.warns(MPOBertWarning, match=r"keep their values: cls.predictions.bias"):
        mp.load_state_dict(target, base.state_dict())
    assert torch.equal(target.bert.mpo["query"].central, base.mpo["query"].central)


def test_a_head_with_missing_tensors_is_no_new_head():
    model = converted()
    state = {k: v for k, v in model.state_dict().items() if "transform.dense.weight" not in k}
    with pytest.raises(CheckpointError, match=r"missing: cls.predictions.transform.dense.weight"):
        mp.load_state_dict(model, state)
