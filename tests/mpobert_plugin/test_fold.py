"""Adapters merged into plain matrices and taken out again."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError, MPOBertWarning
from mpobert_plugin.linear import MPOLinear
from tests.mpobert_plugin.models import ids, logits, stir_adapters, tiny_albert, tiny_bert

OPTIONS = {"adapter_rank": 2, "adapter_alpha": 3.0}
SHARED = {**OPTIONS, "sharing": "all", "fit": "mean"}


def adapted(**options):
    model = mp.convert(tiny_bert(), **{**OPTIONS, **options})
    stir_adapters(model)
    return model


def deep():
    model = mp.from_albert(tiny_albert(), 6, adapter_rank=2)
    stir_adapters(model)
    return model


def quietly(model):
    with pytest.warns(MPOBertWarning):
        return mp.merge_adapters(model)


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("make", [lambda: adapted(sharing="all", fit="mean"), deep])
def test_merging_keeps_what_is_computed_and_unmerging_every_bit(make):
    model = make()
    before, output, names = bits(model), logits(model), [n for n, _ in model.named_parameters()]
    modules = {name: id(module) for name, module in model.named_modules()}
    quietly(model)
    torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-5)
    mp.unmerge_adapters(model)
    assert torch.equal(logits(model), output)
    after = bits(model)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert [n for n, _ in model.named_parameters()] == names
    assert {name: id(module) for name, module in model.named_modules()} == modules
    mp.assert_shared(model)


def test_what_stands_where_and_how_many_parameters_there_are():
    model = adapted(sharing="all", fit="mean")
    stored = mp.account(model).unique
    with pytest.warns(MPOBertWarning) as caught:
        report = mp.merge_adapters(model)
    now = mp.account(model)
    assert str(caught[0].message) == (
        "layers shared tensors of query, key, value, attention_output; merged, each has a matrix "
        f"of its own: {now.unique:,} stored parameters instead of {stored:,}."
    )
    assert (report.stored_before, report.stored_after) == (stored, now.unique)
    assert report.adapters == len(report.errors) == 16
    assert report.largest < 6e-8
    assert now.by_kind["dense"] == 16 * 32 * 32
    assert "adapter" not in now.by_kind
    layer = model.bert.encoder.layer[1]
    assert type(layer.attention.self.query) is nn.Linear
    assert isinstance(layer.output.dense, MPOLinear)
    assert list(model.bert.mpo) == ["ffn_in", "ffn_out", "attention_norm", "output_norm"]
    assert "query" not in mp.describe(model)
    mp.assert_shared(model)


def test_layers_with_tensors_of_their_own_merge_without_a_warning():
    report = mp.merge_adapters(adapted())
    assert report.stored_after < report.stored_before


def test_only_the_adapters_of_one_role_are_merged():
    model = adapted(adapter_targets=["ffn_in"])
    other = model.bert.encoder.layer[0].attention.self.query
    mp.merge_adapters(model)
    assert model.bert.encoder.layer[0].attention.self.query is other
    assert type(model.bert.encoder.layer[0].intermediate.dense) is nn.Linear


def test_every_role_adapted():
    roles = ["query", "key", "value", "attention_output", "ffn_in", "ffn_out"]
    model = adapted(adapter_targets=roles)
    output = logits(model)
    mp.merge_adapters(model)
    torch.testing.assert_close(logits(model), output, rtol=0, atol=1e-5)
    mp.unmerge_adapters(model)
    assert torch.equal(logits(model), output)


def test_saving_is_refused_while_merged_and_works_again_after(tmp_path):
    model = adapted()
    output = logits(model)
    mp.merge_adapters(model)
    for save in (lambda: model.save_pretrained(tmp_path), model.state_dict):
        with pytest.raises(ConversionError, match="a model with merged adapters cannot be saved"):
            save()
    mp.merge(model).save_pretrained(tmp_path / "plain")
    mp.unmerge_adapters(model)
    model.save_pretrained(tmp_path / "mpo")
    loaded = type(model).from_pretrained(tmp_path / "mpo")
    torch.testing.assert_close(logits(loaded), output, rtol=0, atol=0)


def test_merged_models_merge_whole():
    model = adapted()
    whole = mp.merge(model)
    mp.merge_adapters(model)
    for ours, theirs in zip(mp.merge(model).parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert mp.merge(model).state_dict().keys() == whole.state_dict().keys()


def test_copies_are_merged_and_unmerged_by_themselves():
    model = adapted()
    output = logits(model)
    mp.merge_adapters(model)
    twin = copy.deepcopy(model)
    mp.unmerge_adapters(model)
    with torch.no_grad():
        model.bert.mpo["query"].central.zero_()
    mp.unmerge_adapters(twin)
    assert torch.equal(logits(twin), output)
    twin.state_dict()
    mp.assert_shared(twin)


def test_other_tensors_train_on_and_the_optimizer_keeps_its_adapters():
    model = adapted().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = bits(model)
    mp.merge_adapters(model)
    model(ids(), labels=ids()).loss.backward()
    optimizer.step()
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad is None
    mp.unmerge_adapters(model)
    after = bits(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "bert.mpo.ffn_in.central" in changed
    assert not any("query" in name or "adapter" in name for name in changed)
    optimizer.zero_grad()
    model(ids(), labels=ids()).loss.backward()
    optimizer.step()
    assert not torch.equal(after["bert.mpo.query.adapter_up"], model.bert.mpo["query"].adapter_up)


def test_training_mode_follows():
    model = adapted().eval()
    mp.merge_adapters(model)
    model.train()
    mp.unmerge_adapters(model)
    assert all(module.training for module in model.modules())


def test_merging_twice_and_unmerging_nothing_are_errors():
    model = adapted()
    with pytest.raises(ConversionError, match="the adapters must be merged, got a model in which"):
        mp.unmerge_adapters(model)
    mp.merge_adapters(model)
    with pytest.raises(ConversionError, match="the adapters must not be merged yet"):
        mp.merge_adapters(model)
    mp.unmerge_adapters(model)
    with pytest.raises(ConversionError, match="model must have adapters to merge, got none"):
        mp.merge_adapters(mp.convert(tiny_bert()))
    with pytest.raises(ConversionError, match="model must be converted, got a plain"):
        mp.merge_adapters(tiny_bert())


NAME = "bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize("change", ["values", "module", "dtype"])
def test_changes_that_unmerging_would_lose_are_refused(change):
    model = adapted()
    mp.merge_adapters(model)
    plain = model.get_submodule(NAME)
    if change == "values":
        plain.weight.data[0, 0] += 1e-3
    elif change == "module":
        model.bert.encoder.layer[0].attention.self.query = nn.Linear(32, 32)
    else:
        model.half()
    with pytest.raises(ConversionError, match=re.escape(f"{NAME} must be as it was merged, got")):
        mp.unmerge_adapters(model)
    assert type(model.bert.encoder.layer[1].attention.self.query) is nn.Linear
    if change == "values":
        plain.weight.data[0, 0] -= 1e-3


def test_a_merge_that_fails_changes_nothing():
    model = adapted()
    with torch.no_grad():
        model.bert.mpo["value"].adapter_down[2, 0, 0] = float("inf")
    modules = {name: id(module) for name, module in model.named_modules()}
    with pytest.raises(
        ConversionError, match=r"the matrix of .*layer\.2\.attention\.self\.value must"
    ):
        mp.merge_adapters(model)
    assert {name: id(module) for name, module in model.named_modules()} == modules
    model.state_dict()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_element_types(dtype):
    model = adapted().to(dtype)
    output = logits(model)
    report = mp.merge_adapters(model)
    assert report.dtype == str(dtype).removeprefix("torch.")
    assert report.largest < (1e-15 if dtype == torch.float64 else 3e-3)
    mp.unmerge_adapters(model)
    assert torch.equal(logits(model), output)


def test_a_cast_back_and_forth_before_merging_is_no_fault():
    model = adapted().double().float()
    mp.merge_adapters(model)
    mp.unmerge_adapters(model)
