"""Options and models that nobody means: what is refused says what came and what to do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertModel

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError, SharingError
from tests.mpobert_plugin.models import (
    assert_untouched,
    ids,
    logits,
    snapshot,
    tiny_albert,
    tiny_bert,
)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"adapter_rank": 2, "adapter_alpha": 1e300}, ConfigError, "below 1e.30, got 1e.300"),
        ({"adapter_rank": 2, "adapter_alpha": 1e-300}, ConfigError, "above 1e-30 .* got 1e-300"),
        ({"adapter_rank": 2, "adapter_alpha": 10**400}, ConfigError, "alpha must be a number"),
        ({"rtol": 10**400}, ConfigError, "rtol must be a number above 0 and below 1"),
        ({"targets": [None]}, ConfigError, r"targets must list names, got \[None\]"),
        ({"targets": {"query": 3}}, ConfigError, "targets must list names, got {'query': 3}"),
        ({"targets": ()}, ConfigError, r"targets must list at least one name, got \(\)"),
        (
            {"sharing": lambda layer, role: torch.tensor(layer // 2)},
            SharingError,
            r"got tensor\(0\) for layer 0 of 'query', which equals no other key. Return a number",
        ),
        ({"sharing": lambda layer, role: math.nan}, SharingError, "returns keys to compare, got n"),
        ({"share_norm": lambda layer, role: math.nan}, SharingError, "share_norm must be a func"),
    ],
)
def test_options_of_no_use(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        mp.convert(model, **options)
    assert_untouched(model, before)


def test_adapters_too_large_for_their_type_are_refused() -> None:
    options: dict[str, Any] = {"n": 3, "max_bond": 2, "adapter_fit": "residual"}
    model = tiny_bert().half()
    before = snapshot(model)
    with pytest.raises(ConversionError, match=r"adapter of bert\S+ must fit into torch\.float16"):
        mp.convert(model, **options, adapter_rank=2, adapter_alpha=1e-15)
    assert_untouched(model, before)
    wide = mp.convert(tiny_bert(), **options, adapter_rank=2, adapter_alpha=1e-15)
    usual = mp.convert(tiny_bert(), **options, adapter_rank=2)
    torch.testing.assert_close(logits(wide), logits(usual), rtol=0, atol=1e-4)


def test_a_class_is_named_with_the_library_it_comes_from() -> None:
    class Linear(nn.Linear):
        """A layer that has the name of torch's and is another."""

    model = tiny_bert()
    model.bert.encoder.layer[2].output.dense = Linear(64, 32)
    text = r"layer\.2\.output\.dense must be a plain linear layer, got tests\S+Linear\. Convert"
    with pytest.raises(ConversionError, match=text):
        mp.convert(model)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (BertModel, "got the class BertModel. Make a model of it, or load one"),
        ("bert-base", "got str. Load it first, with a class of transformers and its from_pre"),
        (Path("folder"), "got PosixPath. Load it first"),
        (None, "must be a model of transformers, got NoneType.$"),
    ],
)
@pytest.mark.parametrize("function", [mp.convert, mp.describe, mp.merge, mp.report])
def test_what_is_no_model(function: Any, given: Any, text: str) -> None:
    with pytest.raises(ModelTypeError, match=text):
        function(given)


def test_lora_around_a_model() -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    wrapped = peft.get_peft_model(tiny_bert(), peft.LoraConfig(target_modules=["query"]))
    with pytest.raises(
        ModelTypeError, match=r"got PeftModel\. Convert the plain model and put LoRA on "
    ):
        mp.convert(wrapped)
    with pytest.raises(ConversionError, match=r"must be a plain linear layer, got peft\.\S+\.Lin"):
        mp.convert(wrapped.get_base_model())


def test_roles_of_metrics() -> None:
    assert list(mp.input_metrics(tiny_bert(), [ids()], "query")) == ["query"]
    roles: Any = 7
    with pytest.raises(ConfigError, match="roles must list names, got 7"):
        mp.input_metrics(tiny_bert(), [ids()], roles)


@pytest.mark.parametrize("enabled", ["False", 1, None])
def test_a_cache_is_on_or_off(enabled: Any) -> None:
    with pytest.raises(ConfigError, match="enabled must be True or False, got"):
        mp.set_cache(mp.convert(tiny_bert(), targets=["query"]), enabled)


def test_more_layers_than_a_saved_plan_may_name() -> None:
    albert = tiny_albert()
    before = snapshot(albert)
    with pytest.raises(ConversionError, match=r"model must have at most 10,000 layers.* 10,001"):
        mp.from_albert(albert, 10_001)
    assert_untouched(albert, before)


def test_calibration_without_a_matrix_to_weigh() -> None:
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(ConfigError, match=r"got targets without any: embedding\. Leave calibrati"):
        mp.convert(model, targets=["embedding"], calibration=[ids()])
    assert_untouched(model, before)
