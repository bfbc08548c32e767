"""Saving and loading through transformers: every route keeps sharing and values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, MPOBertWarning
from mpobert_plugin.spec import BankSpec
from tests.mpobert_plugin.models import ids, logits, tiny_albert, tiny_bert, tiny_pretraining

ROOT = Path(__file__).parents[2]


def ffn_shared():
    return mp.convert(tiny_bert(), sharing="all", fit="mean", targets=["ffn_in", "ffn_out"])


MODELS = {
    "bert-ffn": ffn_shared,
    "bert-groups": lambda: mp.convert(tiny_bert(), sharing="groups:2", fit="first", adapter_rank=2),
    "bert-plain-sharing": lambda: mp.convert(tiny_bert()),
    "albert-kept": lambda: mp.convert(tiny_albert(), adapter_rank=1),
    "albert-deep": lambda: mp.from_albert(tiny_pretraining(), 6, adapter_rank=3),
    "albert-policy": lambda: mp.convert(tiny_albert(), sharing="albert", max_bond=5),
}


@pytest.mark.parametrize("name", MODELS)
def test_m01_the_file_holds_each_tensor_once_and_reload_is_exact(name, tmp_path):
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == mp.account(model).unique
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    mp.assert_shared(loaded)
    assert mp.account(loaded) == mp.account(model)
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert loaded.config.quantization_config == model.config.quantization_config
    with torch.no_grad():
        bank = loaded.base_model.mpo["ffn_in"]
        last = [k for k, piece in enumerate(bank.spec.central) if piece == 0][-1]
        before = bank.weights()[last].clone()
        bank.readers[0].bank.central[0, 0, 0, 0, 0] += 1.0
        assert not torch.equal(bank.weights()[last], before)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert torch.equal(logits(type(model).from_pretrained(again)), logits(loaded))


def test_a_loaded_model_is_like_any_other(tmp_path):
    ffn_shared().save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert not loaded.is_quantized
    assert not hasattr(loaded, "quantization_method")
    assert not hasattr(loaded, "hf_quantizer")
    assert not getattr(loaded.config, "_is_quantized", False)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    for cast in (loaded.half, loaded.float, loaded.double, loaded.bfloat16):
        cast()
        mp.assert_shared(loaded)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_stored_type_comes_back_unless_another_is_named(dtype, tmp_path):
    model = ffn_shared().to(dtype)
    model.save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < mp.account(model).unique * dtype.itemsize + 8192
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert torch.equal(logits(loaded), logits(model))
    named = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in named.parameters()} == {torch.float32}


def test_sharded_files(tmp_path):
    model = ffn_shared()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    total = sum(t.numel() for file in files for t in load_file(file).values())
    assert total == mp.account(model).unique
    assert torch.equal(logits(AutoModelForMaskedLM.from_pretrained(tmp_path)), logits(model))


def test_base_and_head_load_into_each_other(tmp_path):
    model = mp.from_albert(tiny_pretraining(), 5, adapter_rank=2)
    model.save_pretrained(tmp_path / "head")
    base = AutoModel.from_pretrained(tmp_path / "head")
    torch.testing.assert_close(logits(base), model.albert(ids())[0].detach(), rtol=0, atol=0)
    base.save_pretrained(tmp_path / "base")
    with pytest.warns(MPOBertWarning, match="predictions.bias") as caught:
        again = type(model).from_pretrained(tmp_path / "base")
    assert "sop_classifier.classifier.weight" in str(caught[0].message)
    torch.testing.assert_close(logits(again.albert), logits(base), rtol=0, atol=0)


def test_new_heads_are_named(tmp_path):
    torch.manual_seed(3)
    model = mp.from_albert(tiny_albert(), 5, adapter_rank=2)
    model.save_pretrained(tmp_path)
    with pytest.warns(
        MPOBertWarning, match="4 tensors .* albert.pooler.weight, albert.pooler.bias"
    ):
        task = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert 0.01 < float(task.albert.pooler.weight.detach().std()) < 0.03
    assert torch.isfinite(logits(task)).all()
    pooled = mp.from_albert(tiny_pretraining(), 5, adapter_rank=2)
    pooled.albert.pooler.adapter_up.data.normal_()
    pooled.save_pretrained(tmp_path / "pooled")
    masked = AutoModelForMaskedLM.from_pretrained(tmp_path / "pooled")
    masked.save_pretrained(tmp_path / "masked")
    with pytest.warns(MPOBertWarning, match="albert.pooler.adapter_up"):
        task = AutoModelForSequenceClassification.from_pretrained(tmp_path / "masked")
    assert not task.albert.pooler.adapter_up.any()
    assert task.albert.pooler.adapter_down.any()


def test_conversion_on_loading(tmp_path):
    plain = tiny_bert()
    plain.save_pretrained(tmp_path / "plain")
    config = mp.MPOConfig(sharing="groups:2", fit="mean", adapter_rank=1)
    loaded = BertForMaskedLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    expected = mp.convert(plain, config)
    torch.testing.assert_close(logits(loaded), logits(expected))
    assert loaded.config.quantization_config.plan is not None
    loaded.save_pretrained(tmp_path / "mpo")
    assert torch.equal(logits(BertForMaskedLM.from_pretrained(tmp_path / "mpo")), logits(loaded))


SCRIPT = """
import sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
folder = sys.argv[1]
try:
    AutoModelForMaskedLM.from_pretrained(folder)
