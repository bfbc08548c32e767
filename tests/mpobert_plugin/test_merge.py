"""Merged models compute what converted ones do, and are plain in every respect."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AlbertModel,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GenerationConfig,
)

import mpobert_plugin as mp
from tests.mpobert_plugin.models import (
    checkpoint_layers,
    ids,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
    tiny_pretraining,
    twin_output,
)

CASES = {
    "bert": lambda: mp.convert(tiny_bert()),
    "bert cut": lambda: mp.convert(tiny_bert(), max_bond=3),
    "bert adapters": lambda: mp.convert(tiny_bert(), adapter_rank=2, adapter_alpha=3.0),
    "bert groups": lambda: mp.convert(
        tiny_bert(), sharing="groups:2", fit="mean", share_bias="all", adapter_rank=2
    ),
    "bert blocks": lambda: mp.convert(tiny_bert(), sharing=[[0, 3], [1, 2]], fit="first"),
    "bert padded": lambda: mp.convert(tiny_bert(hidden_size=44), n=3),
    "bert some roles": lambda: mp.convert(tiny_bert(), targets=["query", "ffn_out"]),
    "bert base": lambda: mp.convert(tiny_bert(BertModel), max_bond=3, adapter_rank=1),
    "albert": lambda: mp.convert(tiny_albert(), adapter_rank=2),
    "albert shared": lambda: mp.convert(tiny_albert(), sharing="albert"),
    "albert base": lambda: mp.convert(tiny_albert(AlbertModel), max_bond=3),
    "albert groups": lambda: mp.convert(tiny_albert(num_hidden_groups=2)),
    "deep": lambda: mp.from_albert(tiny_albert(), 6, adapter_rank=2),
    "shallow": lambda: mp.from_albert(tiny_pretraining(), 3, sharing="groups:3"),
}


def made(case, dtype=torch.float32):
    model = CASES[case]().to(dtype)
    stir_adapters(model)
    return model


def check_without_plugin(loads):
    """Load folders in one process that cannot import the plugin, and compare the outputs."""
    code = f"""
import sys
sys.modules["mpobert_plugin"] = None
import torch, transformers
for folder, cls in {loads!r}:
    kind = getattr(transformers, cls)
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    data = torch.load(folder + "/expected.pt", weights_only=True)
    with torch.no_grad():
        found = model.eval()(data["ids"])[0]
    torch.testing.assert_close(found, data["expected"], rtol=0, atol=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_a_merged_model_computes_the_same_and_trains_the_same(case):
    model = made(case, torch.float64)
    merged = mp.merge(model)
    for one in (model, merged):
        one.train()
        one(ids())[0].square().sum().backward()
    torch.testing.assert_close(model(ids())[0], merged(ids())[0], rtol=1e-10, atol=1e-10)
    theirs = dict(merged.named_parameters())
    for name, parameter in model.named_parameters():
        if ".mpo." not in f".{name}" and "adapter_" not in name and parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_the_plugin_is_left(case):
    model = made(case)
    merged = mp.merge(model)
    assert type(merged) is type(model)
    assert not any("mpobert" in type(module).__module__ for module in merged.modules())
    assert not hasattr(merged.config, "quantization_config")
    fresh = type(model)(copy.deepcopy(merged.config))
    assert {n: t.shape for n, t in merged.state_dict().items()} == {
        n: t.shape for n, t in fresh.state_dict().items()
    }
    base = merged.base_model
    assert not base._forward_pre_hooks
    assert not base._forward_hooks
    assert not base._forward_hooks_always_called
    assert not base._state_dict_hooks
    assert not base._load_state_dict_pre_hooks


def test_the_twin_by_another_way_agrees():
    model = made("deep")
    with torch.no_grad():
        expected = twin_output(model, input_ids=ids())[0]
    torch.testing.assert_close(logits(mp.merge(model)), expected, rtol=0, atol=1e-6)


def test_saved_ones_load_where_the_plugin_is_not_installed(tmp_path):
    loads = []
    for case, cls in [
        ("bert groups", "AutoModelForMaskedLM"),
        ("bert base", "BertModel"),
        ("deep", "AlbertForMaskedLM"),
        ("albert", "AutoModelForMaskedLM"),
    ]:
        folder = tmp_path / case
        merged = mp.merge(made(case))
        merged.save_pretrained(folder)
        assert "quantization_config" not in json.loads((folder / "config.json").read_text())
        torch.save({"ids": ids(), "expected": logits(merged)}, folder / "expected.pt")
        loads.append((str(folder), cls))
    check_without_plugin(loads)


def test_merged_after_loading_has_the_config_of_the_plain_model(tmp_path):
    plain = tiny_bert()
    plain.save_pretrained(tmp_path / "plain")
    mp.convert(plain).save_pretrained(tmp_path / "mpo")
    loaded = BertForMaskedLM.from_pretrained(tmp_path / "mpo")
    mp.merge(loaded).save_pretrained(tmp_path / "merged")
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "merged")
    )
    assert before == after


