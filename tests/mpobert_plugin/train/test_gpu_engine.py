"""Steps on a GPU: no wait for it, half precision near float32, less memory, exact resume."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from mpobert_plugin.accumulate import Accumulation, accumulate
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.locate import is_converted
from mpobert_plugin.train.captured import Captured, CudaGraphs
from mpobert_plugin.train.late import Sent
from mpobert_plugin.train.optimizers import Rates, set_rate
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.schedule import Schedule
from tests.mpobert_plugin.train.computing import (
    apart,
    batches,
    engine_of,
    model_of,
    reseed,
    stepped,
)
from tests.mpobert_plugin.train.test_run import Stop, interrupted, losses, same, weights
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch warns of what its own compiler does, and of the TF32 that it was told not to use.
    pytest.mark.filterwarnings("ignore"),
]
NEAR = {"fp16": 2.0**-8, "bf16": 2.0**-5}


def on_gpu(host="mpobert", dropout=0.0, **sizes):
    return model_of(host, dropout=dropout, **sizes).cuda().train()


def gpu_engine(model, *words, **options):
    if is_converted(model):
        options.setdefault("around", partial(accumulate, model))
    return engine_of(model, *words, device="cuda", **options)


@pytest.fixture
def no_waiting():
    """Give a function that makes an error of each wait for the device, until the test ends."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        yield partial(torch.cuda.set_sync_debug_mode, "error")
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("recompute", ["none", "layers", "selective"])
@pytest.mark.parametrize("network", ["half", "autocast"])
@pytest.mark.parametrize("host", ["bert", "whole bert", "mpobert"])
def test_no_step_waits_for_the_device(host, network, recompute, no_waiting):
    engine = gpu_engine(on_gpu(host, dropout=0.1), "fp16", network, recompute=recompute, lr=1e-3)
    rates = Rates(Schedule("linear", 10, 2), 1e-3, "cuda")
    pinned = [batch.pin_memory() for batch in batches()]
    # The first step makes what later ones have: moments, tables of kernels, workspaces.
    set_rate(engine.optimizer, rates(0, engine.scale.skipped))
    engine.step(pinned, reseed)
    torch.cuda.synchronize()
    no_waiting()
    for step in range(1, 4):
        set_rate(engine.optimizer, rates(step, engine.scale.skipped))
        sent = Sent(engine.step(pinned, reseed, flag=True))
    torch.cuda.set_sync_debug_mode("default")
    result = sent.read()
    assert not result.norm.is_cuda
    assert result.flags.item() == 1
    assert torch.isfinite(result.norm)


def test_what_is_sent_is_what_was_there():
    engine = gpu_engine(on_gpu())
    result = engine.step(batches(), reseed)
    torch.cuda._sleep(200_000_000)
    late = Sent(result)
    assert not late.has_come()
    sent = late.read()
    assert late.has_come()
    assert torch.equal(sent.numbers, result.numbers.cpu())
    assert sent.counts.tolist() == result.counts.tolist()


