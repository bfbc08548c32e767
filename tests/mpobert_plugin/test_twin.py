"""A converted model equals its dense twin: output, gradient of the inputs and of every tensor."""

from __future__ import annotations

import pytest
import torch

import mpobert_plugin as mp
from tests.mpobert_plugin.models import (
    ids,
    stir_adapters,
    tiny_albert,
    tiny_bert,
    tiny_pretraining,
    twin_output,
)

POLICIES = ["none", "all", "groups:2", "groups:3", [[0, 3], [1, 2]], [[0], [1, 2, 3]], "albert"]


def check_twin(model, atol=1e-9):
    model.zero_grad()
    hidden = model.get_input_embeddings()(ids()).detach().requires_grad_()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [dict(model.named_parameters())[name] for name in names]

    def run(output):
        values = [t for t in output.to_tuple() if t.dim() >= 2]
        weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t) for t in values]
        total = sum((w * t).sum() for w, t in zip(weights, values, strict=True))
        grads = torch.autograd.grad(total, [hidden, *parameters], allow_unused=True)
        return total.detach(), grads

    ours, our_grads = run(model(inputs_embeds=hidden))
    theirs, their_grads = run(twin_output(model, inputs_embeds=hidden))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=atol)
    seen = 0
    for name, mine, expected in zip(["inputs", *names], our_grads, their_grads, strict=True):
        assert (mine is None) == (expected is None), name
        if mine is not None and expected is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=atol, msg=name)
            seen += ".mpo." in f".{name}"
    assert seen == sum(".mpo." in f".{name}" for name in names)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("sharing", POLICIES, ids=str)
def test_bert(sharing, rank):
    model = tiny_bert().double()
    mp.convert(model, sharing=sharing, fit="mean", adapter_rank=rank)
    stir_adapters(model)
    check_twin(model)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("sharing", [None, *POLICIES], ids=str)
def test_albert(sharing, rank):
    model = tiny_pretraining().double()
    mp.convert(model, sharing=sharing, adapter_rank=rank)
    stir_adapters(model)
    check_twin(model)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_numbers_of_sites(n):
    model = mp.from_albert(tiny_albert().double(), 3, n=n, adapter_rank=1)
    stir_adapters(model)
    check_twin(model)


@pytest.mark.parametrize("bond", [1, 3, 8])
def test_truncated_bonds(bond):
    check_twin(mp.convert(tiny_bert().double(), sharing="groups:2", fit="first", max_bond=bond))


def test_sizes_that_need_padding():
    model = tiny_bert(hidden_size=22, num_attention_heads=2, intermediate_size=37).double()
    mp.convert(model, n=3)
    spec = model.bert.mpo["ffn_in"].spec
    assert (spec.rows, spec.cols) == (37, 22)
    assert spec.row_dims[0] * spec.row_dims[1] * spec.row_dims[2] > 37
    check_twin(model)


def test_training_mode():
    check_twin(mp.from_albert(tiny_albert().double(), 5, sharing="groups:2").train())


@pytest.mark.parametrize("sharing", ["all", "groups:2", [[0, 3], [1, 2]], "none"], ids=str)
def test_shapes_where_the_right_chain_comes_first(sharing):
    # With many rows on the left and few columns on the right, C @ right is the cheaper start.
    shapes = {"ffn_in": ((16, 2, 2), (8, 2, 2))}
    model = mp.convert(
        tiny_bert().double(), sharing=sharing, fit="mean", targets=["ffn_in"], shapes=shapes
    )
    assert not model.bert.mpo["ffn_in"].recipe.left_first
    check_twin(model)