def test_an_albert_keeps_its_one_layer_and_a_deep_one_gets_groups():
    one = mp.merge(made("albert"))
    assert len(one.albert.encoder.albert_layer_groups) == 1
    assert one.config.num_hidden_layers == 4
    deep = mp.merge(mp.from_albert(tiny_albert(), 48))
    assert len(deep.albert.encoder.albert_layer_groups) == deep.config.num_hidden_groups == 48


def test_heads_stay_tied_and_layers_come_apart():
    merged = mp.merge(mp.convert(tiny_bert(), sharing="all", fit="mean"))
    assert merged.cls.predictions.decoder.weight is merged.bert.embeddings.word_embeddings.weight
    first, second = (layer.attention.self.query.weight for layer in merged.bert.encoder.layer[:2])
    assert first.data_ptr() != second.data_ptr()
    with torch.no_grad():
        first.zero_()
    assert second.abs().max() > 0


def test_the_source_stays_as_it_was():
    model = made("bert groups")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config, output = model.config.to_dict(), logits(model)
    merged = mp.merge(model, torch.bfloat16)
    with torch.no_grad():
        for parameter in merged.parameters():
            parameter.fill_(7.0)
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(logits(model), output, rtol=0, atol=0)
    mp.assert_shared(model)


def test_random_numbers_go_on_as_if_nothing_had_been_merged():
    model = made("bert")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    mp.merge(model)
    assert torch.equal(torch.rand(4), expected)


def test_training_mode_flags_generation_and_attention_are_kept():
    model = made("bert adapters")
    model.generation_config = GenerationConfig(max_length=33)
    model.set_attn_implementation("eager")
    model.train()
    model.bert.encoder.layer[1].attention.self.query.eval()
    bank = model.bert.mpo["key"]
    bank.requires_grad_(False)
    model.bert.mpo["output_norm"].requires_grad_(False)
    merged = mp.merge(model)
    assert merged.training
    assert merged.generation_config.max_length == 33
    assert merged.config._attn_implementation == "eager"
    layers = merged.bert.encoder.layer
    assert [layer.attention.self.query.training for layer in layers] == [True, False, True, True]
    own = layers[2]
    assert not own.attention.self.key.weight.requires_grad
    assert not own.attention.self.key.bias.requires_grad
    assert not own.output.LayerNorm.weight.requires_grad
    assert own.attention.self.value.weight.requires_grad
    bank.bias.requires_grad_(True)
    assert mp.merge(model).bert.encoder.layer[2].attention.self.key.bias.requires_grad


def test_what_the_user_put_into_the_model_is_kept():
    model = tiny_bert(BertForSequenceClassification)
    mp.convert(model, max_bond=4)
    model.classifier = nn.Sequential(nn.Linear(32, 5), nn.Tanh(), nn.Linear(5, 2))
    merged = mp.merge(model)
    assert isinstance(merged.classifier, nn.Sequential)
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-6)


