"""Models of types that nobody described, targets by patterns, layers that differ, own families."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BartConfig,
    BartModel,
    CLIPConfig,
    CLIPModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3Model,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, ConfigError, ConversionError, TargetError
from mpobert_plugin.families import Family, derived_family, family_for, register_family
from mpobert_plugin.families import family as registry
from tests.mpobert_plugin.models import assert_untouched, ids, snapshot, tiny_bert

SIZES = {
    "vocab_size": 99,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}
T5 = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
BART = {
    "vocab_size": 99,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "dropout": 0.0,
}


def opt(**sizes):
    own = {**SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0, **sizes}
    own.pop("intermediate_size")
    return made(OPTForCausalLM, OPTConfig(**own))


def made(kind, config):
    torch.manual_seed(0)
    return kind(config).eval()


UNKNOWN = {
    "opt": (opt, ["*.self_attn.*", "fc1", "fc2"]),
    "gpt-neox": (
        lambda: made(GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES)),
        ["*.attention.query_key_value", "*.mlp.*"],
    ),
    "modernbert": (
        lambda: made(ModernBertModel, ModernBertConfig(**SIZES, cls_token_id=1, sep_token_id=2)),
        ["*"],
    ),
    "phi3": (lambda: made(Phi3Model, Phi3Config(**SIZES)), ["*.qkv_proj", "*.mlp.*"]),
    "bart": (lambda: made(BartModel, BartConfig(**BART)), ["decoder.layers.*.fc?"]),
    "t5": (
        lambda: made(T5ForConditionalGeneration, T5Config(**T5, decoder_start_token_id=0)),
        ["*.SelfAttention.[qkvo]"],
    ),
}


def output_of(model):
    inputs = {"input_ids": ids()}
    if model.config.model_type == "t5":
        inputs["decoder_input_ids"] = ids()
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_model_of_an_unknown_type(name, tmp_path):
    make, targets = UNKNOWN[name]
    model = make()
    before = output_of(model)
    mp.convert(model, targets=targets)
    torch.testing.assert_close(output_of(model), before, rtol=0, atol=5e-6)
    mp.assert_shared(model)
    assert mp.account(model).by_kind["central"]
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(output_of(loaded), output_of(model))
    assert mp.account(loaded) == mp.account(model)
    assert loaded.base_model.mpo.family == model.base_model.mpo.family
    plain = mp.merge(loaded)
    torch.testing.assert_close(output_of(plain), before, rtol=0, atol=5e-6)


@pytest.mark.parametrize("sharing", ["all", "groups:2", "albert"])
def test_an_unknown_type_shares_adapts_and_trains(sharing):
    model = opt()
    mp.convert(
        model,
        n=3,
        targets=["*.self_attn.?_proj"],
        sharing=sharing,
        share_bias=True,
        fit="mean",
        adapter_rank=2,
        adapter_targets=["*.q_proj", "self_attn__v_proj"],
    )
    model.train()
    model(ids(), labels=ids()).loss.backward()
    bank = model.base_model.mpo["self_attn__q_proj"]
    assert bank.central.grad.abs().sum() > 0
    assert bank.spec.adapter_rank == 2
    assert model.base_model.mpo["self_attn__k_proj"].spec.adapter_rank == 0


def test_pictures_have_layers_too(tmp_path):
    model = made(ViTModel, ViTConfig(**VIT))
    pixels = torch.randn(1, 3, 8, 8)
    before = model(pixels)[0]
    mp.convert(model, targets=["*"], n=3)
    torch.testing.assert_close(model(pixels)[0], before, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModel.from_pretrained(tmp_path)(pixels)[0], model(pixels)[0])


def test_parts_of_a_model_keep_their_part_of_its_configuration():
    part = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    text = {**part, "vocab_size": 99, "num_attention_heads": 2}
    vision = {**part, "image_size": 8, "patch_size": 4, "num_attention_heads": 2}
    model = made(CLIPModel, CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    shared = model.config
    mp.convert(model, targets=["*.mlp.*"], n=2)
    assert model.config is not shared
    assert model.text_model.config is model.config.text_config
    assert shared.text_config is not model.config.text_config


# Names


def test_m09_names_that_do_not_exist():
    model = opt()
    before = snapshot(model)
    with pytest.raises(TargetError, match=r"opt:decoder.layers.*self_attn.k_proj.*'\*\.self_attn"):
        mp.convert(model)
    with pytest.raises(
        TargetError, match=r"'\*\.self_atn\.q_proj'.*Did you mean '\*\.self_attn\.q"
    ):
        mp.convert(model, targets=["*.self_atn.q_proj"])
    with pytest.raises(
        TargetError, match=r"\(self_attn__k.*1 unknown of 2. 'FAKE_MODULE' is close to none of them"
    ):
        mp.convert(model, targets=["fc1", "FAKE_MODULE"])
    with pytest.raises(TargetError, match=r"'q_proj': Did you mean 'self_attn.q_proj'\?"):
        mp.convert(model, targets=["q_proj"])
    with pytest.raises(TargetError, match=r"'\*\.layers\.0\.fc1', .* 1 of 3 layers .*layers\.1, "):
        mp.convert(model, targets=["*.layers.0.fc1"])
    with pytest.raises(TargetError, match="adapter_targets must select matrices"):
        mp.convert(model, targets=["fc1"], adapter_rank=1, adapter_targets=["*.nothing"])
    with pytest.raises(ConfigError, match="share_norm"):
        mp.convert(model, targets=["fc1"], share_norm=True)
    assert_untouched(model, before)


def test_patterns_work_for_known_families():
    model = mp.convert(tiny_bert(), targets=["bert.encoder.layer.*.attention.self.*", "ffn_in"])
    names = [name for name in model.bert.mpo if "norm" not in name]
    assert names == ["query", "key", "value", "ffn_in"]
    same = mp.make_plan(tiny_bert(), mp.MPOConfig(targets=["query", "key", "value", "ffn_in"]))
    assert [spec.role for spec in same.banks] == names


@pytest.mark.parametrize("layers", ["encoder.layers", "decoder.layers"])
def test_the_list_of_layers_can_be_chosen(layers, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    model = made(BartModel, BartConfig(**BART))
    assert derived_family(model, "bart").name == "bart:encoder.layers+decoder.layers"
    family = derived_family(model, "bart", layers)
    assert family_for_once(replace(family, needs_targets=False)).name == f"bart:{layers}"
    before = output_of(model)
    mp.convert(model, n=2)
    torch.testing.assert_close(output_of(model), before, rtol=0, atol=5e-6)
    assert isinstance(model.get_submodule(f"{layers}.1.fc1"), mp.MPOLinear)
    other = {"encoder.layers": "decoder", "decoder.layers": "encoder"}[layers]
    assert isinstance(model.get_submodule(f"{other}.layers.1.fc1"), nn.Linear)
    model.save_pretrained(tmp_path)
    # A derived family needs no registration to be loaded: its name says which list it is.
    monkeypatch.undo()
    assert torch.equal(output_of(BartModel.from_pretrained(tmp_path)), output_of(model))
    with pytest.raises(ConversionError, match=r"none at 'encoder\.layer'.*Did you mean 'encoder"):
        derived_family(model, "bart", "encoder.layer")


def family_for_once(family):
    register_family(family)
    return family_for("bart")


def test_a_family_of_ones_own_must_be_there_when_it_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    register_family(
        Family(
            name="opt",
            model_types=("opt",),
            layer_pattern=r"decoder\.layers\.\d+",
            matrices={"ffn_in": "fc1", "ffn_out": "fc2"},
            norms={"ffn_norm": "final_layer_norm"},
        )
    )
    model = mp.convert(opt(), n=3, share_norm=True, sharing="all", fit="mean")
    model.save_pretrained(tmp_path)
    assert torch.equal(output_of(AutoModelForCausalLM.from_pretrained(tmp_path)), output_of(model))
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=r"must be for opt:decoder\.layers .* got opt .*regist"
    ):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_stored_list_that_the_model_does_not_have(tmp_path):
    mp.convert(opt(), targets=["fc1"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["plan"]["family"] = "opt:decoder.blocks"
    path.write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"for opt:decoder\.layers .* got opt:decoder\.blocks"
    ):
        AutoModelForCausalLM.from_pretrained(tmp_path)


# Layers that differ


def wider(model):
    model.model.decoder.layers[1].fc1 = nn.Linear(16, 48)
    model.model.decoder.layers[1].fc2 = nn.Linear(48, 16)


def without(model):
    del model.model.decoder.layers[1].fc1
    model.model.decoder.layers[1].fc1 = nn.Identity()


def no_bias(model):
    model.model.decoder.layers[2].fc1 = nn.Linear(16, 32, bias=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (wider, r"layers\.1\.fc1 must have the size 32 x 16 of .*layers\.0\.fc1, got 48 x 16"),
        (without, r"layers\.1\.fc1 must be a plain linear layer, got Identity"),
        (no_bias, r"same bias, got True for .*layers\.0\.fc1 and False for .*layers\.2\.fc1"),
    ],
)
def test_layers_that_differ_in_a_role_are_named(change, text):
    model = opt()
    change(model)
    before = snapshot(model)
    with pytest.raises(ConversionError, match=text):
        mp.convert(model, targets=["self_attn__q_proj", "fc1"])
    assert_untouched(model, before)
    mp.convert(model, targets=["*.self_attn.*"], n=2)
    mp.assert_shared(model)


def test_a_module_that_a_layer_lacks_is_named():
    model = opt()
    layer = model.model.decoder.layers[1]
    layer.self_attn.q_proj = None
    with pytest.raises(
        ConversionError, match=r"layers\.1 must have a module at 'self_attn\.q_proj'"
    ):
        mp.convert(model, targets=["*.q_proj"])
    mp.convert(model, targets=["fc1"], n=2)


# Who shares what


def test_m41_sharing_groups_of_one_parameter_and_of_one_module():
    names = [f"bert.encoder.layer.{k}.intermediate.dense" for k in range(4)]
    for tie in (tie_parameters, tie_modules):
        model = tie(tiny_bert())
        mp.convert(model, targets=["ffn_in"])
        groups = mp.sharing_groups(model)
        assert groups["ffn_in.central"] == [names], tie.__name__
        assert groups["ffn_in.bias"] == [names], tie.__name__
        assert "shared by layers 0 to 3" in mp.describe(model)
        loose = {
            name for name, _ in model.named_parameters(remove_duplicate=False) if "mpo" in name
        }
        assert len(loose) == len({id(p) for n, p in model.named_parameters() if "mpo" in n})
        assert mp.sharing_groups(copy.deepcopy(model)) == groups


def tie_parameters(model):
    layers = [layer.intermediate.dense for layer in model.bert.encoder.layer]
    for layer in layers[1:]:
        layer.weight, layer.bias = layers[0].weight, layers[0].bias
    return model


def tie_modules(model):
    for layer in model.bert.encoder.layer[1:]:
        layer.intermediate.dense = model.bert.encoder.layer[0].intermediate.dense
    return model


def test_groups_follow_the_policy():
    model = mp.convert(tiny_bert(), sharing="groups:2", fit="mean", targets=["query"])
    groups = mp.sharing_groups(model)
    assert list(groups) == ["query.central"]
    layers = [
        [re.findall(r"layer\.(\d)", name)[0] for name in group] for group in groups["query.central"]
    ]
    assert layers == [["0", "1"], ["2", "3"]]
    with pytest.raises(ConversionError, match="must be converted"):
        mp.sharing_groups(tiny_bert())


# Families of one's own

OWN = {
    "name": "own",
    "model_types": ("own",),
    "layer_pattern": r"layers\.\d+",
    "matrices": {"ffn_in": "fc1"},
    "norms": {},
}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model_types": "own"}, r"model_types of family 'own' must be a tuple .* got 'own'"),
        ({"norm_kind": "rmsnorm"}, "norm_kind .* 'layer' or 'rms', got 'rmsnorm'"),
        ({"matrices": {}}, "must name at least one role"),
        ({"layer_pattern": "layers.("}, r"must be a regular expression, got 'layers\.\('"),
        ({"norms": {"ffn_in": "norm"}}, "each role once, got ffn_in twice"),
        ({"matrices": {"mlp.fc1": "mlp.fc1"}}, r"names without dots .* got 'mlp\.fc1'"),
        ({"matrices": {"values": "v"}}, "got 'values'"),
        ({"adapter_defaults": ("ffn_inn",)}, "got 'ffn_inn'. Did you mean 'ffn_in'"),
    ],
)
def test_descriptions_that_could_only_fail_later(fields, text):
    Family(**OWN)
    with pytest.raises(ConfigError, match=text):
        Family(**{**OWN, **fields})


def test_a_type_belongs_to_one_family(monkeypatch):
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    with pytest.raises(
        ConfigError, match="model_types must be new, got 'bert', which family 'bert'"
    ):
        register_family(Family(**{**OWN, "model_types": ("own", "bert")}))
    assert "own" not in registry._FAMILIES
    register_family(Family(**OWN))
    register_family(Family(**OWN))
    with pytest.raises(ConfigError, match="Did you mean 'own'"):
        family_for("owm")
