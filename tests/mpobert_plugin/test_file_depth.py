"""Folders that ask for more layers than they have are refused before any layer is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AlbertForMaskedLM,
    BartConfig,
    BartModel,
    BertForMaskedLM,
    BertForSequenceClassification,
    OPTConfig,
    OPTModel,
    PreTrainedModel,
)
from transformers.quantizers.base import HfQuantizer

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, ConfigError
from mpobert_plugin.families import BERT, Family, family_for
from mpobert_plugin.persistence import MPOQuantizer
from mpobert_plugin.stored_depth import check_depth
from tests.mpobert_plugin.models import logits, tiny_albert, tiny_bert
from tests.mpobert_plugin.zoo import APART, language_model

MANY = 20_000


class TooSoon(Exception):
    """A module was built of a model that a file does not hold."""


def refuse_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be built: the refusal must come before, however fast layers are."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise TooSoon

    monkeypatch.setattr(nn.Module, "__init__", refuse)


def saved(folder: Path, model: PreTrainedModel, **options: Any) -> type[PreTrainedModel]:
    mp.convert(model, n=2, **options).save_pretrained(folder)
    return type(model)


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config.update(fields)
    file.write_text(json.dumps(config), encoding="utf-8")


NAMES = {"gpt2": "n_layer", "distilbert": "n_layers"}


@pytest.mark.parametrize("model_type", APART)
def test_other_layers_than_the_plan_are_refused_before_they_are_built(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = saved(tmp_path, language_model(model_type, num_hidden_layers=2))
    name = NAMES.get(model_type, "num_hidden_layers")
    assert json.loads((tmp_path / "config.json").read_text())[name] == 2
    edit(tmp_path, **{name: MANY})
    refuse_modules(monkeypatch)
    family = family_for(model_type).name
    text = f"must be for {family} with {MANY} layers, got {family} with 2. Its config.json"
    with pytest.raises(CheckpointError, match=text):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["num_hidden_groups", "inner_group_num"])
@pytest.mark.parametrize("sharing", [None, "all"])
def test_groups_of_an_albert_are_refused_before_they_are_built(
    name: str, sharing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = saved(tmp_path, tiny_albert(), sharing=sharing)
    n_layers = 4 if sharing else 1
    edit(tmp_path, **{name: MANY})
    refuse_modules(monkeypatch)
    found = MANY if name == "num_hidden_groups" else MANY * n_layers
    with pytest.raises(CheckpointError, match=f"with {found} layers, got albert with {n_layers}"):
        kind.from_pretrained(tmp_path)


def test_steps_of_an_albert_with_a_layer_for_each(tmp_path: Path) -> None:
    saved(tmp_path, tiny_albert(), sharing="all")
    edit(tmp_path, num_hidden_layers=MANY)
    with pytest.raises(CheckpointError, match=f"num_hidden_layers .* must be 4, .* got {MANY}"):
        AlbertForMaskedLM.from_pretrained(tmp_path)


def test_fewer_layers_a_wrong_family_and_a_lost_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, tiny_bert())
    refuse_modules(monkeypatch)
    edit(tmp_path, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match="for bert with 3 layers, got bert with 4"):
        BertForMaskedLM.from_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    other = {**stored, "plan": {**stored["plan"], "family": "gpt2"}}
    edit(tmp_path, num_hidden_layers=MANY, quantization_config=other)
    with pytest.raises(CheckpointError, match=f"for bert with {MANY} layers, got gpt2 with 4"):
        BertForMaskedLM.from_pretrained(tmp_path)
    del stored["plan"]
    edit(tmp_path, quantization_config=stored)
    with pytest.raises(CheckpointError, match="must hold the plan of its conversion, got none"):
        BertForMaskedLM.from_pretrained(tmp_path)


SIZES = {"vocab_size": 99, "dropout": 0.0}


def opt() -> PreTrainedModel:
    sizes = {"hidden_size": 16, "ffn_dim": 32, "word_embed_proj_dim": 16, "num_attention_heads": 2}
    return OPTModel(OPTConfig(**SIZES, **sizes, num_hidden_layers=2)).eval()


def bart() -> PreTrainedModel:
    each = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
    sizes = {f"{part}_{k}": n for part in ("encoder", "decoder") for k, n in each.items()}
    return BartModel(BartConfig(**SIZES, **sizes, d_model=16)).eval()


@pytest.mark.parametrize(
    ("make", "target", "name"),
    [
        (opt, "fc1", "num_hidden_layers"),
        (bart, "decoder.layers.*.fc1", "decoder_layers"),
        (bart, "decoder.layers.*.fc1", "encoder_layers"),
    ],
)
def test_types_that_nobody_described_have_a_bound(
    make: Any, target: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = saved(tmp_path, make(), targets=[target])
    kind.from_pretrained(tmp_path)
    edit(tmp_path, **{name: MANY})
    refuse_modules(monkeypatch)
    with pytest.raises(CheckpointError, match=f"^{name} .* must be at most 10000, .* got {MANY}"):
        kind.from_pretrained(tmp_path)


def test_a_plain_folder_that_is_converted_on_loading_has_the_same_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert().save_pretrained(tmp_path)
    edit(tmp_path, num_hidden_layers=MANY)
    refuse_modules(monkeypatch)
    with pytest.raises(CheckpointError, match=f"num_hidden_layers .* at most 10000, .* {MANY}"):
        BertForMaskedLM.from_pretrained(tmp_path, quantization_config=mp.MPOConfig())


def test_counts_of_parts_and_of_stages_are_seen_and_lists_of_numbers_are_not() -> None:
    config = OPTConfig(mlp_only_layers=list(range(500)), depths=[2, 3])
    check_depth(config, None)
    config.depths = [6000, 6000]
    with pytest.raises(CheckpointError, match=r"depths of config\.json .* got 12000"):
        check_depth(config, None)
    config.depths = "many"
    config.part = OPTConfig(num_hidden_layers=MANY)
    with pytest.raises(CheckpointError, match=r"part\.num_hidden_layers of config\.json"):
        check_depth(config, None)


def test_transformers_shows_the_configuration_before_it_builds() -> None:
    # One of these in each of its versions; without, all layers would be built first.
    hooks = ("update_attn_implementation", "update_tp_plan")
    assert any(hasattr(HfQuantizer, name) for name in hooks)
    assert MPOQuantizer.update_tp_plan is MPOQuantizer.update_attn_implementation


def test_families_say_their_counts_as_texts() -> None:
    own = {"name": "own", "model_types": ("own",), "matrices": {"ffn_in": "fc1"}, "norms": {}}
    fields: dict[str, Any] = {**own, "layer_pattern": r"layers\.\d+"}
    assert Family(**fields).layer_counts == ()
    assert BERT.layer_counts == ("num_hidden_layers",)
    wrong: Any
    for wrong in ("num_layers", (3,)):
        with pytest.raises(ConfigError, match="layer_counts of family 'own' must be a tuple"):
            Family(**fields, layer_counts=wrong)


def test_more_labels_than_the_file_has(tmp_path: Path) -> None:
    kind = saved(tmp_path, tiny_bert(BertForSequenceClassification, num_labels=3))
    edit(tmp_path, id2label={str(number): "x" for number in range(1000)}, label2id={"x": 0})
    with pytest.raises(CheckpointError, match=r"classifier\.weight \(stored \(3, 32\), .*\(1000, "):
        kind.from_pretrained(tmp_path)


def test_what_is_whole_is_loaded(tmp_path: Path) -> None:
    for number, make in enumerate((tiny_bert, tiny_albert)):
        model = make()
        kind = saved(tmp_path / str(number), model)
        assert torch.equal(logits(kind.from_pretrained(tmp_path / str(number))), logits(model))
