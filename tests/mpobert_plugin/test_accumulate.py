"""Matrices rebuilt once for several backwards give the gradients of rebuilding for each."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mpobert_plugin as mp
from mpobert_plugin.errors import ChangedTensorError, ConfigError, ConversionError
from tests.mpobert_plugin.handing import (
    assert_same_gradients,
    gradients,
    loss_of,
    query_bank,
    shared_bert,
)
from tests.mpobert_plugin.models import (
    checkpoint_layers,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
)

MODELS = {
    "groups, adapters": lambda: shared_bert(adapter_rank=2),
    "everything shared": lambda: mp.convert(tiny_albert(), sharing="albert"),
    "nothing shared": lambda: mp.convert(tiny_bert(), n=3),
    "embedding": lambda: mp.convert(tiny_bert(), targets=["embedding", "query"], n=3),
}


def made(name="groups, adapters"):
    model = MODELS[name]().train()
    stir_adapters(model)
    return model


def micro_batches(model, count=3):
    for shift in range(count):
        (loss_of(model, shift) / count).backward()


def apart(model):
    model.zero_grad()
    micro_batches(model)
    return gradients(model)


def together(model, **options):
    model.zero_grad()
    with mp.accumulate(model, **options):
        micro_batches(model)
    return gradients(model)


# Every strategy on one model, and two that differ most on the others.
PAIRS = [
    pytest.param(
        name, strategy,
        marks=[] if name == "groups, adapters" or strategy in ("batched", "factorized")
        else pytest.mark.slow,
    )
    for name in MODELS
    for strategy in ("batched", "batched_recompute", "per_layer", "factorized")
]  # fmt: skip


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_gradients_are_those_of_rebuilding_for_each_micro_batch(name, strategy):
    model = made(name)
    expected = apart(model)
    mp.set_strategy(model, strategy, when="training")
    found = together(model)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        error = (found[parameter] - gradient).norm() / gradient.norm().clamp_min(1e-8)
        # Two gradients of sums in another order, each rounded by half of 1.2e-7 many times.
        assert error < 2e-6, parameter
    model = model.double()
    assert_same_gradients(together(model), apart(model), atol=1e-14)


def test_matrices_are_rebuilt_once(monkeypatch):
    from mpobert_plugin import once

    calls = []
    join = once.join
    monkeypatch.setattr(once, "join", lambda *a: calls.append(1) or join(*a))
    together(made())
    assert len(calls) == 6


@pytest.mark.parametrize("reentrant", [True, False])
def test_with_checkpointed_layers(reentrant):
    model = made()
    expected = apart(model)
    checkpoint_layers(model, reentrant)
    assert_same_gradients(together(model), expected)


def test_steps_with_clipping_end_where_the_others_end():
    ours, theirs = made(), made()
    for model, inside in ((ours, True), (theirs, False)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            if inside:
                with mp.accumulate(model):
                    micro_batches(model)
            else:
                micro_batches(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-4)


def test_gradients_add_to_those_that_are_there():
    model = made()
    expected = apart(model)
    model.zero_grad()
    for _ in range(2):
        with mp.accumulate(model):
            micro_batches(model)
    twice = {name: 2 * gradient for name, gradient in expected.items()}
    assert_same_gradients(gradients(model), twice, atol=2e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_half_precision_is_added_up_in_float32(exact):
    model = made()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = apart(model), together(model, exact=exact)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 2e-2 * gradient.norm() + 1e-6, name
    with mp.accumulate(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            micro_batches(model)
        (leaf,) = query_bank(model).once.leaves.values()
        assert (leaf.matrices.dtype, leaf.total.dtype) == (torch.bfloat16, torch.float32)


def test_evaluation_inside_a_block():
    model = made()
    expected = apart(model)
    model.zero_grad()
    with mp.accumulate(model):
        (loss_of(model) / 3).backward()
        before = logits(model.eval())
        model.train()
        for shift in (1, 2):
            (loss_of(model, shift) / 3).backward()
    assert_same_gradients(gradients(model), expected)
    assert torch.equal(logits(model.eval()), before)


def test_a_block_without_backward_and_one_without_forward():
    model = made()
    with mp.accumulate(model):
        loss_of(model)
    with mp.accumulate(model):
        pass
    assert not gradients(model)
    assert query_bank(model).once is None


def test_an_error_inside_gives_the_cores_nothing_and_ends_the_block():
    model = made()

    def stop():
        with mp.accumulate(model):
            loss_of(model).backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop()
    assert query_bank(model).central.grad is None
    assert query_bank(model).once is None
    model.zero_grad()
    assert_same_gradients(together(model), apart(model))


def test_a_step_inside_a_block_is_refused():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with mp.accumulate(model):
            loss_of(model).backward()
            with torch.no_grad():
                query_bank(model).central.mul_(2.0)

    message = r"must not be modified while gradients are accumulated, .* 'central' in bank 'query'"
    with pytest.raises(ChangedTensorError, match=message):
        step()
    assert query_bank(model).once is None
    optimizer.step()


def test_blocks_inside_one_another_are_refused():
    model = made()
    with mp.accumulate(model):
        with pytest.raises(ConfigError, match="inside another block"), mp.accumulate(model):
            pass
        assert query_bank(model).once is not None
        loss_of(model).backward()
    assert query_bank(model).central.grad is not None


def test_plain_models_are_refused():
    with (
        pytest.raises(ConversionError, match="model must be converted"),
        mp.accumulate(tiny_bert()),
    ):
        pass


@pytest.fixture
def mesh(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("apart", [True, False])
def test_sharded_banks_are_refused(mesh, apart):
    model = made()
    for bank in model.bert.mpo.stacked() if apart else ():
        fully_shard(bank, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    message = r"whole tensors in its banks .* got 'auxiliary_0' of bank 'query' sharded"
    with pytest.raises(ConfigError, match=message), mp.accumulate(model):
        pass
    assert query_bank(model).once is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("strategy", ["batched", "per_group", "per_layer", "factorized"])
def test_strategies_with_sharded_banks(mesh, apart, strategy):
    plain, model = made(), made()
    mp.set_strategy(model, strategy, when="training")
    for bank in model.bert.mpo.stacked() if apart else ():
        fully_shard(bank, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for each in (plain, model):
        micro_batches(each, 2)
    ours = {name: gradient.full_tensor() for name, gradient in gradients(model).items()}
    assert_same_gradients(ours, gradients(plain))


def test_copies_made_inside_a_block_do_not_accumulate():
    model = made()
    with mp.accumulate(model):
        loss_of(model).backward()
        twin = copy.deepcopy(model)
        assert query_bank(twin).once is None
        twin.zero_grad()
        loss_of(twin).backward()
        assert query_bank(twin).central.grad is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nothing_is_left_of_a_block(kind):
    model = made()
    with mp.accumulate(model):
        with torch.autocast("cpu", dtype=kind, enabled=kind != torch.float32):
            micro_batches(model)
        leaves = [weakref.ref(leaf) for leaf in query_bank(model).once.leaves.values()]
        assert leaves
    assert [leaf() for leaf in leaves] == [None] * len(leaves)
