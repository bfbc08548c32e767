"""Every family generates, runs its layers again in backward and compiles as a plain model does."""

from __future__ import annotations

import copy
import inspect
import io

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from transformers import DynamicCache

import mpobert_plugin as mp
from mpobert_plugin.locate import base_of, layer_names
from tests.mpobert_plugin.handing import assert_same_gradients, gradients
from tests.mpobert_plugin.models import checkpoint_layers, stir_adapters
from tests.mpobert_plugin.zoo import APART, CAUSAL, language_model, tiny, tokens

FAMILIES = [*APART, "albert"]


def compiled(*quick):
    """Return the families whose compilation tells something new at first; it takes seconds."""
    # The others have layers like those of these three.
    later = dict.fromkeys(("albert", "gpt2", "llama"), pytest.mark.slow)
    return [
        name if name in quick else pytest.param(name, marks=later.get(name, pytest.mark.nightly))
        for name in FAMILIES
    ]


def converted(model_type, **options):
    model = language_model(model_type, num_hidden_layers=3)
    fit = None if model_type == "albert" else "mean"
    mp.convert(model, **{"n": 3, "sharing": "all", "fit": fit, "adapter_rank": 2, **options})
    stir_adapters(model)
    return model


def loss_of(model):
    return model(tokens(model), labels=tokens(model)).loss


# Generation


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("model_type", CAUSAL)
def test_generation_is_that_of_the_plain_model(model_type, use_cache):
    model = language_model(model_type, num_hidden_layers=3)
    options = {
        "max_new_tokens": 8,
        "do_sample": False,
        "use_cache": use_cache,
        "eos_token_id": None,
    }
    before = model.generate(tokens(model), **options)
    mp.convert(model, n=3)
    after = model.generate(tokens(model), **options)
    assert before.shape == (2, 15)
    assert torch.equal(after, before)


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2"])
def test_a_cache_of_keys_gives_what_the_whole_text_gives(model_type):
    model = converted(model_type)
    text = tokens(model, rows=2, length=9)
    # transformers has renamed the argument.
    name = {"cache", "past_key_values"} & set(inspect.signature(model.forward).parameters)
    with torch.no_grad():
        whole = model(text).logits
        cache = dict.fromkeys(name, DynamicCache(config=model.config))
        parts = [model(token, use_cache=True, **cache).logits for token in text.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_beams_and_samples_of_a_shared_model():
    model = converted("llama")
    plain = mp.merge(model)
    for options in ({"num_beams": 3}, {"do_sample": True, "top_k": 5}):
        torch.manual_seed(0)
        ours = model.generate(tokens(model), max_new_tokens=6, eos_token_id=None, **options)
        torch.manual_seed(0)
        theirs = plain.generate(tokens(model), max_new_tokens=6, eos_token_id=None, **options)
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_caches_of_fixed_size_and_assistants(model_type):
    model, small = (language_model(model_type, num_hidden_layers=k) for k in (2, 1))
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    one = tokens(model)[:1]
    before = model.generate(one, **options)
    mp.convert(model, n=3)
    mp.convert(small, n=3)
    fixed = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(one, **options, **fixed), before)
    assert torch.equal(model.generate(one, assistant_model=small, **options), before)


def test_cross_attention_stays_plain():
    model = tiny("gpt2", "LMHeadModel", add_cross_attention=True, num_hidden_layers=2)
    encoded = torch.randn(2, 5, 32)
    with torch.no_grad():
        before = model(tokens(model), encoder_hidden_states=encoded).logits
        mp.convert(model, n=3)
        after = model(tokens(model), encoder_hidden_states=encoded).logits
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    assert type(model.transformer.h[0].crossattention.c_attn).__name__ == "Conv1D"


