"""Rows and logits from cores: a property against the dense matrix, and what they cost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2LMHeadModel

import mpobert_plugin as mp
import tensornet as tn
from mpobert_plugin.embedding import EmbeddingBank
from mpobert_plugin.lookup import product_of, rows_of
from mpobert_plugin.row_plans import RowPlan, plan_for
from mpobert_plugin.spec import BankSpec
from tests.mpobert_plugin.embeddings import bank_of, with_embedding
from tests.mpobert_plugin.models import ids, tiny_bert
from tests.mpobert_plugin.zoo import language_model, tokens

ROWS, COLS = 30522, 768


@st.composite
def chains(draw):
    """Return random cores with true sizes, as a bank holds them."""
    sites = draw(st.integers(1, 5))
    row_dims = draw(st.lists(st.integers(1, 4), min_size=sites, max_size=sites))
    col_dims = draw(st.lists(st.integers(1, 3), min_size=sites, max_size=sites))
    bonds = [1, *draw(st.lists(st.integers(1, 4), min_size=sites - 1, max_size=sites - 1)), 1]
    rows = draw(st.integers(max(1, math.prod(row_dims) - 3), math.prod(row_dims)))
    cols = draw(st.integers(max(1, math.prod(col_dims) - 2), math.prod(col_dims)))
    spec = BankSpec(
        "embedding",
        rows,
        cols,
        tuple(row_dims),
        tuple(col_dims),
        tuple(bonds),
        (0,),
        (0,),
    )
    torch.manual_seed(draw(st.integers(0, 99)))
    bank = EmbeddingBank(spec, dtype=torch.float64)
    with torch.no_grad():
        for tensor in bank.parameters():
            tensor.normal_()
    return bank


def matrix_of(bank):
    spec = bank.spec
    layout = tn.MatrixLayout(spec.row_dims, spec.col_dims, spec.rows, spec.cols)
    return tn.contract_matrix(bank._chain(), layout)


def compare(bank, ours, theirs):
    """Compare two results and the gradients of all cores."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    cores = list(bank.parameters())
    mine = torch.autograd.grad((weights * ours).sum(), cores, retain_graph=True)
    expected = torch.autograd.grad((weights * theirs).sum(), cores, retain_graph=True)
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@given(chains(), st.data())
def test_rows_and_logits_equal_those_of_the_matrix(bank, data):
    numbers = data.draw(st.lists(st.integers(0, bank.spec.rows - 1), min_size=1, max_size=9))
    words = torch.tensor(numbers)
    matrix = matrix_of(bank)
    compare(bank, bank.look_up(words), matrix[words])
    hidden = torch.randn(len(numbers), bank.spec.cols, dtype=torch.float64)
    compare(bank, bank.logits(hidden), linear(hidden, matrix))


@given(chains(), st.data())
def test_every_way_gives_the_same(bank, data):
    sites = len(bank.spec.row_dims)
    meet = data.draw(st.integers(0, sites))
    left = data.draw(st.integers(1, meet)) if meet else 0
    right = data.draw(st.integers(1, sites - meet)) if meet < sites else 0
    plan = RowPlan(9, False, meet, left, right, data.draw(st.booleans()))
    rows, cols, cores = bank.spec.rows, bank.spec.cols, bank._chain()
    words = torch.randint(0, rows, (6,))
    matrix = matrix_of(bank)
    compare(bank, rows_of(cores, plan, words)[:, :cols], matrix[words])
    if 0 < meet < sites:
        hidden = torch.randn(4, math.prod(bank.spec.col_dims), dtype=torch.float64)
        hidden[:, cols:] = 0
        compare(bank, product_of(cores, plan, hidden)[:, :rows], hidden[:, :cols] @ matrix.T)


# What it costs


def t28_bank(bond):
    layout = tn.matrix_layout(ROWS, COLS, shape=5)
    bonds = layout.structural_bonds(bond)
    dims = (layout.row_dims, layout.col_dims, bonds)
    bank = EmbeddingBank(BankSpec("embedding", ROWS, COLS, *dims, (0,), (0,)))
    torch.manual_seed(0)
    for tensor in bank.parameters():
        torch.nn.init.normal_(tensor, std=0.1)
    return bank


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that takes memory of its own."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(
                    self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize
                )
        return result


