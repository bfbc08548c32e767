"""Conversion: what it keeps, what it changes, and that a failed one changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertModel,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ResNetConfig,
    ResNetModel,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import (
    ConfigError,
    ConversionError,
    ModelTypeError,
    SharingError,
    TargetError,
)
from tests.mpobert_plugin.models import (
    SIZES,
    assert_untouched,
    ids,
    logits,
    snapshot,
    tiny_albert,
    tiny_bert,
    tiny_pretraining,
)


@pytest.mark.parametrize("make", [tiny_bert, tiny_albert, tiny_pretraining])
@pytest.mark.parametrize("gauge", ["symmetric", "central", "left", "right", "identity"])
def test_without_options_nothing_changes(make, gauge):
    model = make().double()
    before = logits(model)
    mp.convert(model, gauge=gauge)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)
    assert all(max(spec.errors) < 1e-12 for spec in model.config.quantization_config.plan.banks)


def test_albert_keeps_its_one_layer_unless_sharing_is_given():
    model = mp.convert(tiny_albert())
    assert model.config.num_hidden_groups == 1
    assert model.albert.mpo["query"].central.shape[0] == 1
    assert model.albert.mpo["query"].auxiliary_0.shape[0] == 1
    expanded = mp.convert(tiny_albert(), sharing="all")
    assert expanded.config.num_hidden_groups == expanded.config.num_hidden_layers == 4
    assert expanded.albert.mpo["query"].central.shape[0] == 1
    assert expanded.albert.mpo["query"].auxiliary_0.shape[0] == 4
    torch.testing.assert_close(logits(expanded), logits(tiny_albert()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "inner", "layers"), [(2, 1, 4), (2, 1, 5), (3, 1, 7), (1, 2, 3), (2, 3, 5)]
)
def test_albert_with_groups_expands_to_the_same_function(groups, inner, layers):
    sizes = {"num_hidden_groups": groups, "inner_group_num": inner, "num_hidden_layers": layers}
    plain = tiny_albert(**sizes).double()
    model = mp.convert(copy.deepcopy(plain), sharing="none")
    assert model.config.num_hidden_layers == layers * inner
    assert model.config.inner_group_num == 1
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=1e-12)
    kept = mp.convert(copy.deepcopy(plain))
    torch.testing.assert_close(logits(kept), logits(plain), rtol=0, atol=1e-12)
    assert model(ids(), output_hidden_states=True).hidden_states[-1].shape == (2, 7, 32)


def test_expansion_after_a_recorded_forward():
    plain = tiny_albert().double()
    count = len(plain(ids(), output_hidden_states=True).hidden_states)
    model = mp.convert(plain, sharing="all")
    assert len(model(ids(), output_hidden_states=True).hidden_states) == count


@pytest.mark.parametrize("head", [BertModel, BertForSequenceClassification])
def test_bert_heads(head):
    model = tiny_bert(head).double()
    before = logits(model)
    mp.convert(model, adapter_rank=2)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", [AlbertModel, AlbertForSequenceClassification, AlbertForMaskedLM])
def test_albert_heads_and_adapters_beside(head):
    model = tiny_albert(head).double()
    before = logits(model)
    mp.convert(model, sharing="all", adapter_rank=2)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)
    roles = [spec.role for spec in model.config.quantization_config.plan.beside]
    pooled = head is not AlbertForMaskedLM
    assert roles == ["embedding_projection"] + ["pooler"] * pooled


def test_layers_that_differ_need_a_fit():
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(SharingError) as caught:
        mp.convert(model, sharing="all")
    text = str(caught.value)
    assert "bert.encoder.layer.0.intermediate.dense.weight" in text
    assert "bert.encoder.layer.1.intermediate.dense.weight" in text
    assert "fit='mean' or fit='first'" in text
    assert_untouched(model, before)
    with pytest.raises(SharingError, match="share_bias must join equal tensors"):
        mp.convert(model, share_bias=True)
    with pytest.raises(SharingError, match="share_norm must join equal tensors"):
        mp.convert(model, share_norm=True)
    assert_untouched(model, before)


@pytest.mark.parametrize("fit", ["mean", "first"])
def test_fits(fit):
    plain = tiny_bert().double()
    model = mp.convert(copy.deepcopy(plain), sharing="groups:2", fit=fit)
    originals = [layer.attention.self.query.weight.detach() for layer in plain.bert.encoder.layer]
    expected = torch.stack(originals[:2]).mean(0) if fit == "mean" else originals[0]
    for layer in range(2):
        query = model.bert.encoder.layer[layer].attention.self.query
        torch.testing.assert_close(query.weight, expected, rtol=0, atol=1e-12)
        error = float((originals[layer] - expected).norm() / originals[layer].norm())
        stored = model.config.quantization_config.plan.bank("query").errors[layer]
        assert stored == pytest.approx(error, rel=1e-4, abs=1e-12)
    bias = model.bert.encoder.layer[1].attention.self.query.bias
    assert torch.equal(bias, plain.bert.encoder.layer[1].attention.self.query.bias)


def test_equal_layers_share_without_a_fit():
    plain = tiny_bert().double()
    first = plain.bert.encoder.layer[0].state_dict()
    for layer in plain.bert.encoder.layer:
        layer.load_state_dict(first)
    before = logits(plain)
    model = mp.convert(plain, sharing="all", share_bias=True, share_norm=True)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-12)
    assert model.bert.mpo["query"].bias.shape == (1, 32)
    assert model.bert.mpo["attention_norm"].weight.shape == (1, 32)


def test_max_bond_and_rtol_give_equal_shapes_and_certified_errors():
    plain = tiny_bert().double()
    for options in ({"max_bond": 5}, {"rtol": 0.3}):
        model = mp.convert(copy.deepcopy(plain), **options)
        certificates = mp.certificates(model)
        assert len(certificates) == 24
        for name, certificate in certificates.items():
            exact = plain.get_submodule(name).weight
            rebuilt = model.get_submodule(name).weight
            error = float(((exact - rebuilt).norm() / exact.norm()).detach())
            assert certificate.relative_error == pytest.approx(error, rel=1e-6)
            assert error > 0.01
            if "rtol" in options:
                assert error <= 0.3
    spec = mp.convert(copy.deepcopy(plain), max_bond=5).config.quantization_config.plan.banks[0]
    assert spec.bond_dims == (1, 4, 5, 5, 4, 1)


def test_shapes_depend_on_the_specification_only():
    plain = tiny_bert()
    with torch.no_grad():
        plain.bert.encoder.layer[2].attention.self.query.weight.zero_()
    model = mp.convert(plain, max_bond=6)
    assert model.config.quantization_config.plan.banks[0].bond_dims == (1, 4, 6, 6, 4, 1)
    assert not model.bert.encoder.layer[2].attention.self.query.weight.any()


def test_targets_leave_the_rest_plain():
    model = mp.convert(tiny_bert(), targets=["ffn_in", "output.dense"])
    assert set(model.bert.mpo) == {"ffn_in", "ffn_out", "attention_norm", "output_norm"}
    layer = model.bert.encoder.layer[0]
    assert type(layer.attention.self.query) is nn.Linear
    assert isinstance(layer.output.dense, mp.MPOLinear)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"targets": ["query", "FAKE_MODULE"]}, TargetError, "'FAKE_MODULE'"),
        ({"targets": ["querry"]}, TargetError, "Did you mean 'query'"),
        (
            {"adapter_rank": 2, "adapter_targets": ["query", "poler"]},
            TargetError,
            "1 unknown of 2. 'poler'",
        ),
        (
            {"adapter_rank": 2, "adapter_targets": ["query"], "targets": ["key"]},
            TargetError,
            "'query'",
        ),
        ({"shapes": {"querry": ((4, 8), (4, 8))}}, ConfigError, "Did you mean 'query'"),
        ({"shapes": {31: (4, 8)}}, ConfigError, "sizes of the model as keys ([32, 64]), got 31"),
        ({"sharing": "groups:9"}, SharingError, "1 to 4 groups"),
        ({"share_bias": "some"}, SharingError, "share_bias must be 'none'"),
    ],
)
def test_wrong_names_change_nothing(options, error, text):
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(error) as caught:
        mp.convert(model, **options)
    assert text in str(caught.value)
    assert_untouched(model, before)


@pytest.mark.parametrize(
    ("shapes", "name", "text"),
    [
        (((4, 8), (4, 8)), "bert.encoder.layer.0.intermediate.dense", "64"),
        ({"query": ((4, 8), (2, 4, 4))}, "bert.encoder.layer.0.attention.self.query", "2 row"),
        ({"key": ((4, 7), (4, 8))}, "bert.encoder.layer.0.attention.self.key", "28"),
        ({"key": ((4, 0), (4, 8))}, "bert.encoder.layer.0.attention.self.key", "0"),
        ({"key": ((4, -8), (4, 8))}, "bert.encoder.layer.0.attention.self.key", "-8"),
    ],
)
def test_t14_shapes_that_fit_only_some_layers(shapes, name, text):
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(ConversionError) as caught:
        mp.convert(model, shapes=shapes)
    assert name in str(caught.value)
    assert text in str(caught.value)
    assert_untouched(model, before)


@pytest.mark.parametrize(
    ("path", "role_tensor", "value"),
    [
        ("encoder.layer.1.intermediate.dense", "weight", float("nan")),
        ("encoder.layer.3.attention.self.value", "weight", float("inf")),
        ("encoder.layer.2.output.dense", "bias", float("-inf")),
        ("encoder.layer.0.output.LayerNorm", "weight", float("nan")),
    ],
)
def test_t04_non_finite_weights_are_named_and_counted(path, role_tensor, value):
    model = tiny_bert()
    tensor = getattr(model.bert.get_submodule(path), role_tensor)
    index = (1, 2) if tensor.dim() == 2 else (1,)
    with torch.no_grad():
        tensor[index] = value
    before = snapshot(model)
    with pytest.raises(ConversionError) as caught:
        mp.convert(model)
    expected = f"bert.{path}.{role_tensor} must be finite, got 1 non-finite entries, the first at"
    assert expected in str(caught.value)
    assert f"index {index}" in str(caught.value)
    assert_untouched(model, before)


def test_converting_twice_is_refused():
    model = mp.convert(tiny_bert())
    before = logits(model)
    with pytest.raises(ConversionError, match="converted already"):
        mp.convert(model)
    assert torch.equal(logits(model), before)
    with pytest.raises(ConversionError, match="converted already"):
        mp.from_albert(mp.convert(tiny_albert()), 3)


def test_models_that_cannot_be_converted():
    with pytest.raises(ModelTypeError, match="must be a model of transformers, got Linear"):
        mp.convert(nn.Linear(2, 2))
    wrapped = nn.DataParallel(tiny_bert())
    with pytest.raises(
        ModelTypeError, match=r"got DataParallel. Pass the model inside the wrapper"
    ):
        mp.convert(wrapped)
    sizes = {"hidden_sizes": [4], "depths": [1], "embedding_size": 4}
    with pytest.raises(ModelTypeError, match=r"albert, bert, .* got ResNetModel of type 'resnet'"):
        mp.convert(ResNetModel(ResNetConfig(**sizes)))
    with pytest.raises(ConversionError, match="must have layers named like"):
        mp.convert(tiny_bert(num_hidden_layers=0))
    with torch.device("meta"):
        meta = BertModel(BertConfig(**SIZES))
    with pytest.raises(ConversionError, match="got a tensor on the meta device"):
        mp.convert(meta)
    with pytest.raises(ConfigError, match="config must be an MPOConfig, got str"):
        mp.convert(tiny_bert(), "all")
    with pytest.raises(ConversionError, match="must be converted, got a plain BertForMaskedLM"):
        mp.describe(tiny_bert())


def test_layers_of_other_libraries_are_refused():
    class LowRank(nn.Linear):
        pass

    model = tiny_bert()
    model.bert.encoder.layer[1].output.dense = LowRank(64, 32)
    with pytest.raises(ConversionError, match=r"bert.encoder.layer.1.output.dense must be a plain"):
        mp.convert(model)
    pruned = tiny_bert()
    pruned.bert.encoder.layer[2].intermediate.dense = nn.Linear(32, 48)
    with pytest.raises(ConversionError, match=r"layer.2.intermediate.dense must have the size 64"):
        mp.convert(pruned)


def test_frozen_parameters_stay_frozen():
    model = tiny_bert()
    for parameter in model.bert.encoder.parameters():
        parameter.requires_grad_(False)
    mp.convert(model, adapter_rank=2)
    for name, parameter in model.bert.mpo.named_parameters():
        assert parameter.requires_grad == ("adapter" in name), name
    mixed = tiny_bert()
    for parameter in mixed.bert.encoder.layer[0].parameters():
        parameter.requires_grad_(False)
    with pytest.raises(
        ConversionError, match=r"layer\.0\.attention\.self\.query\.weight have False"
    ):
        mp.convert(mixed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_and_mode_are_kept(dtype):
    model = mp.convert(tiny_bert().to(dtype).train(), adapter_rank=1)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert all(module.training for module in model.modules())
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_other_models_of_the_same_configuration_are_left_alone():
    config = BertConfig(**SIZES)
    one, other = BertModel(config), BertModel(config)
    mp.convert(one)
    assert not hasattr(config, "quantization_config")
    assert other.config is config
    assert one.encoder.layer[0].attention.self.config is one.config
    albert = tiny_albert()
    twin = AlbertForMaskedLM(albert.config)
    mp.convert(albert, sharing="all")
    assert twin.config.num_hidden_groups == 1
    albert.set_attn_implementation("eager")
    groups = albert.albert.encoder.albert_layer_groups
    assert groups[3].albert_layers[0].attention.config._attn_implementation == "eager"
