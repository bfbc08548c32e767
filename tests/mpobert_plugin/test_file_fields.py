"""Folders from strangers: sizes in config.json that no file holds take neither time nor memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    PretrainedConfig,
)

import mpobert_plugin as mp
from mpobert_plugin import unstored
from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.stored_fields import MOST, check_fields
from mpobert_plugin.unstored import MOST_COMPUTED, check_unstored
from tests.mpobert_plugin.models import logits, tiny_bert
from tests.mpobert_plugin.zoo import language_model

HUGE = 10**9
MPO = {"quantization_config": {"quant_method": "mpo"}}


class TooSoon(Exception):
    """A configuration was made of fields that no file holds."""


@pytest.fixture
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise TooSoon

    monkeypatch.setattr(PretrainedConfig, "from_dict", refuse)


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | fields
    file.write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("classifier")
    model = tiny_bert(BertForSequenceClassification, num_labels=3, num_hidden_layers=1)
    mp.convert(model, n=2).save_pretrained(folder)
    return folder


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.usefixtures("_no_configuration")
@pytest.mark.parametrize("labels", [{}, {"id2label": {"0": "a", "1": "b"}}, {"id2label": None}])
def test_labels_that_are_not_listed(labels: Any, classifier: Path, tmp_path: Path) -> None:
    folder = copied(classifier, tmp_path)
    edit(folder, num_labels=HUGE, **labels)
    text = r"^num_labels of config\.json must be at most 100,000, .* got 1,000,000,000\. Use the"
    for kind in (AutoConfig, AutoModelForSequenceClassification, BertForSequenceClassification):
        with pytest.raises(CheckpointError, match=text):
            kind.from_pretrained(folder)


@pytest.mark.usefixtures("_no_configuration")
def test_layers_whose_types_a_configuration_lists(tmp_path: Path) -> None:
    model = mp.convert(language_model("qwen2", num_hidden_layers=2), n=2)
    model.save_pretrained(tmp_path)
    edit(tmp_path, num_hidden_layers=HUGE, layer_types=None)
    with pytest.raises(CheckpointError, match=r"^num_hidden_layers of config\.json must be at "):
        type(model).from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"text_config": {"num_labels": HUGE}}, r"text_config\.num_labels"),
        ({"attention_types": [[["global", "local"], HUGE]]}, "attention_types"),
        ({"depths": [2, HUGE]}, "depths"),
        ({"num_labels": MOST + 1, "id2label": ["a", "b"]}, "num_labels"),
    ],
)
def test_fields_of_parts_and_in_lists(fields: Any, name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^{name} of config\.json must be"):
        check_fields({**fields, **MPO})
    # What is no folder of this library is the business of transformers.
    check_fields(fields)
    check_fields({**fields, "quantization_config": {"quant_method": "other"}})


WHOLE, MAP = "a whole number of at least 0", "an object that maps numbers to labels"


@pytest.mark.usefixtures("_no_configuration")
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *(("num_labels", value, WHOLE) for value in (2.5, "3", [3], None, True, -1)),
        *(("id2label", value, MAP) for value in (["a"], "x", 3, {"x": "a"}, {"-1": "a"})),
        *(("quantization_config", value, "an object of fields") for value in ([], "mpo", 3, True)),
        *(
            (name, -4, "at least 0")
            for name in ("hidden_size", "vocab_size", "num_attention_heads")
        ),
        *((name, -4, "at least 0") for name in ("type_vocab_size", "max_position_embeddings")),
    ],
)
def test_fields_of_a_kind_that_no_configuration_takes(
    name: str, value: Any, wanted: str, classifier: Path, tmp_path: Path
) -> None:
    folder = copied(classifier, tmp_path)
    edit(folder, **{name: value})
    text = rf"^{name} of config\.json must be {wanted}, got .+\. Use the config\.json that save_pre"
    for kind in (AutoConfig, AutoModelForSequenceClassification, BertForSequenceClassification):
        with pytest.raises(CheckpointError, match=text):
            kind.from_pretrained(folder)


def test_kinds_in_parts_and_in_other_folders() -> None:
    with pytest.raises(CheckpointError, match=r"^text_config\.num_labels .*, got '3'\."):
        check_fields({"text_config": {"num_labels": "3"}, **MPO})
    with pytest.raises(
        CheckpointError, match=r"^quantization_config\.quant_method .* a word, such"
    ):
        check_fields({"quantization_config": {"quant_method": ["mpo"]}})
    with pytest.raises(CheckpointError, match=r"got \[0, 1, .{,40}\]\."):
        check_fields({"num_labels": list(range(10**5)), **MPO})
    # Labels have any names, negative numbers that are no sizes any meaning.
    names = {"id2label": {"0": "num_labels", "1": "dim"}, "label2id": {"num_labels": -1, "dim": -1}}
    check_fields({**names, "max_relative_positions": -1, "vision_feature_layer": -2, **MPO})
    check_fields({"id2label": None, "head_dim": None, **MPO})
    check_fields({"num_labels": "3", "hidden_size": -4})
    check_fields({"num_labels": "3", "quantization_config": None})


def test_fields_that_pass(classifier: Path, tmp_path: Path) -> None:
    many = {str(number): "x" for number in range(MOST + 1)}
    check_fields({"num_labels": MOST + 1, "id2label": many, **MPO})
    check_fields({"vocab_size": HUGE, "max_position_embeddings": HUGE, "rope_theta": 1e9, **MPO})
    folder = copied(classifier, tmp_path)
    edit(folder, num_labels=3)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    again = AutoModelForSequenceClassification.from_pretrained(classifier)
    assert torch.equal(logits(loaded), logits(again))


def test_positions_that_no_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    sizes = {f"{part}_{k}": n for part in ("encoder", "decoder") for k, n in each.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = MarianConfig(vocab_size=9, d_model=8, max_position_embeddings=6, **sizes, **tokens)
    mp.convert(MarianMTModel(config), n=2, targets=["*.fc1"]).save_pretrained(tmp_path)
    MarianMTModel.from_pretrained(tmp_path)
    edit(tmp_path, max_position_embeddings=HUGE)
    place = "mpobert_plugin.persistence.MPOQuantizer._process_model_after_weight_loading"
    monkeypatch.setattr(place, lambda *_args, **_kwargs: pytest.fail("it was made"))
    text = rf"at most {MOST_COMPUTED:,} elements, got 16,000,000,000, \S+embed_positions\.weight of"
    with pytest.raises(CheckpointError, match=text):
        MarianMTModel.from_pretrained(tmp_path)


def test_buffers_that_no_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_bert(num_hidden_layers=1)
    mask = torch.empty(1000, dtype=torch.bool, device="meta")
    model.bert.register_buffer("mask", mask, persistent=False)
    check_unstored(model, {})
    monkeypatch.setattr(unstored, "MOST_BYTES", 1000)
    with pytest.raises(CheckpointError, match=r"at most 1,000 bytes, got \S+, bert\.\S+ of shape"):
        check_unstored(model, {})
    check_unstored(model, {"weight": (100, 32)})


def test_a_new_head_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mp.convert(tiny_bert(num_hidden_layers=1), n=2).save_pretrained(tmp_path)
    edit(tmp_path, num_labels=5000)
    monkeypatch.setattr(unstored, "MOST_BYTES", 1000)
    text = r"bytes, got \d+,\d+, classifier\.weight of shape \(5000, 32\) among them"
    with pytest.raises(CheckpointError, match=text):
        BertForSequenceClassification.from_pretrained(tmp_path)