def test_t28_a_vocabulary_that_does_not_factor_is_padded():
    bank = t28_bank(8)
    assert math.prod(bank.spec.row_dims) > ROWS == 2 * 3 * 5087
    assert math.prod(bank.spec.row_dims) < 1.01 * ROWS
    words = torch.tensor([0, 5086, 5087, ROWS - 1, ROWS - 1])
    torch.testing.assert_close(bank.look_up(words), bank.weights()[0][words])
    with pytest.raises(IndexError, match="index out of range in self"):
        bank.look_up(torch.tensor(ROWS))
    assert bank.logits(torch.ones(COLS)).shape == (ROWS,)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("bond", "count"), [(16, 8), (64, 8), (64, 1), (64, 256), (128, 16)])
def test_a_lookup_of_few_rows_does_not_form_the_matrix(bond, count, train):
    bank = t28_bank(bond).train(train)
    words = torch.randint(0, ROWS, (count,))
    plan = plan_for(bank.lookup_plans, count)
    assert not plan.dense
    with Largest() as seen:
        rows = bank.look_up(words)
        if train:
            rows.sum().backward()
    cores = max(tensor.numel() for tensor in bank.parameters())
    assert seen.elements <= max(plan.peak_elements, cores)
    assert seen.elements < ROWS * COLS / (20 if count < 100 else 4)


def test_logits_of_one_word_do_not_form_the_matrix():
    bank = t28_bank(16).train()
    hidden = torch.randn(1, COLS)
    plan = plan_for(bank.product_plans, 1)
    assert not plan.dense
    with Largest() as seen:
        found = bank.logits(hidden)
    assert seen.elements <= plan.peak_elements
    assert seen.elements < ROWS * COLS / 20
    torch.testing.assert_close(found, linear(hidden, bank.weights()[0]), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bond", [1, 8, 64, None])
def test_plans_are_never_worse_than_rebuilding(bond):
    bank = t28_bank(bond)
    rebuilding = bank.recipe.multiply_adds
    for plans, per_row in ((bank.lookup_plans, 0), (bank.product_plans, ROWS * COLS)):
        assert [plan.most for plan in plans] == sorted({plan.most for plan in plans})
        assert plans[-1].dense
        for plan in plans:
            assert plan.multiply_adds <= rebuilding + plan.most * per_row
    assert plan_for(bank.lookup_plans, 10**9) is bank.lookup_plans[-1]


# Generation and compilation


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("cache", [True, False])
def test_generation_is_that_of_the_plain_model(model_type, cache):
    tied = {"tie_word_embeddings": True} if model_type == "llama" else {}
    model = language_model(model_type, **tied)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "use_cache": cache}
    expected = model.generate(tokens(model), num_beams=2, **options)
    with_embedding(model)
    for enabled in (True, False):
        mp.set_cache(model, enabled)
        assert torch.equal(model.generate(tokens(model), num_beams=2, **options), expected)
    cut = with_embedding(language_model(model_type, **tied), max_bond=4)
    plain = mp.merge(cut)
    assert torch.equal(
        cut.generate(tokens(cut), **options), plain.generate(tokens(plain), **options)
    )
    if model_type == "gpt2":
        assert isinstance(cut, GPT2LMHeadModel)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_one_graph():
    from torch._dynamo.testing import CompileCounter

    model = with_embedding(tiny_bert(num_hidden_layers=1), max_bond=3).train()
    expected = model(ids())[0]
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    torch.testing.assert_close(compiled(ids())[0], expected, rtol=0, atol=1e-6)
    compiled(ids()).logits.sum().backward()
    assert counter.frame_count == 1
    assert bank_of(model).scope.matrix is None
    torch._dynamo.reset()


@pytest.mark.gpu
def test_rows_and_logits_on_a_gpu():
    model = with_embedding(tiny_bert(), max_bond=4).train()
    expected = model(ids(), labels=ids())
    expected.loss.backward()
    gradients = [p.grad.clone() for p in bank_of(model).parameters()]
    model.zero_grad()
    model.cuda()
    found = model(ids().cuda(), labels=ids().cuda())
    found.loss.backward()
    torch.testing.assert_close(found.logits.cpu(), expected.logits, rtol=1e-3, atol=1e-4)
    for p, gradient in zip(bank_of(model).parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad.cpu(), gradient, rtol=1e-2, atol=1e-5)
    with torch.autocast("cuda", torch.float16):
        assert model(ids().cuda()).logits.dtype == torch.float16
    model.eval()
    torch.testing.assert_close(
        model(ids().cuda()).logits.cpu(), expected.logits, rtol=1e-3, atol=1e-4
    )
