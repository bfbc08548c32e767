"""Layers that run again in backward compute with the values of their own forward."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.mpobert_plugin.handing import (
    assert_same_gradients,
    gradients,
    loss_of,
    query_bank,
    reader_of,
    shared_bert,
)
from tests.mpobert_plugin.models import checkpoint_layers, logits


def recomputing(reentrant, model=None):
    model = model or shared_bert(adapter_rank=2)
    return checkpoint_layers(model.train(), reentrant)


def two_forwards_one_backward(model):
    (loss_of(model) + loss_of(model, 1)).backward()


def two_forwards_two_backwards(model):
    first, second = loss_of(model), loss_of(model, 1)
    first.backward()
    second.backward()


def backward_twice(model):
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()


def forward_without_gradient_between(model):
    loss = loss_of(model)
    logits(model)
    loss.backward()


def evaluation_between(model):
    loss = loss_of(model)
    model.eval()
    logits(model)
    model.train()
    loss.backward()


def frozen_banks(model):
    model.bert.mpo.requires_grad_(False)
    loss_of(model).backward()


def under_autocast(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model)
    loss.backward()


STEPS = [
    two_forwards_one_backward,
    two_forwards_two_backwards,
    backward_twice,
    forward_without_gradient_between,
    evaluation_between,
    frozen_banks,
    under_autocast,
]


# A forward without gradient between the others has nothing to warn about, and older versions do.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_b1_recomputed_layers_find_the_values_of_their_forward(step, reentrant):
    plain = shared_bert(adapter_rank=2).train()
    step(plain)
    model = recomputing(reentrant)
    step(model)
    # In half precision, sums in another order differ by its rounding.
    atol = 5e-3 if step is under_autocast else 1e-6
    assert_same_gradients(gradients(model), gradients(plain), atol)


def checkpointed(forward, reentrant):
    def run(*args, **kwargs):
        # The reentrant mode takes positional arguments only.
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=reentrant)

    return run


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("step", [two_forwards_one_backward, two_forwards_two_backwards])
def test_b1_layers_checkpointed_by_other_code(step, reentrant):
    plain = shared_bert(adapter_rank=2).train()
    step(plain)
    model = shared_bert(adapter_rank=2).train()
    for layer in model.bert.encoder.layer:
        layer.forward = checkpointed(layer.forward, reentrant)
    step(model)
    assert_same_gradients(gradients(model), gradients(plain))


def test_b1_a_layer_alone_in_a_checkpoint():
    model = shared_bert().train()
    x = torch.randn(1, 3, 32, requires_grad=True)
    reader = reader_of(model)
    reader(x).square().sum().backward()
    expected = query_bank(model).central.grad.clone()
    model.zero_grad()
    checkpoint(reader, x, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close(query_bank(model).central.grad, expected)


def test_b1_a_layer_alone_notices_writes_before_backward():
    model = shared_bert().train()
    loss = reader_of(model)(torch.randn(1, 3, 32)).square().sum()
    with torch.no_grad():
        query_bank(model).central.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


def test_b1_a_layer_alone_under_function_transforms():
    model = shared_bert().train()
    reader, x = reader_of(model), torch.randn(3, 32)
    gradient = torch.func.grad(lambda y: reader(y).square().sum())(x)
    torch.testing.assert_close(gradient, 2 * reader(x) @ reader.weight)


@pytest.mark.parametrize("end", ["frozen", "no backward", "partial"])
def test_b1_nothing_stays_handed_out(end):
    model = recomputing(reentrant=False)
    seen = []
    reader = reader_of(model)
    handle = reader.register_forward_hook(lambda m, *_: seen.append(weakref.ref(m.handed[0])))
    if end == "frozen":
        frozen_banks(model)
    elif end == "partial":
        torch.autograd.grad(loss_of(model), [model.cls.predictions.bias])
    else:
        loss_of(model)
    handle.remove()
    assert all(r.handed is None for bank in model.bert.mpo.stacked() for r in bank.readers)
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)
    with torch.no_grad():
        query_bank(model).central.zero_()
    assert not reader.weight.any()


def test_b1_copies_of_recomputing_models():
    model = recomputing(reentrant=False)
    loss_of(model).backward()
    twin = copy.deepcopy(model)
    twin.zero_grad()
    model.bert.mpo.requires_grad_(False)
    loss_of(twin).backward()
    assert_same_gradients(gradients(twin), gradients(model))


def test_a_module_that_knows_its_parent_is_walked_once():
    from mpobert_plugin.recompute import carry_values

    parent = torch.nn.Linear(1, 1)
    child = torch.nn.Linear(1, 1)
    parent.child, child.parent = child, parent
    carry_values(parent)