# Gradient checkpointing


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_layers_run_again_in_backward(model_type, reentrant):
    model = converted(model_type).train()
    loss_of(model).backward()
    expected = gradients(model)
    model.zero_grad()
    checkpoint_layers(model, reentrant)
    runs = []
    layer = base_of(model).get_submodule(layer_names(model)[1])
    first = next(module for module in layer.modules() if isinstance(module, mp.MPOLinear))
    first.register_forward_pre_hook(lambda *_: runs.append(1))
    loss_of(model).backward()
    assert len(runs) == 2
    assert_same_gradients(gradients(model), expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m26_adapters_train_behind_a_frozen_model(model_type):
    model = converted(model_type).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("adapter" in name)
    loss_of(model).backward()
    expected = gradients(model)
    model.zero_grad()
    loss_of(checkpoint_layers(model, reentrant=False)).backward()
    assert_same_gradients(gradients(model), expected)
    assert expected
    assert all("adapter" in name for name in expected)


def test_groups_of_several_layers_run_again_in_backward():
    sizes = {"num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 4}
    model = mp.convert(tiny("albert", "MaskedLM", **sizes), n=3).train()
    loss_of(model).backward()
    expected = gradients(model)
    model.zero_grad()
    loss_of(checkpoint_layers(model, reentrant=False)).backward()
    assert_same_gradients(gradients(model), expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_m04_a_pickled_model_is_the_same(model_type):
    model = converted(model_type)
    pickled = io.BytesIO()
    torch.save(model, pickled)
    pickled.seek(0)
    other = torch.load(pickled, weights_only=False)
    assert torch.equal(other(tokens(model))[0], model(tokens(model))[0])
    assert mp.account(other) == mp.account(model)
    mp.assert_shared(other)


@pytest.mark.parametrize("model_type", ["albert", "mpnet"])
def test_hosts_without_checkpointing_get_it_and_stay_what_they_are(model_type):
    plain = language_model(model_type)
    assert not plain.supports_gradient_checkpointing
    layer_class = type(base_of(plain).get_submodule(layer_names(plain)[0]))
    model = mp.convert(plain)
    layer = base_of(model).get_submodule(layer_names(model)[0])
    assert isinstance(layer, layer_class)
    assert type(layer).__name__ == layer_class.__name__
    assert model.supports_gradient_checkpointing
    assert base_of(model).supports_gradient_checkpointing
    output = model(tokens(model))
    pickled = io.BytesIO()
    torch.save(model, pickled)
    pickled.seek(0)
    for other in (copy.deepcopy(model), torch.load(pickled, weights_only=False)):
        assert torch.equal(other(tokens(model))[0], output[0])
        own = base_of(other).get_submodule(layer_names(other)[0])
        assert type(own) is type(layer)
        assert own is not layer
    found = model(tokens(model), output_hidden_states=True).hidden_states
    assert len(found) == model.config.num_hidden_layers + 1
    merged = mp.merge(checkpoint_layers(model, reentrant=False))
    assert not merged.supports_gradient_checkpointing
    assert type(base_of(merged).get_submodule(layer_names(merged)[0])) is layer_class


# Compilation


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graph_loss(output):
    return (output[0] * torch.linspace(-1, 1, output[0].shape[-1])).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("train", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("model_type", compiled("llama"))
def test_a_compiled_model_is_one_graph(model_type, train):
    model = converted(model_type).train(train)
    with torch.set_grad_enabled(train):
        expected = model(tokens(model))[0]
        counter = CompileCounter()
        run = torch.compile(model, backend=counter, fullgraph=True)
        for _ in range(2):
            output = run(tokens(model))[0]
    assert counter.frame_count == 1
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", compiled("gpt2"))
def test_compiled_layers_share_the_graphs_that_plain_layers_share(model_type):
    # Plain layers that know their number get a graph each; conversion adds none.
    plain = language_model(model_type, num_hidden_layers=3)
    if model_type == "albert":
        plain = mp.merge(mp.convert(plain, n=3, sharing="all"))
    graphs = [compiled_layers(model.train()) for model in (plain, converted(model_type))]
    assert graphs[1] == graphs[0]
    assert graphs[1] == (3 if model_type in CAUSAL else 1)


def compiled_layers(model):
    expected = model(tokens(model))[0]
    torch._dynamo.reset()
    counter = CompileCounter()
    for name in layer_names(model):
        base_of(model).get_submodule(name).compile(backend=counter, fullgraph=True)
    for _ in range(2):
        output = model(tokens(model))[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    return counter.frame_count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", [pytest.param("albert", marks=pytest.mark.slow), "gpt2"])
def test_a_compiled_base_model_reads_matrices_that_its_hook_made(model_type):
    model = tiny(model_type, num_hidden_layers=2)
    mp.convert(model, n=3)
    graphs = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return graph

    with torch.no_grad():
        expected = model(tokens(model))[0]
        output = torch.compile(model, backend=keep, fullgraph=True)(tokens(model))[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    assert len(graphs) == 1
    # Rebuilding multiplies matrices; attention and linear layers go by other names.
    called = {str(getattr(node.target, "__name__", node.target)) for node in graphs[0].graph.nodes}
    assert not called & {"matmul", "bmm", "baddbmm", "mm", "addmm"}
    assert torch._dynamo.explain(model)(tokens(model)).graph_break_count == 0


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("model_type", ["albert", "gpt2", "llama"])
def test_gradients_of_a_compiled_model(model_type, checkpointed):
    model = converted(model_type).train()
    if checkpointed:
        checkpoint_layers(model, reentrant=False)
    graph_loss(model(tokens(model))).backward()
    expected = gradients(model)
    model.zero_grad()
    counter = CompileCounterWithBackend("aot_eager")
    graph_loss(torch.compile(model, backend=counter)(tokens(model))).backward()
    assert_same_gradients(gradients(model), expected, atol=1e-4)
