"""Strategies of rebuilding: the same outputs and gradients, and the memory that the plan says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.autograd.graph import saved_tensors_hooks

import mpobert_plugin as mp
from mpobert_plugin.errors import ChangedTensorError, ConfigError, ConversionError
from mpobert_plugin.pending import Pending
from mpobert_plugin.reconstruct import rebuild
from mpobert_plugin.strategy import Strategy
from tests.mpobert_plugin.handing import (
    assert_same_gradients,
    gradients,
    loss_of,
    query_bank,
    reader_of,
    shared_bert,
)
from tests.mpobert_plugin.models import (
    checkpoint_layers,
    ids,
    logits,
    plain_twin,
    stir_adapters,
    tiny_albert,
    tiny_bert,
)

MODELS = {
    "groups, adapters": lambda: shared_bert(adapter_rank=2),
    "everything shared": lambda: mp.convert(tiny_albert(), sharing="albert"),
    "everything shared, adapters": lambda: mp.convert(
        tiny_albert(), sharing="albert", adapter_rank=2
    ),
    "nothing shared": lambda: mp.convert(tiny_bert()),
    "blocks": lambda: mp.convert(tiny_bert(), sharing=[[0, 2, 3], [1]], fit="mean", n=3),
    "two sites, cut": lambda: mp.convert(
        tiny_bert(), sharing="all", fit="mean", n=2, max_bond=5, share_bias=True
    ),
    "padded": lambda: mp.convert(tiny_bert(intermediate_size=59), n=3, sharing="all", fit="mean"),
}
STRATEGIES = [
    ("batched_recompute", 4),
    ("per_layer", 4),
    ("per_group", 1),
    ("per_group", 3),
    ("factorized", 4),
    ("reference", 4),
]


def made(name):
    model = MODELS[name]().train()
    stir_adapters(model)
    return model


def losses(model):
    return loss_of(model), loss_of(model, 1)


def two_backwards(model):
    model.zero_grad()
    for loss in losses(model):
        loss.backward()
    return gradients(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_strategy_gives_the_same_outputs_and_gradients(name):
    model = made(name)
    mp.set_strategy(model, "batched")
    expected, output = two_backwards(model), logits(model)
    for strategy, group in STRATEGIES:
        mp.set_strategy(model, strategy, when="training", group=group)
        model.zero_grad()
        # Both forwards before the first backward: each has matrices of its own.
        sum(losses(model)).backward()
        assert_same_gradients(gradients(model), expected)
        torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["groups, adapters", "everything shared, adapters", "padded"])
def test_every_strategy_of_evaluation_gives_the_same_outputs(name):
    model = made(name).eval()
    expected = logits(model)
    for strategy in ("batched", "per_group", "per_layer", "factorized", "cached"):
        mp.set_strategy(model, strategy, when="evaluation")
        for _ in range(3):
            torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("strategy", ["batched_recompute", "per_group", "per_layer", "factorized"])
def test_strategies_under_checkpointing(strategy, reentrant):
    model = made("groups, adapters")
    expected = two_backwards(model)
    mp.set_strategy(model, strategy, when="training", group=3)
    checkpoint_layers(model, reentrant)
    assert_same_gradients(two_backwards(model), expected)


@pytest.mark.parametrize("strategy", ["per_group", "per_layer", "factorized", "reference"])
def test_strategies_under_autocast(strategy):
    model = made("groups, adapters")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = two_backwards(model)
        mp.set_strategy(model, strategy, when="training")
        found = two_backwards(model)
    assert_same_gradients(found, expected, atol=2e-2)


@pytest.mark.parametrize("strategy", ["batched_recompute", "per_group", "per_layer"])
def test_strategies_in_float64_agree_to_its_precision(strategy):
    model = made("groups, adapters").double()
    mp.set_strategy(model, "batched")
    expected = two_backwards(model)
    mp.set_strategy(model, strategy, group=3)
    assert_same_gradients(two_backwards(model), expected, atol=1e-14)


@pytest.mark.parametrize("strategy", ["batched_recompute", "per_group", "per_layer", "factorized"])
@pytest.mark.parametrize("kind", ["adapters", "auxiliary"])
def test_strategies_with_frozen_parts(strategy, kind):
    model = made("groups, adapters")
    mp.freeze(model, kind)
    mp.set_strategy(model, "batched")
    expected = two_backwards(model)
    mp.set_strategy(model, strategy, when="training")
    assert_same_gradients(two_backwards(model), expected)


@pytest.mark.parametrize("recompute", [True, False])
def test_first_and_second_derivatives(recompute):
    bank = query_bank(shared_bert(adapter_rank=2)).double()
    names, tensors = zip(*bank.cores().items(), strict=True)
    generator = torch.Generator().manual_seed(0)
    some = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]

    def square(step):
        moved = {n: t + step * s for n, t, s in zip(names, tensors, some, strict=True)}
        matrices = rebuild(bank.spec, bank.recipe, moved, torch.float64, recompute=recompute)
        return sum(matrix.square().mean() for matrix in matrices)

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(square, step)
    assert torch.autograd.gradgradcheck(square, step)


def test_matrices_live_as_long_as_their_layer():
    model = made("groups, adapters")
    mp.set_strategy(model, "per_layer")
    seen = []
    for layer in model.bert.encoder.layer:
        layer.attention.self.query.register_forward_hook(
            lambda module, *_: seen.append(module.handed)
        )
    loss = loss_of(model)
    assert all(isinstance(handed, Pending) for handed in seen)
    assert all(handed.source._live is None for handed in seen)
    assert all(handed.promise.untyped_storage().nbytes() == 4 for handed in seen)
    loss.backward()
    assert all(handed.source._live is None for handed in seen)


def test_a_group_is_rebuilt_once_forward_and_once_backward(monkeypatch):
    from mpobert_plugin import pending

    calls = []
    join = pending.join
    monkeypatch.setattr(pending, "join", lambda *a: calls.append(a[-1].counts) or join(*a))
    model = made("nothing shared")
    mp.set_strategy(model, "per_group", group=2)
    loss = loss_of(model)
    assert calls == [(1, 1)] * 12
    loss.backward()
    assert calls == [(1, 1)] * 24


def test_reading_a_weight_while_it_is_pending():
    model = made("groups, adapters")
    expected = reader_of(model).weight
    mp.set_strategy(model, "per_group")
    seen = []
    reader_of(model).register_forward_hook(lambda module, *_: seen.append(module.weight))
    loss_of(model).backward()
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", ["per_group", "per_layer", "batched_recompute"])
def test_writes_before_backward_are_noticed(strategy):
    model = made("groups, adapters")
    mp.set_strategy(model, strategy)
    loss = loss_of(model)
    with torch.no_grad():
        query_bank(model).central.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


def test_writes_before_backward_are_noticed_with_frozen_cores():
    model = made("nothing shared")
    model.bert.mpo.requires_grad_(False)
    mp.set_strategy(model, "per_layer")
    loss = loss_of(model)
    query_bank(model).central.mul_(2.0)
    with pytest.raises(ChangedTensorError, match="must not be modified after the forward"):
        loss.backward()


@pytest.mark.parametrize("strategy", ["per_layer", "per_group", "batched_recompute", "factorized"])
def test_copies_and_files_keep_working(strategy, tmp_path):
    model = made("groups, adapters")
    mp.set_strategy(model, strategy, when="training")
    loss_of(model).backward()
    twin = copy.deepcopy(model)
    assert query_bank(twin).strategy == query_bank(model).strategy
    torch.testing.assert_close(loss_of(twin), loss_of(model))
    model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "state")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["batched_recompute", "per_layer"])
def test_compiled_layers_are_one_graph(strategy):
    model = mp.convert(tiny_bert(num_hidden_layers=10), sharing="groups:2", fit="mean").train()
    mp.set_strategy(model, strategy, when="training")
    loss_of(model).backward()
    expected = gradients(model)
    model.zero_grad()
    torch._dynamo.reset()
    counter = CompileCounter()
    for layer in model.bert.encoder.layer:
        layer.compile(backend=counter, fullgraph=True)
    for _ in range(2):
        model.zero_grad()
        loss_of(model).backward()
        assert_same_gradients(gradients(model), expected)
    assert counter.frame_count == 1
    torch._dynamo.reset()


# Memory


def saved_bytes(model):
    """Return the bytes that autograd keeps after a forward, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids())
    return sum(size for place, (size, _) in kept.items() if place not in own)


