"""Models, losses and gradients for the tests of what happens around a forward."""

from __future__ import annotations

import torch

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, tiny_bert


def shared_bert(layers=4, **options):
    model = tiny_bert(num_hidden_layers=layers)
    return mp.convert(model, sharing="groups:2", fit="mean", **options)


def query_bank(model):
    return model.bert.mpo["query"]


def reader_of(model, layer=2):
    return model.bert.encoder.layer[layer].attention.self.query


def loss_of(model, shift=0):
    return model((ids() + shift) % 99, labels=ids()).loss


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(ours, theirs, atol=1e-6):
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=atol)
