"""torch.export of converted and of merged models, with any batch and length."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export, load, save

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, stir_adapters, tiny_albert, tiny_bert

MODELS = {
    "bert": lambda: mp.convert(
        tiny_bert(num_hidden_layers=2), sharing="all", fit="mean", adapter_rank=2
    ),
    "albert": lambda: mp.convert(tiny_albert(num_hidden_layers=2), max_bond=4),
    "deep": lambda: mp.from_albert(tiny_albert(), 2, adapter_rank=2),
    "merged": lambda: mp.merge(mp.from_albert(tiny_albert(), 2)),
}


def made(name):
    model = MODELS[name]().eval()
    stir_adapters(model)
    return model


def batch(rows, length):
    tokens = ids(rows, length)
    mask = torch.ones_like(tokens)
    mask[0, length // 2 :] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def exported(model, strict=False):
    sizes = {0: Dim("batch", max=64), 1: Dim("length", max=40)}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    return export(model, (), batch(3, 9), dynamic_shapes=shapes, strict=strict)


def assert_equal(program, model):
    for rows, length in ((5, 17), (2, 40)):
        given = batch(rows, length)
        with torch.no_grad():
            found, expected = program(**given).logits, model(**given).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


# ALBERTs export like BERT, by the same modules, and take long.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("albert", "deep") else n for n in MODELS],
)
def test_the_exported_program_computes_the_same_for_other_sizes(name, tmp_path):
    model = made(name)
    given = batch(2, 7)
    with torch.no_grad():
        before = model(**given).logits  # from now on there is a cache, which must stay outside
    program = exported(model)
    assert set(program.state_dict) <= set(model.state_dict())
    assert all(tensor.numel() < 100 for tensor in program.constants.values())
    assert_equal(program.module(), model)
    if name == "deep":
        save(program, tmp_path / "model.pt2")
        assert_equal(load(tmp_path / "model.pt2").module(), model)
    with torch.no_grad():
        assert torch.equal(model(**given).logits, before)
    model.train()
    model(**given).logits.sum().backward()
    assert all(
        parameter.grad is not None for n, parameter in model.named_parameters() if "mpo" in n
    )


def test_the_program_owns_every_tensor_of_the_banks_once():
    model = made("bert")
    stored = {name for name in exported(model).state_dict if ".mpo." in name}
    assert stored == {name for name, _ in model.named_parameters() if ".mpo." in name}


# torch's own tracing makes an object of a Function, and warns of what the cache is told.
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_shared_biases_and_norms_are_exported_strictly_with_gradients(training):
    model = mp.convert(
        tiny_bert(num_hidden_layers=2), sharing="all", fit="mean", share_bias="all",
        share_norm="all",
    )  # fmt: skip
    program = exported(model.train(training), strict=True)
    if not training:
        assert_equal(program.module(), model)
