"""Layers that run again in backward, and compiled ones: the same numbers, one graph for all."""

from __future__ import annotations

import copy
import types
from functools import partial

import pytest
import torch

from mpobert_plugin.accumulate import accumulate
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.locate import base_of, layer_names
from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.layers import LayerCalls
from mpobert_plugin.train.settings import PretrainConfig
from tests.mpobert_plugin.train.computing import (
    HOSTS,
    apart,
    batches,
    engine_of,
    model_of,
    reseed,
    stepped,
)


def layers_of(model):
    base = base_of(model)
    return [base.get_submodule(name) for name in layer_names(model)]


@pytest.mark.parametrize(
    ("host", "recompute"),
    [*((h, "layers") for h in HOSTS), *((h, "selective") for h in HOSTS), ("mpobert", "every_2")],
)
def test_layers_that_run_again_give_the_same_bits_with_dropout(host, recompute):
    plain, wanted = stepped(engine_of(model_of(host, dropout=0.1).train()))
    result, found = stepped(engine_of(model_of(host, dropout=0.1).train(), recompute=recompute))
    assert torch.equal(found, wanted)
    assert torch.equal(result.numbers, plain.numbers)


@pytest.mark.parametrize("network", ["half", "autocast"])
@pytest.mark.parametrize(
    ("once", "recompute"), [(True, "layers"), (False, "layers"), (True, "selective")]
)
def test_the_same_bits_in_half_precision_and_with_matrices_of_the_step(network, once, recompute):
    found = []
    for each in ("none", recompute):
        model = model_of("mpobert", layers=3, dropout=0.1).train()
        options = {"around": partial(accumulate, model)} if once else {}
        engine = engine_of(model, "bf16", network, recompute=each, **options)
        found.append(stepped(engine)[1])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("recompute", "runs"),
    [("none", [1, 1, 1, 1]), ("layers", [2, 2, 2, 2]), ("every_3", [2, 1, 1, 2])],
)
def test_which_layers_run_again(recompute, runs, monkeypatch):
    model = model_of("mpobert", layers=4)
    engine = engine_of(model, recompute=recompute)
    seen = [0, 0, 0, 0]
    for number, layer in enumerate(layers_of(model)):
        real = layer.attention.query.forward

        def counted(x, number=number, real=real):
            seen[number] += 1
            return real(x)

        monkeypatch.setattr(layer.attention.query, "forward", counted)
    engine.step(batches(1))
    assert seen == runs
    # Nothing is run again where there is no backward.
    with torch.no_grad():
        engine.losses(batches(1)[0])
    assert seen == [run + 1 for run in runs]


def test_layers_that_run_again_keep_less_alive():
    kept = {}
    for recompute in ("none", "every_2", "layers"):
        engine = engine_of(model_of("mpobert", layers=4), recompute=recompute)
        held = {}

        def pack(tensor, held=held):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = engine.losses(batches(1, rows=4, length=32)[0]).mean(torch.tensor([9, 3]))
        kept[recompute] = sum(held.values())
        del loss
    assert kept["layers"] < kept["every_2"] < kept["none"]


def test_products_run_once_when_what_runs_again_is_selective():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.counts = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.__name__.split(".")[0]
            self.counts[name] = self.counts.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    found = {}
    for recompute in ("none", "selective", "layers"):
        engine = engine_of(model_of("bert", layers=4), "bf16", "half", recompute=recompute)
        with Products() as products:
            engine.step(batches(1))
        found[recompute] = products.counts
    attention = next(name for name in found["none"] if name.startswith("_scaled_dot_product"))
    for name in ("addmm", attention):
        assert found["selective"][name] == found["none"][name] < found["layers"][name]
    assert found["selective"]["gelu"] == found["layers"]["gelu"] == 2 * 4 + 1


def test_outside_a_step_the_layers_are_their_own():
    model = model_of("mpobert")
    engine = engine_of(model, recompute="layers")
    with engine.network.computing():
        assert all("forward" in vars(layer) for layer in layers_of(model))
    assert not any("forward" in vars(layer) for layer in layers_of(model))
    other = copy.deepcopy(model)
    assert torch.equal(stepped(engine_of(other))[1], stepped(engine)[1])


