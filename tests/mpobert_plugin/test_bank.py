"""Banks: reconstruction, what is handed out, and the evaluation cache."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mpobert_plugin as mp
from mpobert_plugin.reconstruct import rebuild, recipe
from mpobert_plugin.spec import BankSpec
from tests.mpobert_plugin.models import dense_matrix, ids, logits, tiny_albert, tiny_bert


def query_bank(model):
    return model.base_model.mpo["query"]


def shared_bert(layers=4, **options):
    model = tiny_bert(num_hidden_layers=layers)
    return mp.convert(model, sharing="groups:2", fit="mean", **options)


@st.composite
def specs(draw):
    sites = draw(st.integers(1, 5))
    dims = st.lists(st.integers(1, 3), min_size=sites, max_size=sites).map(tuple)
    rows, cols = draw(dims), draw(dims)
    inner = draw(st.lists(st.integers(1, 3), min_size=sites - 1, max_size=sites - 1))
    layers = draw(st.integers(1, 5))

    def slices():
        given = draw(st.lists(st.integers(0, 3), min_size=layers, max_size=layers))
        seen: dict[int, int] = {}
        return tuple(seen.setdefault(number, len(seen)) for number in given)

    cut = draw(st.integers(0, 1))
    return BankSpec(
        role="query",
        rows=max(1, math.prod(rows) - cut),
        cols=max(1, math.prod(cols) - cut),
        row_dims=rows,
        col_dims=cols,
        bond_dims=(1, *inner, 1),
        central=slices(),
        auxiliary=slices(),
        adapter_rank=draw(st.integers(0, 2)),
        adapter_alpha=3.0,
    )


@given(specs())
def test_reconstruction_equals_contracting_each_layer(spec):
    bank = mp.MPOBank(spec, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for parameter in bank.parameters():
        parameter.data.normal_(generator=generator)
    matrices = rebuild(spec, recipe(spec), bank.tensors(), torch.float64)
    for layer, matrix in enumerate(matrices):
        own = {name: t[bank.slices()[name][layer]] for name, t in bank.tensors().items()}
        expected = dense_matrix(bank, own)
        torch.testing.assert_close(matrix, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(bank.values_of(layer)[0], expected, rtol=1e-12, atol=1e-12)


def test_order_is_chosen_by_multiply_adds():
    layers = tuple(range(3))
    wide = BankSpec("q", 16, 64, (2, 2, 4), (2, 2, 16), (1, 4, 64, 1), (0, 0, 0), layers)
    left = 4 * 4 * 4 * 64 + 4 * 4 * 64 * 64
    right = 4 * 4 * 64 * 64 + 4 * 4 * 4 * 64
    assert recipe(wide).multiply_adds == 3 * min(left, right)
    tall = BankSpec("q", 256, 8, (64, 2, 2), (2, 2, 2), (1, 8, 4, 1), (0, 0, 0), layers)
    assert not recipe(tall).left_first
    assert recipe(tall).multiply_adds == 3 * (8 * 4 * 4 * 4 + 128 * 8 * 4 * 4)


def test_equal_pairs_are_rebuilt_once():
    model = mp.convert(tiny_albert(), sharing="albert")
    matrices = query_bank(model).weights()
    assert len(matrices) == 4
    assert all(matrix is matrices[0] for matrix in matrices)


def test_layers_get_their_weights_and_give_them_back():
    model = shared_bert().train()
    seen = []
    reader = model.bert.encoder.layer[2].attention.self.query
    reader.register_forward_hook(lambda module, *_: seen.append(module.handed[0]))
    model(ids())
    assert seen[0].requires_grad
    assert reader.handed is None
    with pytest.raises(RuntimeError):
        model(inputs_embeds=torch.zeros(1, 3, 5))
    assert reader.handed is None


def test_a_layer_called_alone_rebuilds_its_own():
    model = shared_bert(adapter_rank=2)
    layer = model.bert.encoder.layer[2]
    x = torch.randn(1, 3, 32)
    for mode in (True, False):
        model.train(mode)
        out = layer.attention.self.query(x)
        torch.testing.assert_close(
            out, x @ query_bank(model).weights()[2].T + layer.attention.self.query.bias
        )
        out.sum().backward()
        assert query_bank(model).central.grad is not None
        model.zero_grad()


def test_reader_looks_like_a_linear_layer_and_is_read_only():
    query = shared_bert().bert.encoder.layer[1].attention.self.query
    assert (query.in_features, query.out_features) == (32, 32)
    assert query.weight.shape == (32, 32)
    assert query.bias.shape == (32,)
    assert repr(query) == "MPOLinear(in_features=32, out_features=32, bank='query', layer=1)"
    assert not isinstance(query, torch.nn.Linear)
    assert not list(query.parameters())
    with pytest.raises(AttributeError):
        query.weight = torch.zeros(32, 32)
    with pytest.raises((AttributeError, KeyError)):
        query.weight = torch.nn.Parameter(torch.zeros(32, 32))


def test_changing_a_shared_tensor_through_one_layer_changes_the_others():
    model = mp.convert(tiny_bert(), sharing="all", fit="mean")
    first, last = (model.bert.encoder.layer[k].attention.self.query for k in (0, 3))
    with torch.no_grad():
        before = last.weight.clone()
        first.bank.central[0, 1, 1, 1, 1] += 1.0
        assert not torch.equal(last.weight, before)


def change_in_place(model):
    with torch.no_grad():
        query_bank(model).auxiliary_1.mul_(1.5)


def change_by_loading(model):
    state = {k: v * 1.5 if "query.auxiliary" in k else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)


def change_by_assigning(model):
    state = {k: v * 1.5 if "query.auxiliary" in k else v for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def change_by_step(name, **options):
    def change(model):
        model(ids(), labels=ids()).loss.backward()
        logits(model)
        getattr(torch.optim, name)(model.parameters(), lr=0.1, **options).step()

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_by_loading,
        change_by_assigning,
        change_by_step("SGD"),
        change_by_step("AdamW", fused=True),
        change_by_step("AdamW", foreach=True),
        lambda model: model.double().float(),
        lambda model: model.bert.mpo.query.half().float(),
    ],
)
def test_the_cache_notices_every_change(change):
    model = shared_bert()
    with torch.no_grad():
        logits(model)
        kept = query_bank(model).weights()
        assert query_bank(model).weights()[0] is kept[0]
    change(model)
    cached = logits(model)
    mp.set_cache(model, False)
    torch.testing.assert_close(cached, logits(model), rtol=0, atol=0)
    assert query_bank(model)._cache is None


def test_the_cache_is_for_evaluation_only():
    model = shared_bert()
    bank = query_bank(model)
    logits(model)
    assert bank._cache is not None
    model.train()
    assert bank._cache is None
    logits(model)
    assert bank._cache is None
    model.eval()
    assert model(ids())[0].requires_grad
    assert bank._cache is None
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(ids())
    assert bank._cache is not None


def test_inference_mode_leaves_a_usable_cache():
    model = shared_bert()
    with torch.inference_mode():
        model(ids())
    for parameter in model.bert.mpo.parameters():
        parameter.requires_grad_(False)
    model(ids())[0].sum().backward()
    assert model.bert.embeddings.word_embeddings.weight.grad is not None
    with torch.inference_mode():
        made_here = copy.deepcopy(model)
        torch.testing.assert_close(made_here(ids())[0], model(ids())[0])


def test_autocast_rebuilds_in_float32_and_casts_once():
    model = shared_bert().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weight = query_bank(model).weights()[0]
        loss = model(ids(), labels=ids()).loss
    assert weight.dtype == torch.bfloat16
    exact = query_bank(model).weights()[0]
    assert torch.equal(weight, exact.bfloat16())
    loss.backward()
    assert query_bank(model).central.grad.dtype == torch.float32
    assert mp.convert(tiny_bert().double()).bert.mpo["query"].weights()[0].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rebuilt_in_float32(dtype):
    bank = query_bank(shared_bert(adapter_rank=1).to(dtype))
    wide = copy.deepcopy(bank).float()
    for mine, exact in zip(bank.weights(), wide.weights(), strict=True):
        assert mine.dtype == dtype
        assert torch.equal(mine, exact.to(dtype))


def test_checkpointed_layers_have_the_same_gradients():
    model = shared_bert(adapter_rank=2).train()
    model.config.use_cache = False

    def gradients():
        model.zero_grad()
        model(ids(), labels=ids()).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    for layer in model.bert.encoder.layer:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda f, *a, **k: torch.utils.checkpoint.checkpoint(
            f, *a, use_reentrant=False, **k
        )
    checkpointed = gradients()
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=0, atol=1e-6)
    assert model.bert.encoder.layer[0].attention.self.query.handed is None


@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_share_one_graph():
    from torch._dynamo.testing import CompileCounter

    model = shared_bert().train()
    expected = model(ids())[0]
    torch._dynamo.reset()
    counter = CompileCounter()
    for layer in model.bert.encoder.layer:
        layer.compile(backend=counter)
    torch.testing.assert_close(model(ids())[0], expected, rtol=0, atol=1e-6)
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_compiled_model_is_one_graph(mode):
    from torch._dynamo.testing import CompileCounter

    model = shared_bert(layers=2, adapter_rank=1).train(mode)
    expected = model(ids())[0]
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    torch.testing.assert_close(compiled(ids())[0], expected, rtol=0, atol=1e-6)
    compiled(ids())
    assert counter.frame_count == 1
    torch._dynamo.reset()
