"""A step: the same for any division, clipped after unscaling, and nothing when it overflows."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.engine import Engine
from mpobert_plugin.train.gradients import Gradients, reached
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.objective import Losses, Objective
from mpobert_plugin.train.precision import LossScale, Precision
from mpobert_plugin.train.processes import Processes, joined
from tests.mpobert_plugin.train.tiny import ALBERT, batch_of


def model_of(seed=0):
    torch.manual_seed(seed)
    model = transformers.AlbertForPreTraining(ALBERT)
    return mp.from_albert(model, num_layers=3, n=3, adapter_rank=2).eval()


def engine_of(objective, optimizer=None, precision="fp32", scale=65536.0, clip=0.0, **options):
    parameters = dict(objective.named_parameters())
    optimizer = optimizer or torch.optim.AdamW(parameters.values(), lr=1e-3, fused=True)
    form = Precision(precision)
    return Engine(
        objective,
        optimizer,
        Gradients(parameters),
        form,
        LossScale("cpu", scale, enabled=form.scaled),
        Processes(),
        clip,
        **options,
    )


def parts_of(batch, size):
    rows = range(0, len(batch.sizes), size)
    return [Batch(*(t[start : start + size] for t in vars(batch).values())) for start in rows]


class Planted(nn.Module):
    """A loss of two weights whose gradient is known: 3 w1 + 4 w2."""

    def __init__(self, factors=(3.0, 4.0)):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, batch, _padded=None):
        zero = torch.zeros(())
        return Losses((self.w * self.factors).sum() * batch.counts()[0], zero, zero, zero)


def test_m19_clipping_comes_after_unscaling():
    planted = Planted()
    optimizer = torch.optim.SGD(planted.parameters(), lr=1.0, fused=True)
    engine = engine_of(planted, optimizer, "fp16", 65536.0, clip=1.0)
    result = engine.step([batch_of()])
    assert result.norm.item() == pytest.approx(5.0)
    assert planted.w.tolist() == pytest.approx([0.4, 0.2])
    assert not result.skipped


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1.0, fused=True)


def lamb(parameters):
    return Lamb(parameters, lr=0.1, weight_decay=0.01)


@pytest.mark.parametrize("make", [adamw, lamb])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_step_that_overflows_changes_nothing_but_the_scale(bad, make):
    planted = Planted((3.0, bad))
    optimizer = make(planted.parameters())
    engine = engine_of(planted, optimizer, "fp16", 1024.0, clip=1.0)
    result = engine.step([batch_of()])
    assert result.skipped
    assert planted.w.tolist() == [1.0, 1.0]
    assert engine.scale.state() == {"scale": 512.0, "clean": 0, "skipped": 1}
    planted.factors[1] = 4.0
    engine.step([batch_of()])
    state = optimizer.state[planted.w]
    assert float(state["step"]) == 1.0  # the skipped step does not count
    assert torch.isfinite(state["exp_avg"]).all()
    fresh = Planted()
    other = make(fresh.parameters())
    engine_of(fresh, other, "fp16", 512.0, clip=1.0).step([batch_of()])
    assert torch.allclose(planted.w, fresh.w)


def test_lamb_counts_on_the_device_as_it_does_on_the_host():
    plain, counted = Planted(), Planted()
    a, b = (lamb(planted.parameters()) for planted in (plain, counted))
    b.found_inf = torch.zeros(())
    for number in range(5):
        for planted, optimizer in ((plain, a), (counted, b)):
            planted.w.grad = torch.tensor([0.1 * number, -0.3])
            optimizer.step()
    assert torch.allclose(plain.w, counted.w, rtol=1e-6)
    assert a.state[plain.w]["step"] == float(b.state[counted.w]["step"]) == 5


@pytest.mark.parametrize("size", [1, 2, 4])
def test_m21_any_accumulation_makes_the_same_update(size):
    reference, model = model_of(), model_of()
    batch = batch_of()
    engine_of(Objective(reference)).step([batch])
    result = engine_of(Objective(model)).step(parts_of(batch, size))
    start = model_of()
    for a, b, w in zip(reference.parameters(), model.parameters(), start.parameters(), strict=True):
        assert torch.allclose(a - w, b - w, rtol=1e-4, atol=2e-7)
    assert result.counts.tolist() == batch.counts().tolist()


def test_the_update_is_that_of_plain_torch():
    model, plain = model_of(), model_of()
    batch = batch_of()
    engine_of(Objective(model), clip=1.0).step([batch])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    Objective(plain)(batch).mean(batch.counts()).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    optimizer.step()
    assert norm > 1.0
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-6)


def test_gradients_of_a_central_tensor_are_the_sum_over_layers():
    model = model_of()
    batch = batch_of()
    objective = Objective(model)
    engine = engine_of(objective)
    engine.step([batch])
    shared = engine.gradients.parts["model.albert.mpo.query.central"].clone()
    total = torch.zeros_like(shared)
    for chosen in range(3):
        one = model_of()
        bank = one.albert.mpo["query"]
        originals = [w.detach() for w in bank.weights()]
        live = bank.weights()[chosen]
        values = [*originals[:chosen], live, *originals[chosen + 1 :]]
        bank.weights = lambda values=values: tuple(values)
        loss = Objective(one)(batch).mean(batch.counts())
        total += torch.autograd.grad(loss, bank.central)[0]
    assert torch.allclose(shared, total, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_masters_and_gradients_stay_float32(precision):
    model = model_of()
    engine = engine_of(Objective(model), precision=precision, scale=256.0)
    engine.step([batch_of()])
    assert engine.gradients.flat.dtype == torch.float32
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    exact = engine_of(Objective(model_of()))
    exact.step([batch_of()])
    a, b = engine.gradients.flat, exact.gradients.flat
    assert torch.linalg.vector_norm(a - b) < 0.05 * torch.linalg.vector_norm(b)


def test_m24_parameters_that_no_loss_reaches_are_named():
    model = transformers.AlbertForPreTraining(ALBERT)
    model.extra = nn.Linear(2, 2)
    engine = engine_of(Objective(model))
    missing = set(engine.gradients.parameters) - engine.reached(batch_of())
    assert missing == {"model.extra.weight", "model.extra.bias"}
    assert reached({"w": model.extra.weight}, model.extra.weight.sum()) == {"w"}


def test_micro_batches_are_announced():
    seen = []
    model = model_of()
    engine_of(Objective(model)).step(parts_of(batch_of(), 2), seen.append)
    assert seen == [0, 1]


def test_alone_without_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as processes:
        assert processes.first
        assert processes.world_size == 1
        assert processes.any(True)
        assert not processes.any(False)
