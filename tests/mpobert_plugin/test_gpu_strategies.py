"""Strategies on a CUDA device: half precision, one wait for each evaluation, one compiled graph."""

from __future__ import annotations

import copy
import gc
import math

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.reconstruct import rebuild
from tests.mpobert_plugin.handing import assert_same_gradients, gradients
from tests.mpobert_plugin.models import ids, stir_adapters, tiny_bert

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STRATEGIES = ["batched", "batched_recompute", "per_group", "per_layer", "factorized"]


def converted(**options):
    plain = tiny_bert(hidden_size=64, intermediate_size=128, num_hidden_layers=6)
    model = mp.convert(plain, sharing="groups:2", fit="mean", adapter_rank=2, **options)
    stir_adapters(model)
    return model.cuda().train()


def step(model, kind=None):
    model.zero_grad()
    tokens = ids().cuda()
    with torch.autocast("cuda", kind or torch.float16, enabled=kind is not None):
        loss = model(tokens, labels=tokens).loss
    (1024.0 * loss).backward()
    return {name: gradient.float() / 1024.0 for name, gradient in gradients(model).items()}


def apart(ours, theirs):
    return max(
        float((ours[name] - other).norm() / (other.norm() + 1e-4)) for name, other in theirs.items()
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_in_float32_agree(strategy):
    model = converted()
    expected = step(model)
    mp.set_strategy(model, strategy, when="training", group=2)
    assert_same_gradients(step(model), expected, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_in_half_precision_are_close(strategy, kind):
    model = converted()
    expected = step(model)
    mp.set_strategy(model, strategy, when="training", group=2)
    assert apart(step(model, kind), expected) < {torch.float16: 2e-2, torch.bfloat16: 1e-1}[kind]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_accumulated_gradients_in_half_precision_are_close(kind):
    model = converted()
    expected = step(model)
    tokens = ids().cuda()
    model.zero_grad()
    with mp.accumulate(model):
        for _ in range(2):
            with torch.autocast("cuda", kind):
                loss = model(tokens, labels=tokens).loss
            (512.0 * loss).backward()
    found = {name: gradient.float() / 1024.0 for name, gradient in gradients(model).items()}
    assert apart(found, expected) < {torch.float16: 2e-2, torch.bfloat16: 1e-1}[kind]


def test_matrices_err_as_on_the_cpu():
    model = mp.build("mpobert-12", head="none", device="cuda", num_layers=2)
    bank = model.mpo["ffn_in"]
    wide = {name: tensor.detach().double() for name, tensor in bank.cores().items()}
    exact = rebuild(bank.spec, bank.recipe, wide, torch.float64)[0]
    errors = {}
    with torch.no_grad():
        for kind in (torch.float16, torch.bfloat16):
            for half in (False, True):
                made = rebuild(bank.spec, bank.recipe, bank.cores(), kind, half=half)[0]
                errors[kind, half] = float((made.double() - exact).norm() / exact.norm())
    assert errors[torch.float16, False] < 2.5e-4
    assert errors[torch.float16, True] < 6e-4
    assert errors[torch.bfloat16, False] < 1.8e-3
    assert errors[torch.bfloat16, True] < 2e-3


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_an_uneven_gauge_in_training(scale):
    model = converted()
    with torch.no_grad():
        for bank in model.bert.mpo.stacked():
            if isinstance(bank, mp.MPOBank):
                bank.central.mul_(scale)
                bank.auxiliary_0.div_(scale)
    expected = step(model)
    found = step(model, torch.float16)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    for name, other in expected.items():
        # The softmax does not see the bias of the keys: its gradient is rounding alone.
        if not name.endswith("key.bias"):
            assert (found[name] - other).norm() <= 3e-2 * other.norm() + 1e-4 * scale, name


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_evaluation_waits_once_and_notices_writes():
    model = converted().eval()
    tokens = ids().cuda()

    def look():
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            return model(tokens)[0]

    before = [look() for _ in range(3)][-1]
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="synchronizing") as seen:
            again = look()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in seen if "synchronizing" in str(w.message)]) == 1
    assert torch.equal(again, before)
    model.bert.mpo["value"].central.data.mul_(1.5)
    assert not torch.equal(look(), before)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_training_never_waits():
    model = converted()
    step(model, torch.float16)
    tokens = ids().cuda()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with torch.autocast("cuda", torch.float16):
            out = model.bert(tokens)[0]
        out.float().square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["batched_recompute", "per_layer"])