except RuntimeError as error:
    print("refused:", error)
import mpobert_plugin
model = AutoModelForMaskedLM.from_pretrained(folder)
mpobert_plugin.assert_shared(model)
given = load_file(folder + "/expected/x.safetensors")
with torch.no_grad():
    print("equal:", torch.equal(model(given["ids"]).logits, given["logits"]))
"""


def test_a_new_process_loads_the_same_and_without_the_plugin_it_is_refused(tmp_path):
    model = ffn_shared()
    model.save_pretrained(tmp_path)
    (tmp_path / "expected").mkdir()
    save_file({"ids": ids(), "logits": logits(model)}, tmp_path / "expected" / "x.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.set_num_threads(1)\n" + SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert "equal: True" in done.stdout, done.stderr
    assert "refused:" in done.stdout
    assert "Unknown quantization type, got mpo" in done.stderr
    assert "bert.mpo.ffn_in.central" in done.stderr


def clones(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("route", ["copy", "assign", "meta", "from_pretrained"])
def test_m03_every_way_of_loading_keeps_the_sharing(route, tmp_path):
    source = mp.convert(tiny_bert(), sharing="all", fit="mean")
    if route == "from_pretrained":
        source.save_pretrained(tmp_path)
        target = BertForMaskedLM.from_pretrained(tmp_path, device_map=None)
    else:
        target = mp.convert(tiny_bert(), sharing="all", fit="first")
        if route == "meta":
            buffers = {name: tensor.clone() for name, tensor in target.named_buffers()}
            target = target.to("meta")
        if route == "copy":
            target.load_state_dict(clones(source))
        else:
            mp.load_state_dict(target, clones(source), assign=True)
        if route == "meta":
            for name, tensor in buffers.items():
                parent, _, leaf = name.rpartition(".")
                setattr(target.get_submodule(parent), leaf, tensor)
    assert torch.equal(logits(target), logits(source))
    mp.assert_shared(target)
    assert mp.account(target).unique == mp.account(source).unique
    optimizer = torch.optim.AdamW(target.parameters())
    seen = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(seen) == len(set(seen)) == len(list(source.parameters()))
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == (
        mp.account(source).unique
    )


@pytest.mark.parametrize("assign", [False, True])
def test_m03_small_bank(assign):
    spec = BankSpec("query", 16, 16, (2, 8), (2, 8), (1, 4, 4), (0,) * 4, (0, 1, 2, 3))
    bank = mp.MPOBank(spec, device="meta" if assign else None)
    state = {name: torch.ones(tensor.shape) for name, tensor in bank.tensors().items()}
    bank.load_state_dict(state, assign=assign)
    optimizer = torch.optim.SGD(bank.parameters(), lr=0.1)
    sizes = [p.numel() for group in optimizer.param_groups for p in group["params"]]
    assert sorted(sizes) == [64, 1024]


def edit_config(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"]["plan"])
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plan: plan.update(n_layers=3), "layer map"),
        (lambda plan: plan.update(family="albert"), "must be for bert with 4 layers"),
        (lambda plan: plan["banks"][0].update(role="nothing"), "must be among"),
        (lambda plan: plan["norms"][0].update(role="nothing"), "must name parts of the model"),
        (lambda plan: plan["banks"][0].update(rows=16), "must be 64 x 32 for"),
        (lambda plan: plan["banks"][0].update(central="0*1000000000"), "layer map"),
        (lambda plan: plan["banks"][0].update(bond_dims="1 90000 90000 16 4 1"), "at most 4"),
    ],
)
def test_plans_of_strangers_are_checked_against_the_files(change, text, tmp_path):
    ffn_shared().save_pretrained(tmp_path)
    edit_config(tmp_path, change)
    with pytest.raises(ValueError, match=text):
        AutoModelForMaskedLM.from_pretrained(tmp_path)


def test_a_configuration_without_its_plan_is_refused(tmp_path):
    ffn_shared().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]["plan"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="must hold the plan"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has lost its quantization_config"):
        BertForMaskedLM.from_pretrained(tmp_path, quantization_config=mp.MPOConfig())
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_registering_twice_does_nothing():
    from mpobert_plugin.persistence import register

    register()
