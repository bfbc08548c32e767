"""Every family through files: saved, sharded, another type, another process, damaged, placed."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, MPOBertWarning, PlacementError
from mpobert_plugin.locate import base_of, prefix_of
from tests.mpobert_plugin.models import stir_adapters
from tests.mpobert_plugin.zoo import APART, CAUSAL, language_model, outputs, tiny, tokens

ROOT = Path(__file__).parents[2]
FAMILIES = [*APART, "albert"]


def converted(model_type, **options):
    model = language_model(model_type, num_hidden_layers=3, **options)
    fit = None if model_type == "albert" else "first"
    mp.convert(model, n=3, sharing="all", fit=fit, adapter_rank=1)
    stir_adapters(model)
    return model


def auto_of(model_type):
    return AutoModelForCausalLM if model_type in CAUSAL else AutoModelForMaskedLM


def same(one, other):
    with torch.no_grad():
        pairs = zip(outputs(one), outputs(other), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m01_sharded_files_hold_each_tensor_once(model_type, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    stored = [tensor for file in files for tensor in load_file(file).values()]
    assert sum(tensor.numel() for tensor in stored) == mp.account(model).unique
    loaded = auto_of(model_type).from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert same(loaded, model)
    mp.assert_shared(loaded)
    with warnings.catch_warnings():
        # A model that predicts tokens has no pooler, and the base model says that it is new.
        warnings.simplefilter("ignore", MPOBertWarning)
        base = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = base_of(model)(tokens(model))[0]
        assert torch.equal(base(tokens(model))[0], expected)


# Both half types for one family of each kind, and one for the others.
STORED = [
    pytest.param(
        name, dtype,
        marks=[] if dtype == torch.bfloat16 or name in ("albert", "llama") else pytest.mark.slow,
    )
    for name in FAMILIES
    for dtype in (torch.float16, torch.bfloat16)
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "dtype"), STORED)
def test_m38_the_stored_type_comes_back_unless_another_is_named(model_type, dtype, tmp_path):
    model = converted(model_type).to(dtype)
    model.save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < 2 * mp.account(model).unique + 12_000
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype)[6:]
    loaded = auto_of(model_type).from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    # A cast takes the frequencies of rotary positions along, as with plain models; a file has none.
    loaded.save_pretrained(tmp_path / "again")
    assert same(auto_of(model_type).from_pretrained(tmp_path / "again"), loaded)
    assert model_type in CAUSAL or same(loaded, model)
    named = auto_of(model_type).from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in named.parameters()} == {torch.float32}


SCRIPT = """
import sys, torch
from pathlib import Path
from transformers import AutoModel
import mpobert_plugin as mp
for folder in sorted(Path(sys.argv[1]).iterdir()):
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        output = model(torch.arange(3, 10)[None])[0]
    mp.assert_shared(model)
    print(folder.name, mp.account(model).unique, float(output.double().sum()))