@pytest.fixture
def counter():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def full(batch):
    sizes = torch.full_like(batch.sizes, batch.input_ids.shape[1])
    return Batch(**{**vars(batch), "sizes": sizes})


# torch warns of what its own compiler does.
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_are_one_graph():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    engine = engine_of(model_of(layers=4).train(), "bf16", "half", "layers", backend=counter)
    _, found = stepped(engine)
    assert counter.frame_count == 1
    # The graph was changed, and rounds at other places.
    assert apart(found, stepped(engine_of(model_of(layers=4).train(), "bf16", "half"))[1]) < 2**-7
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", ["half", "autocast"])
@pytest.mark.parametrize("host", ["bert", "mpobert"])
def test_compiled_layers_are_one_graph_for_each_way_of_running(host, network, counter):
    _, wanted = stepped(engine_of(model_of(host, layers=5), "bf16", network))
    model = model_of(host, layers=5).train()
    engine = engine_of(model, "bf16", network, "layers", backend=counter)
    _, found = stepped(engine)
    assert apart(found, wanted) < 2.0**-6
    # Under autocast the first layer gets another type than the others.
    most = 1 if network == "half" else 2
    assert counter.frame_count <= most
    stepped(engine)
    assert counter.frame_count <= most
    model.eval()
    with torch.no_grad():
        engine.losses(batches(1)[0])
        engine.losses(batches(2)[1])
    # The first evaluation rebuilds matrices, later ones have them.
    assert counter.frame_count <= 3 * most
    model.train()
    engine.step([full(batch) for batch in batches()], reseed)
    assert counter.frame_count <= 4 * most


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_that_run_again(counter):
    _, wanted = stepped(engine_of(model_of("mpobert", dropout=0.1).train(), "bf16", "half"))
    model = model_of("mpobert", dropout=0.1).train()
    engine = engine_of(model, "bf16", "half", "layers", "layers", backend=counter)
    _, found = stepped(engine)
    assert apart(found, wanted) < 2.0**-6
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("host", ["bert", "mpobert"])
def test_compiled_by_the_real_compiler(host):
    torch._dynamo.reset()
    _, wanted = stepped(engine_of(model_of(host)))
    engine = engine_of(model_of(host), compiled="layers", backend="inductor")
    _, found = stepped(engine)
    assert apart(found, wanted) < 1e-5
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_cannot_be_compiled_is_an_error(counter):
    model = model_of("bert")

    class Strange(type(layers_of(model)[0])):
        def forward(self, hidden, *args, **kwargs):
            if float(hidden.detach().sum().item()) > 1e9:
                return hidden
            return super().forward(hidden, *args, **kwargs)

    layers_of(model)[0].__class__ = Strange
    engine = engine_of(model, compiled="layers", backend=counter)
    with pytest.raises(ConfigError, match=r"compile='layers' needs layers that torch .* Use compi"):
        engine.step(batches(1))
    assert not any("forward" in vars(layer) for layer in layers_of(model))


@pytest.mark.filterwarnings("ignore")
def test_a_machine_without_a_compiler_is_named():
    def broken(graph, inputs):
        raise RuntimeError("there is no compiler here")

    torch._dynamo.reset()
    engine = engine_of(model_of("bert"), compiled="layers", backend=broken)
    with pytest.raises(ConfigError, match=r"got BertLayer and: .*there is no compiler here"):
        engine.step(batches(1))
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "word"), [("compile", "layer"), ("recompute", "every_5")])
def test_unknown_words_are_refused(name, word):
    with pytest.raises(ConfigError, match=f"{name} must be 'none', 'layers'.*got '{word}'"):
        PretrainConfig(**{name: word})


def test_what_a_compiled_layer_chooses_by_itself():
    message = (
        "recompute='selective' needs compile='none', got 'layers'. A compiled layer chooses by "
        "itself what it computes again: use recompute='none', or 'layers'."
    )
    with pytest.raises(ConfigError) as caught:
        PretrainConfig(recompute="selective", compile="layers")
    assert str(caught.value) == message


def test_nothing_is_installed_without_need():
    model = model_of("bert")
    with LayerCalls(model).installed():
        assert all(isinstance(layer.forward, types.MethodType) for layer in layers_of(model))