def test_hooks_of_the_user_are_kept():
    model, seen = made("bert cut"), []
    layer = model.bert.encoder.layer[1].attention.self.query
    layer.register_forward_hook(lambda _module, _given, out: seen.append(out.shape))
    merged = mp.merge(model)
    logits(merged)
    assert seen == [(2, 7, 32)]
    logits(model)
    assert len(seen) == 2


def test_a_merged_model_can_be_converted_again():
    model = made("bert cut")
    again = mp.convert(mp.merge(model), max_bond=3)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_stay_checkpointed(reentrant):
    model = checkpoint_layers(made("bert"), reentrant).train()
    model(ids(), labels=ids()).loss.backward()
    merged = mp.merge(model)
    assert all(layer.gradient_checkpointing for layer in merged.bert.encoder.layer)
    assert not any("mpobert" in repr(vars(layer)) for layer in merged.bert.encoder.layer)
    merged(ids(), labels=ids()).loss.backward()
    plain = mp.merge(made("bert"))
    plain(ids(), labels=ids()).loss.backward()
    for ours, theirs in zip(merged.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float32, 6e-8), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)]
)
def test_the_report_says_what_rounding_changed(dtype, unit):
    model = made("bert adapters", torch.float64)
    merged, report = mp.merge_with_report(model, dtype)
    assert {p.dtype for p in merged.parameters()} == {dtype}
    assert report.dtype == str(dtype).removeprefix("torch.")
    assert len(report.errors) == 4 * 6
    assert report.adapters == 4 * 4
    assert 0.1 * unit < report.largest < unit
    exact = mp.merge(model)
    name = "bert.encoder.layer.2.attention.self.value"
    stored, right = (m.get_submodule(name).weight.detach().double() for m in (merged, exact))
    error = float(torch.linalg.vector_norm(stored - right) / torch.linalg.vector_norm(right))
    assert report.errors[name] == pytest.approx(error, rel=1e-6)
    assert report.stored_after == mp.account(merged).unique == mp.account(exact).unique
    assert report.stored_before == mp.account(model).unique


def test_the_report_as_text_and_as_json():
    _, report = mp.merge_with_report(made("albert"))
    lines = str(report).splitlines()
    assert lines[0] == "7 matrices merged into float32, 5 adapters added"
    assert lines[1].startswith("stored parameters 15,907 before, 12,035 after")
    assert lines[2].startswith("largest rounding error ")
    fields = json.loads(json.dumps(report.to_dict()))
    assert fields["matrices"] == 7
    assert fields["largest"] == report.largest == max(fields["errors"].values())
    assert (
        str(mp.MergeReport()).splitlines()[0] == "0 matrices merged into float32, 0 adapters added"
    )


def test_float64_stays_exact_and_half_is_rounded_once():
    model = made("bert adapters", torch.float64)
    assert mp.merge_with_report(model)[1].largest == 0.0
    half = made("bert adapters").half()
    merged = mp.merge(half)
    name = "bert.encoder.layer.0.attention.self.query"
    exact = mp.merge(half, torch.float64).get_submodule(name).weight
    assert torch.equal(merged.get_submodule(name).weight, exact.half())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system tells no memory")
def test_the_memory_is_that_of_both_models_and_a_few_matrices():
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
    model = mp.convert(tiny_bert(**sizes), max_bond=16)
    mp.merge(made("bert"))  # what the first run alone needs
    with resident() as growth:
        merged = mp.merge(model)
    result = sum(p.nbytes for p in merged.parameters())
    # One is made in double precision, from its cores, and compared with what it is rounded to.
    largest = max(p.nbytes for p in merged.parameters())
    assert growth() < result + 20 * largest < 2 * result


@contextmanager
def resident():
    """Yield a function that tells by how many bytes the process grew at most."""
    seen, stop = [now()], threading.Event()

    def watch():
        while not stop.is_set():
            seen.append(now())
            stop.wait(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(seen) - seen[0]
    finally:
        stop.set()
        thread.join()


def now():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