"""


# What a new process has to know is in the file of any family; all of them are loaded here too.
@pytest.mark.slow
def test_m01_a_new_process_loads_every_family(tmp_path):
    expected = []
    for model_type in sorted(FAMILIES):
        model = tiny(model_type, num_hidden_layers=2)
        mp.convert(model, n=2)
        model.save_pretrained(tmp_path / model_type)
        with torch.no_grad():
            total = float(model(torch.arange(3, 10)[None])[0].double().sum())
        expected.append(f"{model_type} {mp.account(model).unique} {total}")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = [line.split() for line in run.stdout.splitlines() if line.startswith(tuple(FAMILIES))]
    assert [line[:2] for line in lines] == [line.split()[:2] for line in expected]
    for line, wanted in zip(lines, expected, strict=True):
        assert float(line[2]) == pytest.approx(float(wanted.split()[2]), abs=1e-4)


# Vocabulary and tied heads


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_vocabulary_can_grow_and_shrink(model_type, tmp_path):
    model = converted(model_type)
    with torch.no_grad():
        before = model(tokens(model)).logits
    for size in (131, 99):
        model.resize_token_embeddings(size, mean_resizing=False)
        assert model.config.vocab_size == size
        assert model.get_output_embeddings().weight.shape[0] == size
        with torch.no_grad():
            logits = model(tokens(model)).logits
        assert logits.shape[-1] == size
        torch.testing.assert_close(logits[..., :99], before, rtol=0, atol=1e-6)
        folder = tmp_path / str(size)
        model.save_pretrained(folder)
        loaded = auto_of(model_type).from_pretrained(folder)
        assert loaded.get_input_embeddings().weight.shape[0] == size
        assert same(loaded, model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_heads_stay_tied_or_apart(model_type, tied, tmp_path):
    model = converted(model_type, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded = auto_of(model_type).from_pretrained(tmp_path)
    for one in (model, loaded):
        head, embedding = one.get_output_embeddings().weight, one.get_input_embeddings().weight
        assert (head is embedding) == tied
    assert mp.account(loaded) == mp.account(model)
    assert same(loaded, model)


# Wrong and damaged checkpoints


def damage_delete(stored, model):
    name = f"{prefix_of(model)}mpo.ffn_out.central"
    del stored[name]
    return name


def damage_shape(stored, model):
    name = f"{prefix_of(model)}mpo.ffn_in.central"
    stored[name] = stored[name][..., :1].contiguous()
    return name


def damage_norm(stored, model):
    name = next(name for name in stored if "_norm.weight" in name)
    del stored[name]
    return name


@pytest.mark.parametrize("damage", [damage_delete, damage_shape, damage_norm])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_m06_damaged_files_are_refused_by_name(model_type, damage, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    name = damage(stored, model)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=name):
        auto_of(model_type).from_pretrained(tmp_path)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m06_states_of_the_wrong_kind_are_refused_with_a_remedy(model_type):
    model, plain = converted(model_type), language_model(model_type, num_hidden_layers=3)
    state = model.state_dict()
    before = model.state_dict()
    with pytest.raises(CheckpointError, match=r"All names start with 'module\.'"):
        mp.load_state_dict(model, {f"module.{name}": t for name, t in state.items()})
    with pytest.raises(CheckpointError, match="This is an MPO checkpoint"):
        mp.load_state_dict(plain, state)
    with pytest.raises(CheckpointError, match="This is a plain checkpoint"):
        mp.load_state_dict(model, plain.state_dict())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    mp.load_state_dict(base_of(model), state)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m06_the_plain_class_refuses_a_folder_without_the_library(model_type, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_states_go_into_models_on_meta(model_type):
    model = converted(model_type)
    other = converted(model_type).to("meta")
    mp.load_state_dict(other, model.state_dict(), assign=True)
    assert not any(t.is_meta for t in (*other.parameters(), *other.buffers()))
    assert same(other, model)


# Devices


def split_map(model):
    bank = f"{prefix_of(model)}mpo.ffn_in"
    return bank, {"": "cpu", f"{bank}.central": "disk"}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m41_a_device_map_that_splits_a_bank_is_refused(model_type, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path)
    bank, places = split_map(model)
    with pytest.raises(PlacementError, match=rf"bank 'ffn_in' .*{bank}.central on disk"):
        auto_of(model_type).from_pretrained(
            tmp_path, device_map=places, offload_folder=tmp_path / "offload"
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", FAMILIES)
def test_m41_automatic_device_maps_keep_banks_whole(model_type, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path / "model")
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    loaded = auto_of(model_type).from_pretrained(
        tmp_path / "model",
        device_map="sequential",
        max_memory={"cpu": int(0.7 * size)},
        offload_folder=tmp_path / "offload",
    )
    places = set(loaded.hf_device_map.values())
    assert places == {"cpu", "disk"}
    start = f"{prefix_of(model)}mpo."
    assert all(
        len(name.removeprefix(start).split(".")) == 1
        for name in loaded.hf_device_map
        if name.startswith(start)
    )
    with torch.no_grad():
        torch.testing.assert_close(outputs(loaded)[0], outputs(model)[0], rtol=0, atol=1e-5)
