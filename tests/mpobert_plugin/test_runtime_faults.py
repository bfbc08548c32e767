"""Forwards that meet: threads, recomputed layers, other devices, writes past autograd."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize, prune
from transformers import AutoModelForMaskedLM, PreTrainedModel

import mpobert_plugin as mp
from mpobert_plugin.errors import PlacementError, SharingError
from mpobert_plugin.fingerprint import fingerprint
from mpobert_plugin.saving import check_places
from tests.mpobert_plugin.handing import (
    assert_same_gradients,
    gradients,
    loss_of,
    query_bank,
    reader_of,
    shared_bert,
)
from tests.mpobert_plugin.models import ids, logits

# Writes that move no version counter


def through_data(core):
    core.data.mul_(1.5)


def through_numpy(core):
    core.detach().numpy()[...] *= 1.5


def through_averages(core):
    core.data.copy_(core.data.lerp(torch.ones_like(core), 0.5))


def one_element(core):
    core.data.view(-1)[7] += 0.25


def two_exchanged(core):
    flat = core.data.view(-1)
    flat[[3, 8]] = flat[[8, 3]].clone()


def reversed_order(core):
    core.data.copy_(core.data.flip(-1))


def negated(core):
    core.data.neg_()


WRITES = [
    through_data,
    through_numpy,
    through_averages,
    one_element,
    two_exchanged,
    reversed_order,
    negated,
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["central", "auxiliary_1", "adapter_up"])
def test_a3_the_cache_notices_writes_past_autograd(write, name):
    model = shared_bert(adapter_rank=2)
    torch.nn.init.normal_(query_bank(model).adapter_up)
    logits(model)
    before = query_bank(model)._cache
    write(query_bank(model).tensors()[name])
    after = logits(model)
    assert query_bank(model)._cache is not before
    mp.set_cache(model, False)
    torch.testing.assert_close(after, logits(model), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 4, 511, 512, 4099])
def test_a3_a_fingerprint_tells_single_bits(dtype, size):
    tensor = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    mark = fingerprint([tensor])
    assert torch.equal(mark, fingerprint([tensor.clone()]))
    for place in {0, size // 2, size - 1}:
        other = tensor.clone()
        other[place] = torch.nextafter(other[place].double(), torch.tensor(9.0).double()).to(dtype)
        other[place] += 0 if dtype == torch.float64 else 0.01
        assert not torch.equal(mark, fingerprint([other]))
    assert torch.equal(fingerprint([tensor * torch.nan]), fingerprint([tensor * torch.nan]))


@pytest.mark.filterwarnings("ignore")
def test_a3_a_trace_follows_later_writes():
    model = shared_bert()
    model(ids())
    traced = torch.jit.trace(model, ids(), strict=False)
    through_data(query_bank(model).central)
    torch.testing.assert_close(traced(ids())["logits"], logits(model), rtol=0, atol=1e-5)


# Writes into what is read only


@pytest.mark.parametrize("mode", [True, False])
def test_c5_writing_into_a_readers_weight_changes_nothing(mode):
    model = shared_bert().train(mode)
    before = logits(model)
    with torch.no_grad():
        for reader in (reader_of(model), model.bert.encoder.layer[1].output.LayerNorm):
            reader.weight.mul_(3.0)
            reader.bias.add_(1.0)
    assert torch.equal(logits(model), before)


def test_c5_a_hook_cannot_write_into_the_cache():
    model = shared_bert()
    before = logits(model)

    def write(module, *_):
        module.weight.mul_(3.0)

    handle = reader_of(model).register_forward_hook(write)
    logits(model)
    handle.remove()
    assert torch.equal(logits(model), before)


# Threads


def in_thread(work):
    """Start a thread that repeats some work; the function returned stops it, with its errors."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def run():
        try:
            while not stop.is_set():
                work()
        except (RuntimeError, ValueError, AssertionError) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end():
        stop.set()
        thread.join()
        return errors

    return end


def test_a4_a_forward_without_gradient_in_another_thread():
    model = shared_bert().train()
    loss_of(model).backward()
    expected = gradients(model)
    end = in_thread(lambda: logits(model))
    try:
        for _ in range(25):
            model.zero_grad()
            loss_of(model).backward()
            assert_same_gradients(gradients(model), expected)
    finally:
        assert not end()


def test_a4_autocast_in_another_thread():
    model = shared_bert()
    expected = logits(model)

    def half():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert query_bank(model).weights()[0].dtype == torch.bfloat16
            logits(model)

    end = in_thread(half)
    try:
        for _ in range(40):
            assert query_bank(model).weights()[0].dtype == torch.float32
            assert torch.equal(logits(model), expected)
    finally:
        assert not end()


def test_a4_each_thread_reads_what_it_was_handed():
    model = shared_bert().train()
    reader, seen = reader_of(model), []

    def look(module, *_):
        other = threading.Thread(target=lambda: seen.append(module.handed))
        other.start()
        other.join()
        seen.append(module.handed is not None)

    reader.register_forward_hook(look)
    loss_of(model)
    assert seen == [None, True]
    assert copy.deepcopy(reader).handed is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a4_compiled_models_in_a_thread(whole):
    from torch._dynamo.testing import CompileCounter

    model = shared_bert(layers=2).train()
    expected = model(ids())[0]
    torch._dynamo.reset()
    counter = CompileCounter()
    if whole:
        run = torch.compile(model, backend=counter, fullgraph=True)
    else:
        run = model
        for layer in model.bert.encoder.layer:
            layer.compile(backend=counter, fullgraph=True)
    outputs = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: outputs.append(run(ids())[0]))
        thread.start()
        thread.join()
    outputs.append(run(ids())[0])
    assert len(outputs) == 3
    for output in outputs:
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
    assert counter.frame_count == 1
    torch._dynamo.reset()


