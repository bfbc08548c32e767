"""State dicts and folders that are incomplete, damaged or of another task."""

from __future__ import annotations

import copy
import json
import shutil
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertModel,
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


# Folders


def saved(folder: Path, **options: Any) -> PreTrainedModel:
    model = converted(**options)
    model.save_pretrained(folder)
    return model


def edit(folder: Path, change: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    change(config["quantization_config"])
    file.write_text(json.dumps(config), encoding="utf-8")


def bank(**fields: Any) -> Any:
    return lambda stored: stored["plan"]["banks"][0].update(fields)


def norm(**fields: Any) -> Any:
    return lambda stored: stored["plan"]["norms"][0].update(fields)


def plan(**fields: Any) -> Any:
    return lambda stored: stored["plan"].update(fields)


WHERE = "of bank 'query' of the stored plan"
DAMAGES = {
    "plan list": (lambda s: s.update(plan=[1]), r"plan of the MPO configuration .* got \[1\]"),
    "plan text": (lambda s: s.update(plan="x"), "plan of the MPO configuration .* got 'x'"),
    "plan number": (lambda s: s.update(plan=3), "plan of the MPO configuration .* got 3"),
    "option": (lambda s: s.update(foo=1), "config.json is damaged: .*'foo'"),
    "option value": (lambda s: s.update(n="x"), "config.json is damaged: n must be"),
    "gauge": (plan(gauge="zzz"), "gauge of the stored plan must be one of .* got 'zzz'"),
    "fit": (plan(fit=[1]), "fit of the stored plan must be a text"),
    "family": (plan(family=3), "family of the stored plan must be a text, got 3"),
    "stored_before": (plan(stored_before=0), "stored_before of the stored plan must be an integer"),
    "sources": (plan(sources=5), "sources of the stored plan must be a text, got 5"),
    "no sources": (plan(sources="0*4"), "must have no sources, since bert .* got '0\\*4'"),
    "layers": (plan(n_layers=3), "central of bank 'query' of the stored plan is damaged"),
    "many layers": (plan(n_layers=3 * 10**7), "at most 10000, got 30000000"),
    "too many layers": (plan(n_layers=10**30), "n_layers of the stored plan"),
    "central": (bank(central="0*3"), f"central {WHERE} is damaged"),
    "central gaps": (bank(central="1*4"), f"central {WHERE} is damaged"),
    "central words": (bank(central="x"), f"central {WHERE} is damaged"),
    "central digits": (bank(central="9" * 5000), f"central {WHERE} is damaged"),
    "central none": (bank(central=None), f"central {WHERE} must be a text"),
    "auxiliary": (bank(auxiliary="3-0"), f"auxiliary {WHERE} is damaged"),
    "bias": (bank(bias=""), f"bias {WHERE} is damaged"),
    "slices": (norm(slices="0-9"), "slices of norm 'attention_norm' of the stored plan is damaged"),
    "bonds": (bank(bond_dims="1 4 " + "9" * 40 + " 1"), f"bond_dims {WHERE} must be integers"),
    "long bonds": (bank(bond_dims="9" * 5000), f"bond_dims {WHERE} must be integers"),
    "alpha nan": (bank(adapter_alpha=float("nan")), f"adapter_alpha {WHERE} .* got nan"),
    "alpha negative": (bank(adapter_alpha=-5), f"adapter_alpha {WHERE} .* got -5"),
    "alpha zero": (bank(adapter_alpha=0), f"adapter_alpha {WHERE} .* above 0"),
    "alpha missing": (lambda s: s["plan"]["banks"][0].pop("adapter_alpha"), "adapter_alpha"),
    "rank": (bank(adapter_rank=10**20), f"adapter_rank {WHERE}"),
    "errors nan": (bank(errors=float("nan")), "errors of bank 'query' of the stored plan"),
    "errors negative": (bank(errors=[-1.0] * 4), "errors of bank 'query' .* finite numbers"),
    "junk": (bank(junk=1), "bank 'query' of the stored plan must have no other fields .*'junk'"),
    "norm junk": (norm(junk=1), "norm 'attention_norm' .*'junk'"),
    "eps nan": (norm(eps=float("nan")), "eps of norm 'attention_norm' .* got nan"),
    "eps negative": (norm(eps=-1.0), "eps of norm 'attention_norm' .* got -1.0"),
    "beside": (
        plan(beside=[{"role": "pooler", "rank": 2, "alpha": 1.0, "z": 1}]),
        "adapter 'pooler' .*'z'",
    ),
    "role": (bank(role=None), "role of an entry of banks of the stored plan must be a text"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    saved(path, sharing="all", fit="mean")
    return path


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_configuration_names_its_field(name: str, folder: Path, tmp_path: Path) -> None:
    change, text = DAMAGES[name]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=text):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_a_long_plan_costs_no_memory() -> None:
    fields: dict[str, Any] = {"family": "bert", "n_layers": 3 * 10**7, "banks": [], "norms": []}
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="n_layers"):
        mp.MPOConfig(plan={**fields, "beside": []})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model = converted()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        BertForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("length", [0, 5000])
def test_a_cut_file_is_named(length: int, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors must be a whole file"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_a_core_of_integers_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["bert.mpo.query.central"] = tensors["bert.mpo.query.central"].int()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"bert\.mpo\.query\.central .* got torch\.int32"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_files_of_torch_are_compared_as_well(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    loaded = BertForMaskedLM.from_pretrained(tmp_path).eval()
    plain = BertForMaskedLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits(loaded), logits(plain), rtol=0, atol=0)
    tensors["bert.mpo.query.auxiliary_0"] = tensors["bert.mpo.query.auxiliary_0"][..., :2].clone()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"another shape: bert\.mpo\.query\.auxiliary_0"):
        BertForMaskedLM.from_pretrained(tmp_path)
    torch.save({f"module.{n}": t for n, t in tensors.items()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"All names start with 'module\.'"):
        BertForMaskedLM.from_pretrained(tmp_path)


# What is told about a loaded model


def test_describe_tells_of_adapters_that_the_model_has(tmp_path: Path) -> None:
    base = converted(BertModel)
    assert "pooler: plain matrix with an adapter of rank 2" in mp.describe(base)
    base.save_pretrained(tmp_path)
    with pytest.warns(MPOBertWarning, match=r"cls\.predictions"):
        loaded = BertForMaskedLM.from_pretrained(tmp_path)
    assert "pooler" not in mp.describe(loaded)


class Holder(nn.Module):
    """A module of one's own around a converted base model."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(32, 3)


def test_account_sees_through_wrappers() -> None:
    for model in (tiny_albert(), converted(), mp.convert(tiny_albert(), n=3)):
        report = mp.account(model)
        assert mp.account(nn.DataParallel(model)) == report
        assert mp.account(torch.compile(model, backend="eager")) == report
    meta = copy.deepcopy(converted()).to("meta")
    assert mp.account(nn.DataParallel(meta)) == mp.account(meta)


def test_account_of_a_module_that_holds_a_model() -> None:
    base = mp.convert(tiny_albert(AlbertModel), n=3, adapter_rank=2)
    own, report = mp.account(base), mp.account(Holder(base))
    head = 32 * 3 + 3
    assert report.total == own.total + head
    assert report.dense == own.dense + head
    assert report.by_kind == {**own.by_kind, "head": head}
    twice = nn.ModuleDict({"model": base, "compiled": nn.Sequential(base)})
    assert mp.account(twice) == own
