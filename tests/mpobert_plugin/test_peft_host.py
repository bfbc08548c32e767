"""Adapters of PEFT that models of transformers take by their own methods, on converted models."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification
from transformers.core_model_loading import WeightRenaming

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError, SharingError, TargetError
from tests.mpobert_plugin.lora import classifier, trained
from tests.mpobert_plugin.models import ids, logits, tiny_bert

peft = pytest.importorskip("peft", reason="PEFT is not installed")
from mpobert_plugin.peft.layer import LoraMPOLinear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")


@pytest.fixture(autouse=True)
def _any_version(monkeypatch):
    # transformers asks for a version of PEFT that may be none of those that are tested.
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda **_: None)


@pytest.fixture(scope="module")
def converted():
    return classifier(n=3)


@pytest.fixture
def model(converted):
    return copy.deepcopy(converted)


def lora(*names, **options):
    return peft.LoraConfig(
        target_modules=list(names) or ["query", "value"],
        **{"r": 2, "init_lora_weights": False, **options},
    )


def adapters_of(model):
    return [module for module in model.modules() if isinstance(module, LoraMPOLinear)]


def test_adapters_are_added_switched_and_deleted(model):
    plain = logits(model)
    model.add_adapter(lora())
    assert len(adapters_of(model)) == 8
    assert all("lora_" in name for name in trained(model))
    first = logits(model)
    assert (first - plain).abs().max() > 1e-5
    model.add_adapter(lora("key"), "second")
    assert model.active_adapters() == ["second"]
    assert not torch.equal(logits(model), first)
    model.set_adapter("default")
    assert model.active_adapters() == ["default"]
    assert torch.equal(logits(model), first)
    model.disable_adapters()
    assert torch.equal(logits(model), plain)
    model.enable_adapters()
    assert torch.equal(logits(model), first)
    model.delete_adapter("second")
    assert torch.equal(logits(model), first)
    mp.assert_shared(model)
    model.train()(ids(), labels=torch.tensor([0, 1])).loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained(model)


def test_adapters_alone_are_saved_and_loaded(model, converted, tmp_path):
    model.add_adapter(lora(modules_to_save=["classifier"]))
    with torch.no_grad():
        model.classifier.modules_to_save["default"].weight.add_(1.0)
    model.save_pretrained(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    loaded = copy.deepcopy(converted)
    loaded.load_adapter(str(tmp_path))
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)
    again = mp.peft.load(copy.deepcopy(converted), tmp_path)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)


def test_folders_of_adapters_and_of_both_load_by_the_automatic_classes(model, tmp_path):
    base, apart = tmp_path / "base", tmp_path / "apart"
    model.save_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base)
    model.add_adapter(lora())
    model.save_pretrained(apart)
    # Its base model stands in its configuration.
    found = AutoModelForSequenceClassification.from_pretrained(apart)
    assert torch.equal(logits(found), logits(model))
    model.save_pretrained(base)
    both = AutoModelForSequenceClassification.from_pretrained(base)
    assert torch.equal(logits(both), logits(model))


def test_a_model_whose_adapters_are_deleted_is_saved_as_it_was(model, tmp_path):
    before = logits(model)
    model.add_adapter(lora("query", "pooler.dense", modules_to_save=["classifier"]))
    model.add_adapter(lora("value", modules_to_save=["classifier"]), "second")
    model.delete_adapter(["default", "second"])
    assert not any(type(module).__module__.startswith("peft") for module in model.modules())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), before)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (lora("querry"), TargetError, r"'querry': Did you mean 'query'"),
        (lora("mpo.query"), TargetError, r"target_modules must name modules of the model"),
        (lora(modules_to_save=["mpo"]), TargetError, r"modules_to_save must name modules of the"),
        (lora("query", use_dora=True), ConfigError, r"use_dora must be left out on converted"),
        (lora("query", "attention.output.LayerNorm"), ValueError, r"MPOLayerNorm.*not supported"),
        (peft.IA3Config(target_modules=["query"], feedforward_modules=[]), ValueError, "MPOLinear"),
        (3, TypeError, "adapter_config should be"),
    ],
)
def test_adapters_that_are_refused_leave_the_model_as_it_was(config, error, message, tmp_path):
    model = classifier(n=3, share_norm="all")
    before = logits(model)
    with pytest.raises(error, match=message):
        model.add_adapter(copy.deepcopy(config))
    assert not any(type(module).__module__.startswith("peft") for module in model.modules())
    model.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").is_file()
    model.add_adapter(lora("query"))
    adapted = logits(model)
    assert not torch.equal(adapted, before)
    with pytest.raises(error, match=message):
        model.add_adapter(copy.deepcopy(config), "second")
    assert list(model.peft_config) == ["default"]
    assert torch.equal(logits(model), adapted)


@pytest.mark.parametrize("name", ["qqqqqq", "lora_A", "base_layer", "classifier.original_module"])
def test_names_inside_adapters_are_no_targets(name, model):
    model.add_adapter(lora("query", "pooler.dense", modules_to_save=["classifier"]))
    with pytest.raises(TargetError, match="got 1 unknown of 1") as told:
        model.add_adapter(lora(name), "second")
    hint = str(told.value).partition(f"'{name}': ")[2]
    assert hint
    assert not any(inner in hint for inner in ("base_layer", "default", "lora_A", "original_mod"))
    model.add_adapter(lora("query", "key", modules_to_save=["classifier"]), "second")
    assert list(model.peft_config) == ["default", "second"]


def test_merging_what_transformers_has_put_there(model, tmp_path):
    without = logits(model)
    model.add_adapter(lora("query", "pooler.dense", modules_to_save=["classifier"]))
    with torch.no_grad():
        model.classifier.modules_to_save["default"].weight.add_(1.0)
    before = logits(model)
    with pytest.raises(ConversionError, match=r"Call mpobert_plugin\.peft\.merge .* add_adapter"):
        mp.merge(model)
    merged = mp.peft.merge(model)
    assert torch.equal(logits(model), before)
    torch.testing.assert_close(logits(merged), before, rtol=0, atol=1e-5)
    assert not any(type(module).__module__.startswith("peft") for module in merged.modules())
    merged.save_pretrained(tmp_path)
    plain = BertForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), before, rtol=0, atol=1e-5)
    model.disable_adapters()
    torch.testing.assert_close(logits(mp.peft.merge(model)), without, rtol=0, atol=1e-6)


def test_plain_models_get_their_adapters_as_ever(tmp_path):
    model = tiny_bert(BertForSequenceClassification, num_labels=2)
    model.add_adapter(lora(use_dora=True))
    with pytest.raises(ValueError, match=r"Target modules .* not found"):
        model.add_adapter(lora("querry"), "second")
    with pytest.raises(ConversionError, match=r"must be a plain linear layer, got peft\."):
        mp.convert(model)


def test_names_that_banks_have_too_mean_the_layers(model):
    wrapped = peft.get_peft_model(model, mp.peft.register(lora("query", "value"), model))
    assert len(wrapped.targeted_module_names) == len(adapters_of(model)) == 8
    with pytest.raises(SharingError, match=r"8 that loading|\d+ that loading has no place for"):
        model.save_pretrained("nowhere")


@pytest.fixture
def stored(converted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    adapted = copy.deepcopy(converted)
    adapted.add_adapter(lora())
    adapted.save_pretrained(folder)
    return str(folder)


def test_a_loaded_adapter_that_is_merged_leaves_the_names_of_tensors(model, stored, tmp_path):
    model.load_adapter(stored)
    merged = mp.peft.merge(model)
    merged.save_pretrained(tmp_path)
    plain = BertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(plain), logits(merged))


@pytest.mark.parametrize("first", [False, True])
def test_a_loaded_adapter_that_is_deleted_leaves_the_names_of_tensors(
    first, model, stored, tmp_path
):
    before = logits(model)
    if first:
        model.add_adapter(lora("key"), "first")
    model.load_adapter(stored)
    model.delete_adapter(["first", "default"] if first else "default")
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForSequenceClassification.from_pretrained(tmp_path)), before)


def test_the_names_that_a_file_had_survive_an_adapter(model, stored):
    kept = []
    model._weight_conversions = kept
    model.load_adapter(stored)
    assert model._weight_conversions is kept


def test_saving_refuses_names_under_which_loading_finds_nothing(model, stored, tmp_path):
    # As a plain model keeps it that got an adapter before its conversion, and lost it.
    model._weight_conversions = [WeightRenaming("base_model.model.", "")]
    text = r"must keep their names in saving.*'base_model\.model\.'.*del model\._weight_conversions"
    with pytest.raises(SharingError, match=text):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    del model._weight_conversions
    model.save_pretrained(tmp_path)
    assert torch.equal(
        logits(AutoModelForSequenceClassification.from_pretrained(tmp_path)), logits(model)
    )