# Banks that are elsewhere

ELSEWHERE = {
    "everything": {"": "disk"},
    "banks": {"bert.embeddings": "cpu", "bert.encoder": "cpu", "bert.mpo": "disk", "cls": "cpu"},
    "layers": {"bert.embeddings": "cpu", "bert.encoder": "disk", "bert.mpo": "cpu", "cls": "cpu"},
    "sequential": "sequential",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ELSEWHERE)
def test_b2_banks_on_disk(place, tmp_path):
    model = shared_bert(adapter_rank=2)
    model.save_pretrained(tmp_path / "model")
    options = {"max_memory": {"cpu": "60KB"}} if place == "sequential" else {}
    loaded = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "model",
        device_map=ELSEWHERE[place],
        offload_folder=tmp_path / "offload",
        **options,
    )
    for _ in range(2):
        torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)
    if place == "banks":
        assert all(parameter.is_meta for parameter in query_bank(loaded).parameters())
        assert query_bank(loaded)._cache is None
        x = torch.randn(1, 3, 32)
        with torch.no_grad():
            torch.testing.assert_close(reader_of(loaded)(x), reader_of(model)(x))


def test_b2_a_bank_split_over_devices_is_named():
    model = shared_bert()
    bank = query_bank(model)
    bank.central = torch.nn.Parameter(bank.central.detach().to("meta"))
    with pytest.raises(PlacementError, match=r"bank 'query'.*'central' on meta"):
        model(ids())


def test_b2_a_bank_without_values_is_named():
    model = shared_bert()
    query_bank(model).to("meta")
    with pytest.raises(PlacementError, match=r"bank 'query'.*meta.*cpu"):
        model(ids())


@pytest.fixture
def mesh(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("apart", [True, False])
def test_banks_that_are_sharded(mesh, apart):
    plain, model = shared_bert(), shared_bert()
    for bank in model.bert.mpo.stacked() if apart else ():
        fully_shard(bank, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for _ in range(2):
        torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=1e-6)
    loss_of(plain.train()).backward()
    loss_of(model.train()).backward()
    ours = {name: gradient.full_tensor() for name, gradient in gradients(model).items()}
    assert_same_gradients(ours, gradients(plain))


def test_banks_that_are_sharded_are_saved_once_they_are_gathered(mesh, tmp_path):
    model = fully_shard(shared_bert(), mesh=mesh)
    folder = tmp_path / "saved"
    text = (
        r"must be whole, got \d+ of \d+ sharded over processes: .*bert\.mpo\.query\.central, .*"
        r"StateDictOptions\(full_state_dict=True, .*state_dict=whole\).* Nothing was written\."
    )
    for options in ({}, {"state_dict": model.state_dict()}, {"distributed_checkpoint": True}):
        with pytest.raises(SharingError, match=text):
            model.save_pretrained(folder, **options)
    assert not folder.exists()
    # What transformers has cut itself it puts together again.
    model.config.distributed_config = SimpleNamespace(dp_size=2, to_dict=dict)
    check_places(model)
    model.config.distributed_config = None
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    model.save_pretrained(folder, state_dict=whole)
    loaded = AutoModelForMaskedLM.from_pretrained(folder)
    torch.testing.assert_close(logits(loaded), logits(shared_bert()), rtol=0, atol=1e-6)


@pytest.mark.skipif(
    not hasattr(PreTrainedModel, "should_save_on_this_rank"), reason="each process writes"
)
def test_processes_that_write_nothing_may_have_nothing_to_save(monkeypatch, tmp_path):
    model = shared_bert()
    # All but the first process of a group are given an empty dictionary by what gathers.
    monkeypatch.setattr(type(model), "should_save_on_this_rank", lambda self, main: False)
    model.save_pretrained(tmp_path, state_dict={})
    assert not list(tmp_path.iterdir())


# Tensors that are computed from parameters


class Doubled(torch.nn.Module):
    def forward(self, tensor):
        return 2.0 * tensor


def prune_core(bank):
    prune.random_unstructured(bank, "central", 0.5)


def parametrize_core(bank):
    parametrize.register_parametrization(bank, "central", Doubled())


@pytest.mark.parametrize("change", [prune_core, parametrize_core])
def test_a_core_computed_from_a_parameter_is_read_as_it_is(change):
    model = shared_bert()
    before = logits(model)
    change(query_bank(model))
    twin = shared_bert()
    with torch.no_grad():
        query_bank(twin).central.copy_(query_bank(model).central)
    assert not torch.equal(before, logits(model))
    torch.testing.assert_close(logits(model), logits(twin), rtol=0, atol=1e-6)
    loss_of(model.train()).backward()
    assert sum(p.grad is not None for p in query_bank(model).parameters()) == 6


def test_replicas_of_a_model_read_their_own_banks():
    model = shared_bert().train()
    replica = replicate_here(model)
    output = replica(ids())[0]
    torch.testing.assert_close(output, 0 * output + model(ids())[0], rtol=0, atol=1e-6)
    output.sum().backward()
    assert query_bank(model).central.grad is None
    assert query_bank(replica).central.grad is not None


def replicate_here(model):
    """Return a replica as DataParallel makes it, with copies of the parameters as attributes."""
    modules = list(model.modules())
    replicas = [module._replicate_for_data_parallel() for module in modules]
    of = {id(module): replica for module, replica in zip(modules, replicas, strict=True)}
    for module, replica in zip(modules, replicas, strict=True):
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else of[id(child)])
        for name, parameter in module._parameters.items():
            if parameter is not None:
                replica._parameters.pop(name, None)
                setattr(replica, name, parameter.detach().clone().requires_grad_())
    return of[id(model)]
