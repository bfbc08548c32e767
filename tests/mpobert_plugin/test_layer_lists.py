"""Models with several lists of layers, as an encoder and a decoder: patterns reach them all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    CLIPConfig,
    CLIPModel,
    CLIPTextModel,
    CLIPVisionModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import (
    CheckpointError,
    ConfigError,
    ConversionError,
    SharingError,
    TargetError,
)
from mpobert_plugin.families import Family, derived_family, register_family
from mpobert_plugin.families import family as registry
from mpobert_plugin.sharing import decode, decode_some
from tests.mpobert_plugin.models import assert_untouched, checkpoint_layers, ids, snapshot

T5 = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "dropout_rate": 0.0}
BART = {
    "vocab_size": 99,
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 24,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
    "max_position_embeddings": 40,
}
TARGETS = {"t5": ["*.SelfAttention.*", "*.DenseReluDense.*"], "bart": ["*"], "marian": ["*.fc?"]}


def t5(**sizes: Any) -> Any:
    depths = {"num_layers": 2, "num_decoder_layers": 2, "decoder_start_token_id": 0}
    return made(T5ForConditionalGeneration, T5Config(**{**T5, **depths, **sizes}))


def bart() -> Any:
    return made(BartForConditionalGeneration, BartConfig(**BART, **depths()))


def marian() -> Any:
    return made(MarianMTModel, MarianConfig(**BART, **depths()))


def depths() -> dict[str, int]:
    return {"encoder_layers": 3, "decoder_layers": 2}


def made(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return kind(config).eval()


MAKERS = {"t5": t5, "bart": bart, "marian": marian}


def output(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids(), decoder_input_ids=ids()).logits


def words(model: Any) -> torch.Tensor:
    return model.generate(ids(), max_new_tokens=4, do_sample=False)


def bank(model: Any, role: str) -> Any:
    return model.base_model.mpo[role]


@pytest.mark.parametrize("name", MAKERS)
def test_all_lists_are_converted_saved_loaded_and_merged(name: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    before, said = output(model), words(model)
    mp.convert(model, targets=TARGETS[name], n=3)
    readers = [n for n, module in model.named_modules() if isinstance(module, mp.MPOLinear)]
    assert {n.removeprefix("model.").split(".")[0] for n in readers} == {"encoder", "decoder"}
    torch.testing.assert_close(output(model), before, rtol=0, atol=5e-6)
    assert torch.equal(words(model), said)
    mp.assert_shared(model)
    assert "plain matrices" not in mp.describe(model)
    assert len(mp.report(model).matrices) == len(readers)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(output(loaded), output(model))
    assert loaded.base_model.mpo.plan == model.base_model.mpo.plan
    assert loaded.base_model.mpo.family == model.base_model.mpo.family
    for other in (loaded, copy.deepcopy(model)):
        plain = mp.merge(other)
        assert not any(isinstance(module, mp.MPOLinear) for module in plain.modules())
        torch.testing.assert_close(output(plain), before, rtol=0, atol=5e-6)


def test_positions_that_only_a_head_leaves_out_are_computed(tmp_path: Path) -> None:
    model = mp.convert(marian(), targets=["*.fc?"], n=2)
    model.save_pretrained(tmp_path / "head")
    base = AutoModel.from_pretrained(tmp_path / "head")
    base.save_pretrained(tmp_path / "base")
    for name, loaded in (("head", base), ("base", MarianModel.from_pretrained(tmp_path / "base"))):
        assert type(loaded) is MarianModel, name
        with torch.no_grad():
            states = loaded(input_ids=ids(), decoder_input_ids=ids()).last_hidden_state
            assert torch.equal(model.lm_head(states) + model.final_logits_bias, output(model)), name


def test_layers_share_inside_their_list(tmp_path: Path) -> None:
    # transformers generates with such a model no text, converted or not.
    model = t5(num_decoder_layers=3)
    mp.convert(model, targets=["*.wo", "*.q"], n=2, sharing="all", fit="mean")
    roles = list(model.mpo)
    assert roles == [
        "encoder__block__layer__0__SelfAttention__q_0",
        "encoder__block__layer__1__DenseReluDense__wo_0",
        "decoder__block__layer__0__SelfAttention__q_2",
        "decoder__block__layer__1__EncDecAttention__q_2",
        "decoder__block__layer__2__DenseReluDense__wo_2",
    ]
    assert bank(model, roles[0]).spec.layer_numbers == (0, 1)
    assert bank(model, roles[2]).spec.layer_numbers == (2, 3, 4)
    assert all(len(bank(model, role).central) == 1 for role in roles)
    groups = mp.sharing_groups(model)
    assert all(len({name.split(".")[0] for name in g[0]}) == 1 for g in groups.values() if g)
    model.save_pretrained(tmp_path)
    again = T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(output(again), output(model))


def test_policies_count_the_layers_of_a_list_from_zero() -> None:
    model = mp.convert(
        t5(),
        targets=["*.wo"],
        n=2,
        sharing=lambda layer, role: layer if role.startswith("encoder") else 0,
        fit="mean",
    )
    encoder, decoder = (bank(model, role).spec for role in model.mpo)
    assert (encoder.central, decoder.central) == ((0, 1), (0, 0))
    kept = model.config.quantization_config.sharing
    assert kept == {encoder.role: [[0], [1]], decoder.role: [[0, 1]]}
    again = mp.convert(t5(), targets=["*.wo"], n=2, sharing=kept, fit="mean")
    assert again.mpo.plan == model.mpo.plan
    with pytest.raises(SharingError, match=r"must name layers 0 to 1, got layer 2"):
        mp.convert(t5(), targets=["*.wo"], sharing=[[0, 1, 2]], fit="mean")
    # A path names the roles of all lists that have it.
    both = mp.convert(bart(), targets=["fc1"], sharing={"fc1": "all"}, n=2, fit="mean")
    assert [len(bank(both, role).central) for role in both.model.mpo] == [1, 1]


def test_one_list_alone() -> None:
    model = bart()
    before = output(model)
    mp.convert(model, targets=["model.encoder.layers.*.fc?"], n=2)
    assert list(model.model.mpo) == ["encoder__layers__fc1_0", "encoder__layers__fc2_0"]
    assert isinstance(model.model.decoder.layers[0].fc1, nn.Linear)
    torch.testing.assert_close(output(model), before, rtol=0, atol=5e-6)
    assert "plain matrices" not in mp.describe(model)


def test_a_pattern_takes_all_layers_of_a_list_or_none() -> None:
    model = bart()
    before = snapshot(model)
    text = r"selects 'fc1' in 2 of 3 layers and not in model\.encoder\.layers\.2\. Put"
    with pytest.raises(TargetError, match=text):
        mp.convert(model, targets=["model.encoder.layers.[01].fc1"])
    with pytest.raises(TargetError, match=r"'q_proj': .*'self_attn\.q_proj' or 'encoder_attn\.q"):
        mp.convert(model, targets=["q_proj"])
    assert_untouched(model, before)
    del model.model.encoder.layers[1].fc1
    text = r"model\.encoder\.layers\.1 must have a module at 'fc1' as every layer must"
    with pytest.raises(ConversionError, match=text):
        mp.convert(model, targets=["fc1"])
    mp.convert(model, targets=["model.decoder.layers.*.fc1"], n=2)


@pytest.mark.parametrize("calibrated", [False, True])
def test_budgets_and_calibration(calibrated: bool) -> None:
    batches = [{"input_ids": ids(), "decoder_input_ids": ids()}] if calibrated else None
    model = mp.convert(bart(), targets=["*"], n=2, ratio=0.7, calibration=batches)
    assert 0.69 < mp.account(model).ratio <= 0.7
    found = mp.report(model)
    assert {m.name.split(".")[1] for m in found.matrices} == {"encoder", "decoder"}
    assert all((m.output_error is not None) == calibrated for m in found.matrices)
    mp.assert_shared(model)
    assert torch.isfinite(output(model)).all()


def test_the_metric_of_a_matrix_is_that_of_its_own_list() -> None:
    batches = [{"input_ids": ids(), "decoder_input_ids": ids()}]
    plain = bart()
    found = mp.input_metrics(plain, batches, ["encoder__layers__fc1", "decoder__layers__fc1"])
    assert [len(metrics) for metrics in found.values()] == [3, 2]
    metrics = found["decoder__layers__fc1"]
    weights = [layer.fc1.weight.detach().double() for layer in plain.model.decoder.layers]
    model = mp.convert(bart(), targets=["model.decoder.layers.*.fc1"], max_bond=2, n=2,
                       calibration=batches)  # fmt: skip
    spec = next(iter(model.model.mpo.values())).spec
    for slot, weight in enumerate(weights):
        h = metrics[slot]
        off = weight - model.model.decoder.layers[slot].fc1.weight.detach().double()
        error = float((torch.trace(off @ h @ off.T) / torch.trace(weight @ h @ weight.T)).sqrt())
        assert spec.output_errors[slot] == pytest.approx(error, abs=1e-4)


def test_adapters_training_and_checkpointing() -> None:
    model = mp.convert(
        bart(), targets=["*"], n=2, adapter_rank=2, adapter_targets=["fc1", "*.decoder.*.fc2"]
    )
    ranks = {role: bank.spec.adapter_rank for role, bank in model.model.mpo.items()}
    assert {role for role, rank in ranks.items() if rank} == {
        "encoder__layers__fc1_0",
        "decoder__layers__fc1_3",
        "decoder__layers__fc2_3",
    }
    checkpoint_layers(model, reentrant=False).train()
    model(input_ids=ids(), labels=ids()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.model.mpo.parameters())


def test_lora_of_peft_reaches_the_lists_that_are_named() -> None:
    pytest.importorskip("peft", reason="PEFT is not installed")
    model = mp.convert(bart(), targets=["*"], n=2)
    config = mp.peft.lora_config(
        model, rank=1, targets=["encoder__layers__fc1", "encoder_attn.q_proj"]
    )
    import peft

    wrapped = peft.get_peft_model(model, config)
    found = {n.split(".lora_A")[0] for n, _ in wrapped.named_parameters() if "lora_A" in n}
    assert found == {
        *(f"base_model.model.model.encoder.layers.{k}.fc1" for k in range(3)),
        *(f"base_model.model.model.decoder.layers.{k}.encoder_attn.q_proj" for k in range(2)),
    }


def clip() -> Any:
    part = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    text = {**part, "num_hidden_layers": 2, "vocab_size": 99}
    vision = {**part, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4}
    return made(CLIPModel, CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def test_towers_of_pictures_and_words(tmp_path: Path) -> None:
    model = mp.convert(clip(), targets=["*.mlp.*"], n=2)
    assert {spec.n_layers for spec in model.mpo.plan.banks} == {2, 3}
    assert model.mpo.plan.lists in ((2, 3), (3, 2))
    model.save_pretrained(tmp_path)
    # A tower alone has a configuration that does not name this library.
    for tower in (CLIPVisionModel, CLIPTextModel):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            tower.from_pretrained(tmp_path)
    # A folder of an earlier version has one marker.
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    marked = [name for name, tensor in tensors.items() if not tensor.numel()]
    assert sorted(name.split(".")[0] for name in marked) == ["text_model", "vision_model"]
    del tensors[marked[1]]
    save_file(tensors, path, {"format": "pt"})
    loaded = CLIPModel.from_pretrained(tmp_path)
    state = loaded.state_dict()
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert not [n for n, t in mp.merge(loaded).state_dict().items() if not t.numel()]


def test_a_list_that_stays_plain_has_no_marker() -> None:
    model = mp.convert(bart(), targets=["model.decoder.layers.*.fc?"], n=2)
    marked = [name for name, tensor in model.state_dict().items() if not tensor.numel()]
    assert marked == ["model.decoder.layers.0.fc1.weight"]


def test_families_of_several_lists() -> None:
    family = derived_family(bart().model, "bart")
    assert family.name == "bart:encoder.layers+decoder.layers"
    assert family.matrices["decoder__layers__fc1"] == "fc1"
    one = derived_family(bart().model, "bart", "encoder.layers")
    assert (one.name, one.layers_of_role) == ("bart:encoder.layers", {})
    own: Any = {"name": "own", "model_types": ("own",), "layer_pattern": r"layers\.\d+",
                "matrices": {"ffn_in": "fc1"}, "norms": {}}  # fmt: skip
    with pytest.raises(ConfigError, match=r"must name its matrices and norms, got 'ffn'\. Did you"):
        Family(**own, layers_of_role={"ffn": "x"})
    with pytest.raises(ConfigError, match=r"layers_of_role\['ffn_in'\] .* expression, got '\('"):
        Family(**own, layers_of_role={"ffn_in": "("})


def test_lists_that_are_no_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    register_family(
        Family(
            name="own",
            model_types=("bart",),
            layer_pattern=r"(encoder|decoder)\.layers\.\d+",
            matrices={"even": "fc1", "odd": "fc2"},
            norms={},
            layers_of_role={"even": r"\w+\.layers\.[024]", "odd": r"\w+\.layers\.[135]"},
        )
    )
    with pytest.raises(ConversionError, match=r"share the 5 layers out .* \[0, 2, 3\], \[1, 4\]"):
        mp.make_plan(bart(), mp.MPOConfig(targets=["odd"]))


CHANGES = {
    "lists": ("lists", "2 3", r"must have the lists of layers \(3, 2\), got \(2, 3\)"),
    "sum": ("lists", "3 3", r"lists of the stored plan must add up to its 5 layers, got \(3, 3\)"),
    "none": ("lists", None, r"must have the lists of layers \(3, 2\), got \(\)"),
    "family": ("family", "bart:decoder.layers", r"for bart:decoder\.layers with 2 layers, got"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused(change: str, tmp_path: Path) -> None:
    mp.convert(bart(), targets=["fc1"], n=2).save_pretrained(tmp_path)
    field, value, text = CHANGES[change]
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["plan"][field] = value
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=text):
        BartForConditionalGeneration.from_pretrained(tmp_path)


PARTS = [(BartForCausalLM, bart, "*.fc1"), (T5EncoderModel, t5, "*.wo")]


@pytest.mark.parametrize(("part", "make", "target"), PARTS)
def test_a_part_is_told_whose_folder_it_is(
    part: Any, make: Any, target: str, tmp_path: Path
) -> None:
    whole = mp.convert(make(), targets=[target], n=2)
    name = type(whole).__name__
    whole.save_pretrained(tmp_path / "whole")
    text = rf"The folder is that of a {name}, .* {name}\.from_pretrained .* mpobert_plugin\.merge"
    with pytest.raises(CheckpointError, match=text):
        part.from_pretrained(tmp_path / "whole")
    mp.merge(whole).save_pretrained(tmp_path / "plain")
    part.from_pretrained(tmp_path / "plain")


def test_a_map_of_more_layers_than_a_bank_has_is_told() -> None:
    with pytest.raises(SharingError, match=r"give 2 layers one number .* '0\*3', .* gives 3\."):
        decode("0*3", 2)
    with pytest.raises(SharingError, match=r"'0-1 1-2', whose '1-2' gives 4\."):
        decode_some("0-1 1-2", 3)


def test_a_bank_for_layers_of_another_list_is_refused(tmp_path: Path) -> None:
    mp.convert(bart(), targets=["fc1"], n=2).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["plan"]["banks"][1]["layers"] = "2-3"
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"read by layers that have .*, \[3, 4\], got \[2\]"):
        BartForConditionalGeneration.from_pretrained(tmp_path)