@pytest.mark.parametrize(
    ("name", "group"),
    [("groups, adapters", 3), ("nothing shared", 1), ("two sites, cut", 3), ("padded", 2)],
)
def test_accounted_memory_is_what_autograd_keeps(name, group):
    model = made(name)
    twin = plain_twin(model)
    # Norms are handed out as copies, which autograd keeps.
    norms = sum(
        tensor.nbytes
        for bank in model.base_model.mpo.stacked()
        if isinstance(bank, mp.MPONormBank)
        for tensor in bank.parameters()
    )
    beside = saved_bytes(twin) + norms
    plan = mp.plan_reconstruction(model, tokens=ids().numel(), training=True, group=group)
    for strategy in ("batched", "batched_recompute", "per_group", "per_layer", "factorized"):
        mp.set_strategy(model, strategy, when="training", group=group)
        cost = plan.cost(strategy)
        found = saved_bytes(model) - beside
        if strategy == "factorized":
            # Inputs of the layers are kept as copies with other strides, and not as they are.
            assert found <= cost.saved
        else:
            assert found == cost.matrices + cost.saved, strategy


def test_a_plan_prints_is_a_value_and_says_what_it_counts():
    model = made("groups, adapters")
    plan = mp.plan_reconstruction(model, tokens=14)
    assert plan == mp.plan_reconstruction(model, tokens=14)
    assert str(plan).splitlines()[0] == "training, 14 tokens, float32 on cpu, no memory limit"
    assert f"{plan.chosen} *" in str(plan)
    assert plan.to_dict()["costs"][0]["name"] == "batched"
    batched, again = plan.cost("batched"), plan.cost("batched_recompute")
    assert batched.matrices == again.matrices
    assert batched.saved > again.saved
    assert batched.multiply_adds < again.multiply_adds
    assert plan.cost("per_layer").matrices == 0
    assert query_bank(model).strategy == Strategy()


