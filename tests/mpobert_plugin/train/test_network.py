"""A network in half precision: near float32, masters untouched, the same for any division."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

import mpobert_plugin as mp
from mpobert_plugin.accumulate import accumulate
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.locate import base_of, is_converted, layer_names
from mpobert_plugin.strategy import TRAINING
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.settings import PretrainConfig
from tests.mpobert_plugin.train.computing import HOSTS, apart, batches, engine_of, model_of, stepped
from tests.mpobert_plugin.train.test_run import (
    ONE_STEP,
    Stop,
    interrupted,
    losses,
    run,
    same,
    updates_agree,
    weights,
)
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

BITS = {"fp16": 2.0**-11, "bf16": 2.0**-8}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize(
    ("host", "precision"),
    [*((host, "bf16") for host in HOSTS), ("bert", "fp16"), ("mpobert", "fp16")],
)
def test_half_agrees_with_float32_and_with_autocast(host, precision):
    exact, wanted = stepped(engine_of(model_of(host)))
    _, cast = stepped(engine_of(model_of(host), precision))
    engine = engine_of(model_of(host), precision, "half")
    result, found = stepped(engine)
    bit = BITS[precision]
    assert result.numbers[:2].tolist() == pytest.approx(exact.numbers[:2].tolist(), rel=bit)
    scale = engine.scale.value.item()
    assert apart(found, wanted) < 8 * bit
    assert apart(found, cast) < 8 * bit
    assert scale == (1024.0 if precision == "fp16" else 1.0)


@pytest.mark.parametrize("host", ["bert", "whole bert", "mpobert"])
def test_masters_are_the_same_objects_in_float32(host):
    model = model_of(host)
    before = dict(model.named_parameters(remove_duplicate=False))
    values = {name: parameter.detach().clone() for name, parameter in before.items()}
    engine = engine_of(model, "bf16", "half", lr=1e-3)
    stepped(engine)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())
    assert all(parameter.dtype == torch.float32 for parameter in after.values())
    assert any(not torch.equal(after[name], values[name]) for name in after)
    assert engine.gradients.flat.dtype == torch.float32
    assert all(p.grad is engine.gradients.parts[name] for name, p in model.named_parameters())


def test_what_the_network_reads_in_a_step():
    model = model_of("mpobert")
    engine = engine_of(model, "bf16", "half")
    tied = model.albert.embeddings.word_embeddings
    with engine.network.computing():
        kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
        assert model.predictions.decoder.weight is tied.weight
        assert tied.weight.data_ptr() % 128 == engine.network.copies.copies[0].data_ptr() % 128
    half = {name for name, kind in kinds.items() if kind == torch.bfloat16}
    cores = {name for name in kinds if "central" in name or "auxiliary" in name or ".mpo." in name}
    assert {name for name in cores if name.endswith("bias")} <= half
    assert half.isdisjoint(name for name in cores if "central" in name or "auxiliary" in name)
    assert set(kinds) - cores <= half


@pytest.mark.parametrize("host", HOSTS)
def test_layers_hand_each_other_one_type(host):
    model = model_of(host)
    seen = set()
    base = base_of(model)

    def look(layer, inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        seen.update({inputs[0].dtype, first.dtype})

    for name in layer_names(model):
        base.get_submodule(name).register_forward_hook(look)
    engine = engine_of(model, "bf16", "half")
    engine.losses(batches(1)[0])
    assert seen == {torch.bfloat16}


def test_after_an_error_the_model_is_as_before():
    model = model_of()
    engine = engine_of(model, "bf16", "half", recompute="layers")
    before = list(model.parameters())
    broken = batches(1)[0]
    broken.input_ids[0, 0] = 10_000
    with pytest.raises(IndexError):
        engine.step([broken])
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert not any("forward" in vars(module) for module in model.modules())
    assert model.albert.mpo["query"].wanted is None
    assert torch.isfinite(stepped(engine)[1]).all()


@pytest.mark.parametrize("strategy", TRAINING)
def test_every_strategy_computes_in_half(strategy):
    model = model_of("mpobert")
    _, wanted = stepped(engine_of(model_of("mpobert")))
    mp.set_strategy(model, strategy, when="training")
    _, found = stepped(engine_of(model, "bf16", "half"))
    assert apart(found, wanted) < 8 * BITS["bf16"]


@pytest.mark.parametrize("host", ["converted bert", "whole bert", "mpobert"])
def test_matrices_rebuilt_once_or_for_each_micro_batch(host):
    found = []
    for once in (True, False):
        model = model_of(host)
        assert is_converted(model)
        around = partial(accumulate, model) if once else nullcontext
        found.append(stepped(engine_of(model, "bf16", "half", around=around))[1])
    assert apart(*found) < BITS["bf16"]


def test_gradients_of_many_micro_batches_add_up_in_float32():
    model = model_of("bert")
    engine = engine_of(model, "bf16", "half")
    with engine.network.computing():
        for _ in range(300):
            model.cls.predictions.bias.sum().backward()
    # In bfloat16 the sum would stop to grow at 256.
    assert set(model.cls.predictions.bias.grad.tolist()) == {300.0}


def test_evaluation_sees_the_newest_masters():
    model = model_of().eval()
    engine = engine_of(model, "bf16", "half")
    with torch.no_grad():
        first = engine.losses(batches(1)[0]).numbers()
        model.predictions.bias[7] += 30.0
        second = engine.losses(batches(1)[0]).numbers()
    assert second[0] > first[0] + 10


def test_m22_a_resumed_half_run_is_the_same_bit_for_bit(corpus, tmp_path, monkeypatch):
    config = BASE.replace(
        steps=6, precision="bf16", network="half", log_every=1, recompute="every_2"
    )
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    pretrain(fresh(**rates), corpus, config, tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patch:
        interrupted(patch, 4)
        with pytest.raises(Stop):
            pretrain(fresh(**rates), corpus, config, tmp_path / "cut", device="cpu")
    pretrain(fresh(5, **rates), corpus, config, tmp_path / "cut", device="cpu")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


@pytest.mark.slow
def test_two_processes_make_the_same_model_in_half_precision(corpus, tmp_path):
    config = ONE_STEP.replace(micro_batch=2, precision="bf16", network="half", recompute="layers")
    words = ("steps=1", "eps=1.0", "micro_batch=2", "precision=bf16", "network=half")
    done = run(
        subprocess.run, tmp_path / "many", corpus, *words, "recompute=layers",
        world=2, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pretrain(fresh(), corpus, config, tmp_path / "one", device="cpu")
    assert updates_agree(weights(tmp_path / "many"), weights(tmp_path / "one"))
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_checkpoints_do_not_know_how_the_network_computed(corpus, tmp_path):
    found = {}
    for network in ("half", "autocast"):
        config = BASE.replace(steps=2, precision="bf16", network=network)
        pretrain(fresh(), corpus, config, tmp_path / network, device="cpu")
        found[network] = weights(tmp_path / network, 2)
    kinds = [{name: (t.shape, t.dtype) for name, t in each.items()} for each in found.values()]
    assert kinds[0] == kinds[1]
    folder = tmp_path / "half" / "checkpoints" / "step-000000002"
    stored = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert "forward" not in json.loads((folder / "config.json").read_text())


def test_a_half_network_of_float32_is_refused():
    message = (
        "network='half' needs precision='fp16' or 'bf16', got 'fp32'. Use network='auto', which "
        "leaves float32 alone."
    )
    with pytest.raises(ConfigError) as caught:
        PretrainConfig(network="half", precision="fp32")
    assert str(caught.value) == message
