"""Tensors that do not lie row by row count as their contiguous copies, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import BertModel

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, logits, tiny_albert, tiny_bert


def column_major(tensor):
    return tensor.t().contiguous().t()


def every_second(tensor):
    wide = torch.zeros(tensor.shape[0], 2 * tensor.shape[1], dtype=tensor.dtype)
    wide[:, ::2] = tensor
    return wide[:, ::2]


def inside_another(tensor):
    wide = torch.zeros(tensor.shape[0] + 3, tensor.shape[1] + 5, dtype=tensor.dtype)
    wide[2:-1, 4:-1] = tensor
    return wide[2:-1, 4:-1]


LAYOUTS = [column_major, every_second, inside_another]
CONVERSIONS = [
    {"n": 3},
    {"max_bond": 4, "n": 3, "adapter_rank": 2, "adapter_fit": "residual"},
    {"sharing": "all", "fit": "mean", "n": 3},
    {"targets": ["embedding", "ffn_in"], "n": 3, "max_bond": 6},
    {"ratio": 0.8, "n": 2},
]


def relaid(model, layout):
    """Return a copy of a model whose matrices lie in another way."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = module.weight
            weight.data = layout(weight.detach())
            assert not weight.is_contiguous()
    return other


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", CONVERSIONS)
def test_t15_weights(options, layout):
    plain = tiny_bert()
    strided = relaid(plain, layout)
    before = {name: tensor.clone() for name, tensor in strided.state_dict().items()}
    torch.manual_seed(3)
    expected = mp.convert(plain, **options)
    source = copy.deepcopy(strided)
    torch.manual_seed(3)
    model = mp.convert(strided, **options)
    torch.testing.assert_close(source.state_dict(), before, rtol=0, atol=0)
    assert all(p.is_contiguous() for n, p in model.named_parameters() if ".mpo." in n)
    banks = {n: p for n, p in expected.named_parameters() if ".mpo." in n}
    found = dict(model.named_parameters())
    torch.testing.assert_close({n: found[n] for n in banks}, banks, rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_t15_weights_of_an_albert(layout):
    expected = mp.from_albert(tiny_albert(), 3)
    model = mp.from_albert(relaid(tiny_albert(), layout), 3)
    for name, tensor in expected.albert.mpo.state_dict().items():
        assert torch.equal(model.albert.mpo.state_dict()[name], tensor), name


@pytest.mark.parametrize("targets", [["query"], ["embedding"], ["embedding", "query", "ffn_out"]])
def test_t15_token_ids(targets):
    model = mp.convert(tiny_bert(), n=3, max_bond=4, targets=targets)
    given = torch.tensor([[3, 4, 5], [6, 7, 8]]).t()
    assert not given.is_contiguous()
    apart = torch.zeros(2, 14, dtype=torch.int64)
    apart[:, ::2] = ids(2, 7)
    with torch.no_grad():
        out = model(given).logits
        assert out.shape == (3, 2, 99)
        assert torch.equal(out, model(given.contiguous()).logits)
        assert torch.equal(model(apart[:, ::2]).logits, model(ids(2, 7)).logits)
        assert torch.equal(model(ids(1, 7).expand(4, 7)).logits, model(ids(1, 7).repeat(4, 1))[0])
    mask = torch.ones(2, 3, dtype=torch.int64).t()
    flat = given.contiguous()
    loss = model(given, attention_mask=mask, labels=flat).loss
    assert torch.equal(loss, model(flat, attention_mask=mask.contiguous(), labels=flat).loss)


@pytest.mark.parametrize("strategy", ["batched", "per_layer", "factorized"])
def test_t15_activations_of_one_layer(strategy):
    model = mp.convert(tiny_bert(BertModel), n=3, max_bond=4, adapter_rank=2)
    mp.set_strategy(model, strategy)
    layer = model.encoder.layer[1].attention.self.query
    x = torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(2))
    half = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(4))[..., ::2]
    for strided in (x.transpose(0, 1), half, x[:1].expand(5, 3, 32)):
        flat = strided.contiguous()
        assert torch.equal(layer(strided), layer(flat))
        wanted = strided.detach().requires_grad_(), flat.detach().requires_grad_()
        for given in wanted:
            layer(given).sum().backward()
        torch.testing.assert_close(wanted[0].grad, wanted[1].grad, rtol=0, atol=0)


def test_t15_a_state_dict():
    model = mp.convert(tiny_bert(), n=3, max_bond=4)
    before = logits(model)
    state = {
        name: inside_another(tensor) if tensor.dim() == 2 else tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    for assign in (False, True):
        other = mp.convert(tiny_bert(), n=3, max_bond=4)
        mp.load_state_dict(other, state, assign=assign)
        assert torch.equal(logits(other), before)


def test_t15_a_model_with_strided_tensors_is_saved(tmp_path):
    model = mp.convert(tiny_bert(), n=3, max_bond=4)
    before = logits(model)
    for parameter in model.parameters():
        if parameter.dim() == 5:
            parameter.data = parameter.data.transpose(1, 4).contiguous().transpose(1, 4)
    assert torch.equal(logits(model), before)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path)), before)


def test_t15_calibration():
    options = {"n": 3, "max_bond": 4, "targets": ["query", "ffn_in"]}
    batch = ids(4, 9).t()
    expected = mp.convert(tiny_bert(), **options, calibration=[batch.contiguous()])
    model = mp.convert(tiny_bert(), **options, calibration=[batch])
    assert torch.equal(logits(model), logits(expected))