def test_the_multiply_adds_of_a_plan_are_those_of_the_recipe():
    model = mp.convert(tiny_bert(), sharing="all", fit="mean")
    banks = [bank for bank in model.bert.mpo.stacked() if isinstance(bank, mp.MPOBank)]
    plan = mp.plan_reconstruction(model, training=False)
    expected = sum(bank.recipe.multiply_adds for bank in banks)
    assert plan.cost("batched").multiply_adds == expected
    assert plan.cost("cached").multiply_adds == 0


def test_plans_choose_by_tokens_bonds_and_memory():
    model = mp.build("mpobert-12", head="none", device="meta", num_layers=3, max_bond=8)
    few = mp.plan_reconstruction(model, tokens=1, training=False, device="cpu")
    many = mp.plan_reconstruction(model, tokens=16384, training=False, device="cpu")
    assert (few.chosen, many.chosen) == ("factorized", "factorized")
    whole = mp.build("mpobert-12", head="none", device="meta", num_layers=3)
    many = mp.plan_reconstruction(whole, tokens=16384, training=False, device="cpu")
    assert many.chosen == "cached"
    on_gpu = mp.plan_reconstruction(
        model, tokens=1, training=False, device="cuda", dtype=torch.float16
    )
    assert on_gpu.chosen == "cached"
    limit = many.cost("cached").peak - 1
    less = mp.plan_reconstruction(
        whole, tokens=16384, training=False, device="cpu", memory_limit=limit
    )
    assert less.cost(less.chosen).peak <= limit
    assert "at most" in str(less)


def test_a_memory_limit_that_nothing_keeps_is_told():
    model = made("groups, adapters")
    plan = mp.plan_reconstruction(model, tokens=14)
    least = min(plan.costs, key=lambda cost: cost.peak)
    message = f"memory_limit must be at least {least.peak} bytes, which '{least.name}' needs, got 9"
    with pytest.raises(ConfigError, match=message):
        mp.plan_reconstruction(model, tokens=14, memory_limit=9)
    assert mp.plan_reconstruction(model, tokens=14, memory_limit=least.peak).chosen == least.name


def test_auto_sets_what_plans_choose():
    model = made("groups, adapters")
    found = mp.set_strategy(model, "auto", tokens=64)
    for training, name in ((True, found.training), (False, found.evaluation)):
        assert mp.plan_reconstruction(model, tokens=64, training=training).chosen == name
    assert {bank.strategy for bank in banks_with_cores(model)} == {found}
    only = mp.set_strategy(model, "auto", when="training", memory_limit=10**9)
    assert only.evaluation == found.evaluation


def banks_with_cores(model):
    return [bank for bank in model.bert.mpo.stacked() if isinstance(bank, mp.MPOBank)]


WRONG = [
    (
        {"name": "per_laier"},
        r"name must be one of auto, .*got 'per_laier'. Did you mean 'per_layer'",
    ),
    ({"name": 3}, "name must be one of auto, .*got 3"),
    ({"name": "once_per_step"}, "with mpobert_plugin.accumulate"),
    ({"name": "cached", "when": "training"}, "a strategy of training must be one of .*'cached'"),
    (
        {"name": "batched_recompute", "when": "evaluation"},
        "a strategy of evaluation must be one of",
    ),
    ({"name": "batched", "when": "test"}, "when must be 'training' or 'evaluation', got 'test'"),
    ({"name": "batched", "tokens": 3}, "tokens would be ignored beside name='batched'"),
    ({"name": "per_group", "group": 0}, "group must be a number of layers from 1 on, got 0"),
    ({"name": "auto", "tokens": 0}, "tokens must be .*got 0"),
    ({"name": "auto", "memory_limit": 0.5}, "memory_limit must be .*got 0.5"),
    ({"name": "auto", "dtype": torch.int8}, "dtype must be a floating-point type .*torch.int8"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_strategies_are_refused_and_change_nothing(options, message):
    model = made("groups, adapters")
    with pytest.raises(ConfigError, match=message):
        mp.set_strategy(model, **options)
    assert query_bank(model).strategy == Strategy()


def test_plain_models_have_no_strategy():
    for work in (mp.set_strategy, mp.plan_reconstruction):
        with pytest.raises(ConversionError, match="model must be converted"):
            work(tiny_bert())
    with pytest.raises(ConfigError, match="device must be one of cuda, cpu, got 'tpu'"):
        mp.plan_reconstruction(shared_bert(), device="tpu")