@pytest.mark.parametrize("compiled", ["none", "layers"])
@pytest.mark.parametrize("network", ["half", "autocast"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("host", ["bert", "mpobert"])
def test_half_precision_is_near_float32(host, precision, network, compiled):
    exact, wanted = stepped(gpu_engine(on_gpu(host)))
    engine = gpu_engine(on_gpu(host), precision, network, compiled, backend="inductor")
    result, found = stepped(engine)
    assert result.numbers[0].item() == pytest.approx(exact.numbers[0].item(), rel=NEAR[precision])
    assert apart(found, wanted) < NEAR[precision]
    assert not result.skipped


def test_the_gpu_agrees_with_the_cpu():
    _, wanted = stepped(engine_of(model_of("mpobert").train()))
    _, found = stepped(gpu_engine(on_gpu("mpobert")))
    assert apart(found.cpu(), wanted) < 1e-4


def test_compiled_layers_are_one_graph_and_go_on_in_evaluation():
    from torch._dynamo.utils import counters

    counters.clear()
    model = on_gpu("mpobert", dropout=0.1, layers=6)
    engine = gpu_engine(model, "fp16", "half", "layers", backend="inductor")
    stepped(engine)
    assert counters["stats"]["unique_graphs"] == 1
    model.eval()
    with torch.no_grad():
        loss = engine.losses(batches(1)[0]).tokens
    assert torch.isfinite(loss)
    assert counters["stats"]["unique_graphs"] <= 3


@pytest.mark.parametrize("network", ["half", "autocast"])
def test_a_step_that_overflows_is_skipped(network):
    model = on_gpu("bert")
    engine = gpu_engine(model, "fp16", network, lr=1e-2)
    stepped(engine)
    engine.scale.value.fill_(2.0**24)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    result, _ = stepped(engine)
    assert result.skipped
    assert engine.scale.state() == {"scale": 2.0**23, "clean": 0, "skipped": 1}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def peak(recompute, network):
    model = on_gpu("bert", layers=8)
    engine = gpu_engine(model, "fp16", network, recompute=recompute)
    long = batches(1, rows=4, length=32)
    many = [type(long[0])(*(t.repeat(64, *[1] * (t.dim() - 1)) for t in vars(long[0]).values()))]
    engine.step(many)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    engine.step(many)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("network", ["half", "autocast"])
def test_layers_that_run_again_take_less_memory(network):
    words = ("none", "selective", "every_2", "layers")
    none, selective, some, whole = (peak(recompute, network) for recompute in words)
    assert whole < some < none
    assert whole < selective < none


def test_a_half_network_takes_less_memory_than_autocast():
    assert peak("none", "half") < peak("none", "autocast")


@pytest.mark.parametrize("recompute", ["layers", "selective", "every_2"])
def test_layers_that_run_again_give_the_same_bits(recompute, deterministic):
    wanted = stepped(gpu_engine(on_gpu(dropout=0.1), "fp16", "half"))[1]
    found = stepped(gpu_engine(on_gpu(dropout=0.1), "fp16", "half", recompute=recompute))[1]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("network", ["half", "autocast"])
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_a_resumed_run_is_the_same_bit_for_bit(
    network, optimizer, tmp_path, monkeypatch, deterministic
):
    corpus = corpus_in(tmp_path / "corpus")
    config = BASE.replace(precision="fp16", network=network, optimizer=optimizer, log_every=1)
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    pretrain(fresh(**rates), corpus, config, tmp_path / "whole", device="cuda")
    with monkeypatch.context() as patch:
        interrupted(patch, 4)
        with pytest.raises(Stop):
            pretrain(fresh(**rates), corpus, config, tmp_path / "cut", device="cuda")
    pretrain(fresh(5, **rates), corpus, config, tmp_path / "cut", device="cuda")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


def recorded(model, *words, once=True, **options):
    """Return an engine that records its steps."""
    if once and is_converted(model):
        options["around"] = Accumulation(model, lasting=True).step
    else:
        options["around"] = nullcontext
    engine = engine_of(model, *words, device="cuda", **options)
    engine.captured = Captured(CudaGraphs(torch.device("cuda")))
    return engine


def trail(engine, steps=5):
    """Return the losses of some steps, and the weights behind them."""
    rates = Rates(Schedule("linear", 10, 2), 1e-2, "cuda")
    losses = []
    for step in range(steps):
        set_rate(engine.optimizer, rates(step, engine.scale.skipped))
        losses.append(engine.step([b.pin_memory() for b in batches()], reseed).numbers)
    weights_now = [p.detach().clone() for p in engine.objective.model.parameters()]
    return torch.stack(losses), weights_now


@pytest.mark.parametrize("compiled", ["none", "layers"])
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    ("precision", "network"), [("fp16", "half"), ("bf16", "autocast"), ("fp32", "autocast")]
)
@pytest.mark.parametrize("host", ["bert", "mpobert", "whole bert"])
def test_recorded_steps_have_the_same_bits(host, precision, network, once, compiled, deterministic):
    words = (precision, network, compiled)
    plain = on_gpu(host, dropout=0.1)
    options = {"backend": "inductor", "lr": 1e-2}
    if not once:
        options["around"] = nullcontext
    wanted, there = trail(gpu_engine(plain, *words, **options))
    options.pop("around", None)
    found, here = trail(recorded(on_gpu(host, dropout=0.1), *words, once=once, **options))
    assert torch.equal(found, wanted)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("once", [True, False])
def test_recorded_steps_of_large_layers_have_the_same_bits(once, deterministic):
    options = {"lr": 1e-2} if once else {"lr": 1e-2, "around": nullcontext}
    plain = gpu_engine(on_gpu("large mpobert", layers=6), "fp16", "half", **options)
    wanted, there = trail(plain, 8)
    twin = recorded(on_gpu("large mpobert", layers=6), "fp16", "half", once=once, lr=1e-2)
    found, here = trail(twin, 8)
    assert torch.isfinite(found).all()
    assert torch.equal(found, wanted)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_recorded_steps_wait_for_nothing(no_waiting):
    engine = recorded(on_gpu("mpobert", dropout=0.1), "fp16", "half", lr=1e-2)
    rates = Rates(Schedule("linear", 10, 2), 1e-2, "cuda")
    pinned = [batch.pin_memory() for batch in batches()]
    for step in range(3):
        set_rate(engine.optimizer, rates(step, engine.scale.skipped))
        engine.step(pinned, reseed)
    torch.cuda.synchronize()
    no_waiting()
    for step in range(3, 6):
        set_rate(engine.optimizer, rates(step, engine.scale.skipped))
        sent = Sent(engine.step(pinned, reseed))
    torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(sent.read().norm)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_a_run_with_recorded_steps_ends_with_the_same_bits(optimizer, tmp_path, deterministic):
    corpus = corpus_in(tmp_path / "corpus")
    config = BASE.replace(precision="fp16", optimizer=optimizer, log_every=1, shorter=0.5)
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    for graphs in ("none", "steps"):
        folder = tmp_path / graphs
        pretrain(fresh(**rates), corpus, config.replace(graphs=graphs), folder, device="cuda")
    assert same(weights(tmp_path / "none"), weights(tmp_path / "steps"))
    assert losses(tmp_path / "none") == losses(tmp_path / "steps")


def test_an_overflow_in_recorded_steps_is_skipped():
    engine = recorded(on_gpu("bert"), "fp16", "half", lr=1e-2)
    trail(engine, 4)
    engine.scale.value.fill_(2.0**24)
    before = [parameter.detach().clone() for parameter in engine.objective.model.parameters()]
    result = engine.step([b.pin_memory() for b in batches()], reseed)
    assert result.skipped
    after = engine.objective.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_what_was_forgotten_is_recorded_anew():
    engine = recorded(on_gpu("mpobert"), "fp16", "half", lr=1e-2)
    trail(engine, 4)
    engine.captured.forget()
    losses_then, _ = trail(engine, 5)
    assert torch.isfinite(losses_then).all()


def test_what_cannot_be_recorded_is_told():
    captured = Captured(CudaGraphs(torch.device("cuda")), warm_ups=0)
    numbers = torch.ones(3, device="cuda")
    with pytest.raises(ConfigError, match="cannot be recorded as CUDA graphs"):
        captured("reads", lambda x: (x * float(x.sum()),), [numbers])
    assert float((numbers + 1).sum()) == 6.0