def test_compiled_layers_are_one_graph_and_train(strategy):
    from torch._dynamo.utils import counters

    model = converted()
    mp.set_strategy(model, strategy)
    expected = step(model, torch.bfloat16)
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    counters.clear()
    for layer in twin.bert.encoder.layer:
        layer.compile(fullgraph=True)
    assert apart(step(twin, torch.bfloat16), expected) < 1e-1
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("strategy", ["batched_recompute", "per_group", "per_layer"])
def test_the_planned_memory_is_the_measured_one(strategy):
    model = mp.build(
        "mpobert-12", head="none", device="cuda", num_layers=6, hidden_act="gelu"
    ).train()
    tokens = torch.randint(5, 1000, (1, 8), device="cuda")
    mp.set_strategy(model, strategy)

    def once():
        with torch.autocast("cuda", torch.float16):
            return model(tokens).last_hidden_state.float().square().mean()

    once().backward()
    # What earlier tests have left would be freed while this one measures.
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once().backward()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    plan = mp.plan_reconstruction(model, tokens=8, dtype=torch.float16)
    cost = plan.cost(strategy)
    # Beside the plan's: a few activations, and the gradients that are added to those kept.
    grads = sum(p.nbytes for p in model.parameters())
    assert 0.8 * cost.peak < peak < 1.3 * cost.peak + grads


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("row_dims", "col_dims", "rows", "cols"),
    [
        ((2, 2, 3), (3, 2, 2), 12, 12),
        ((4, 2, 3), (2, 5, 2), 23, 19),
        ((1, 6, 1), (1, 7, 1), 6, 7),
        ((1, 3, 4), (2, 2, 1), 11, 4),
        ((16, 8, 32), (16, 4, 16), 4096, 1024),
    ],
)
def test_the_kernel_moves_as_torch_does(row_dims, col_dims, rows, cols, kind):
    from mpobert_plugin.joining import Joining
    from mpobert_plugin.unfold import folded, unfolded

    how = Joining((1,), row_dims, col_dims, rows, cols, True, (0,), 0.0, kind, True)
    entries = math.prod(row_dims) * math.prod(col_dims)
    whole = torch.randn(3, entries, device="cuda").half()
    factor = torch.tensor([0.5], device="cuda")
    matrices = torch.randn(3, rows, cols, device="cuda", dtype=kind)
    # With a graph torch's own operations do it.
    wanted = unfolded(whole, factor, kind, how), folded(matrices, factor, torch.float16, how)
    with torch.no_grad():
        found = unfolded(whole, factor, kind, how), folded(matrices, factor, torch.float16, how)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 7, 8, 19])
def test_matrices_apart_are_gathered_as_a_stack_is(count, kind):
    from mpobert_plugin.halves import scale_of
    from mpobert_plugin.joining import Joining
    from mpobert_plugin.unfold import folded, gathered

    outputs = tuple(range(count))
    how = Joining((count,), (4, 2, 3), (2, 5, 2), 23, 19, True, outputs, 0.0, kind, True)
    apart = [torch.randn(23, 19, device="cuda", dtype=kind) * 300 for _ in outputs]
    # One that is no run of memory.
    apart[-1] = torch.randn(19, 23, device="cuda", dtype=kind).T
    scale = scale_of(torch.stack(apart))
    wanted = folded(torch.stack(apart), scale.reciprocal(), torch.float16, how)
    with torch.no_grad():
        found, by = gathered(apart, how)
    assert torch.equal(by, scale)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 1000, 2**20 + 3])
@pytest.mark.parametrize("divisor", [1, 300])
def test_the_kernel_scales_as_torch_does(size, kind, divisor):
    from mpobert_plugin.halves import half_of

    x = (torch.randn(size, 2, device="cuda") * 37).to(kind).T
    zeros, bad = torch.zeros_like(x), x.clone()
    bad[0, 0] = torch.nan
    for given in (x, zeros, bad):
        # With a graph torch's own operations do it.
        wanted, by = half_of(given, divisor)
        with torch.no_grad():
            found, scale = half_of(given, divisor)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(scale, by)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [10, 2**18, 2**18 + 7])
def test_gradients_are_added_as_torch_adds_them(size, kind):
    from mpobert_plugin.adding import add_wide

    total = torch.randn(size, device="cuda")
    gradient = torch.randn(size, device="cuda").to(kind)
    wanted = total + gradient.float()
    add_wide(total, gradient)
    assert torch.equal(total, wanted)
