"""Models with an MPO embedding for tests, and their dense twins."""

from __future__ import annotations

import torch

import mpobert_plugin as mp
from tests.mpobert_plugin.models import twin_output
from tests.mpobert_plugin.zoo import outputs, tokens

TIED = ["albert", "bert", "distilbert", "electra", "gpt2", "mpnet", "roberta", "xlm-roberta-xl"]
UNTIED = ["llama", "mistral"]


def with_embedding(model, *others, **options):
    return mp.convert(model, targets=["embedding", *others], **{"n": 3, **options})


def head_of(model):
    return next((m for m in model.modules() if isinstance(m, mp.MPOHead)), None)


def embedding_of(model):
    return model.get_input_embeddings()


def bank_of(model):
    return model.base_model.mpo["embedding"]


def gradients(model, values):
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [dict(model.named_parameters())[name] for name in names]
    weights = [torch.linspace(-1, 1, v.numel(), dtype=v.dtype).view_as(v) for v in values]
    total = sum((w * v).sum() for w, v in zip(weights, values, strict=True))
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return dict(zip(names, found, strict=True))


def check_twin(model, given=None):
    """Compare outputs and the gradient of every tensor with those of the dense twin."""
    given = tokens(model) if given is None else given
    ours = outputs(model, input_ids=given)
    theirs = [
        value
        for value in twin_output(model, input_ids=given).to_tuple()
        if isinstance(value, torch.Tensor)
    ]
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-10)
    mine, expected = gradients(model, ours), gradients(model, theirs)
    for name, gradient in mine.items():
        assert (gradient is None) == (expected[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-9, msg=name)
    assert all(g is not None for name, g in mine.items() if ".mpo.embedding." in f".{name}")
