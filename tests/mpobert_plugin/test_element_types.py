"""Tensors of several element types in one bank: the right result, or a message that says which."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError, ElementTypeError
from tests.mpobert_plugin.models import ids, logits, stir_adapters, tiny_bert

HALF, DOUBLE = torch.float16, torch.float64


@pytest.fixture(scope="module")
def converted():
    options = {"sharing": "all", "fit": "mean", "n": 3, "adapter_rank": 2, "share_norm": "all"}
    model = mp.convert(tiny_bert(num_hidden_layers=2), **options)
    stir_adapters(model)
    return model


@pytest.fixture
def model(converted):
    return copy.deepcopy(converted)


def cast(model, name, dtype, bank="query"):
    tensor = model.bert.mpo[bank].get_parameter(name)
    tensor.data = tensor.data.to(dtype)
    return model


def rounded(model, name):
    """Return a model all in float32 whose tensor has lost the same digits."""
    twin = cast(copy.deepcopy(model), name, HALF)
    return cast(twin, name, torch.float32)


@pytest.mark.parametrize("name", ["auxiliary_0", "auxiliary_2", "adapter_up"])
@pytest.mark.parametrize("training", [False, True])
def test_cores_of_other_types_are_joined_in_float32(model, name, training):
    twin = rounded(model, name).train(training)
    cast(model, name, HALF).train(training)
    torch.testing.assert_close(logits(model), logits(twin), rtol=0, atol=1e-6)
    assert logits(mp.merge(model.eval())).dtype == torch.float32


@pytest.mark.parametrize("name", ["central", "auxiliary_0", "bias"])
def test_banks_of_several_types_are_saved_and_come_back_in_one(model, name, tmp_path):
    twin = rounded(model, name)
    cast(model, name, HALF).save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(logits(loaded), logits(twin), rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", ["batched", "per_layer", "cached"])
@pytest.mark.parametrize("name", ["central", "bias"])
def test_a_matrix_or_a_bias_of_another_type_is_named(model, name, strategy):
    mp.set_strategy(model, strategy, when="evaluation")
    logits(model)
    cast(model, name, HALF)
    text = rf"bank 'query' must be in float32 as the input.*got .*float16 in {name}.*model\.float"
    with pytest.raises(ElementTypeError, match=text):
        logits(model)
    with pytest.raises(ElementTypeError, match=text):
        model.train()(ids())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert logits(model).dtype == torch.bfloat16
    assert torch.isfinite(logits(model.float())).all()


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_norm_of_two_types_is_named(model, name):
    cast(model, name, HALF, bank="output_norm")
    text = r"bank 'output_norm' must be in float32 .*got .*float16 in " + name
    with pytest.raises(ElementTypeError, match=text):
        logits(model)


@pytest.mark.parametrize("name", ["central", "auxiliary_0"])
def test_float64_beside_others_is_named(model, name):
    logits(model)
    cast(model, name, DOUBLE)
    text = rf"bank 'query' must all be in float64 or none of them, got .*float64 in {name}"
    with pytest.raises(ElementTypeError, match=text):
        logits(model)
    with pytest.raises(ElementTypeError, match=text):
        model.train()(ids())


def test_banks_in_another_type_than_the_model_are_named(model):
    model.bert.mpo["query"].half()
    with pytest.raises(ElementTypeError, match=r"must be in float32 .* got float16 in \w+, "):
        logits(model)


@pytest.mark.parametrize("bank", ["query", None])
def test_autocast_leaves_float64_as_it_is(model, bank):
    (model.bert.mpo[bank] if bank else model.bert.mpo).double()
    text = r"bank '\w+' must be in float32 under torch\.autocast, got float64 in .*leave autocast"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mode in (False, True):
            with pytest.raises(ElementTypeError, match=text):
                model.train(mode)(ids())
        assert logits(model.eval().float()).dtype == torch.bfloat16
        assert logits(model.double()).dtype == DOUBLE


def test_float64_in_a_part_is_not_told_to_use_autocast(model):
    cast(model, "central", DOUBLE)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ElementTypeError, match=r"model\.float\(\) does\.$"),
    ):
        logits(model)
    model.float().bert.mpo["query"].double()
    with pytest.raises(ElementTypeError, match=r"float32 as the input.*model\.float\(\) does\.$"):
        logits(model)


def test_a_norm_in_half_precision_under_autocast(model):
    model.half()
    text = (
        r"bank 'output_norm' must be in float32 under torch\.autocast, got float16 in weight, bias"
    )
    reader = model.bert.encoder.layer[0].output.LayerNorm
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ElementTypeError, match=r"in float32 under torch\.autocast"):
            logits(model)
        with pytest.raises(ElementTypeError, match=text):
            reader(torch.ones(2, 32))


@pytest.mark.parametrize("place", ["attention.self.query", "output.LayerNorm"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, DOUBLE])
def test_inputs_that_no_layer_takes(model, place, autocast, dtype):
    reader = model.bert.encoder.layer[0].get_submodule(place)
    text = r"the input of the layers of bank '\w+' must be in float32, got \w+\. .*torch\.float32\)"
    if dtype == DOUBLE and not autocast:
        text = r"bank '\w+' must be in float64 as the input of its layers, got"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        with pytest.raises(ElementTypeError, match=text) as told:
            reader(torch.ones(2, 32).to(dtype))
        assert "last axis" not in str(told.value)
        with pytest.raises(ElementTypeError, match=text) as told:
            reader(torch.ones(2, 3).to(dtype))
    assert str(told.value).endswith("Its last axis must have 32 entries, got (2, 3).")


@pytest.mark.parametrize("autocast", [False, True])
def test_a_width_is_told_where_types_would_do(model, autocast):
    norm = model.bert.encoder.layer[0].output.LayerNorm
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        pytest.raises(RuntimeError, match=r"normalized_shape=\[32\]"),
    ):
        norm(torch.ones(2, 3, dtype=HALF))


def test_other_failures_of_a_layer_are_left_as_they_are(model):
    reader = model.bert.encoder.layer[0].attention.self.query
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        reader(torch.ones(2, 3))


def test_merging_refuses_weight_and_bias_of_two_types(model):
    cast(model, "bias", HALF)
    text = re.escape("query must have one element type, got torch.float32 and torch.float16. Give")
    for merge in (mp.merge, mp.merge_adapters):
        with pytest.raises(ConversionError, match=text + r".*Nothing was changed\."):
            merge(model)
    merged = mp.merge(model, dtype=torch.float32)
    torch.testing.assert_close(logits(merged), logits(model.float()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, DOUBLE])
def test_a_whole_model_in_another_type(model, dtype, tmp_path):
    before = logits(model)
    model.to(dtype).save_pretrained(tmp_path)
    close = {"rtol": 0, "atol": 1e-6 if dtype == DOUBLE else 0.02}
    torch.testing.assert_close(logits(model), before.to(dtype), **close)
    assert torch.equal(logits(AutoModelForMaskedLM.from_pretrained(tmp_path)), logits(model))
    torch.testing.assert_close(logits(mp.merge(model)), before.to(dtype), **close)
    model.train()(ids())[0].float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.bert.mpo.parameters()} == {dtype}
