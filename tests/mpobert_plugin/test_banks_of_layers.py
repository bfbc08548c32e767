"""Several banks for a role, and layers that stay plain: twins, files, messages, one optimizer."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin import split
from mpobert_plugin.convert import assemble, filled_banks
from mpobert_plugin.errors import CheckpointError, ConfigError, SharingError
from mpobert_plugin.init.decomposed import prepare
from mpobert_plugin.linear import MPOLinear
from tests.mpobert_plugin.models import ids, logits, stir_adapters, tiny_albert, tiny_bert
from tests.mpobert_plugin.test_twin import check_twin

FULL = (1, 4, 16, 16, 4, 1)


def mixed(model=None, **options):
    """Give layers 0 and 3 of the queries one bank, layer 1 another, and leave layer 2 plain."""
    model = tiny_bert() if model is None else model
    config = mp.MPOConfig(**{"share_bias": None, **options})
    plan = mp.make_plan(model, config)
    query, *others = plan.banks
    assert query.role == "query"
    small = (1, 4, 6, 5, 4, 1)
    pieces = sorted(set(query.central))
    bonds = {piece: small if piece in (0, 3) else FULL for piece in pieces}
    if len(pieces) == 4:
        bonds[2] = None
    banks = (*split.split_bank(query, bonds), *others)
    plan = replace(plan, banks=banks)
    prepared = prepare(model, plan, config)
    assemble(model, prepared.plan, filled_banks(prepared), config)
    return model


def test_names_layers_and_slots():
    plan = mixed().config.quantization_config.plan
    names = [(spec.name, spec.layers, spec.central) for spec in plan.banks_of_role("query")]
    assert names == [("query_0", (0, 3), (0, 1)), ("query_1", (1,), (0,))]
    assert plan.bank("query_0").slot_of(3) == 1
    assert plan.bank("query_0").slot_of(2) is None
    assert [spec.name for spec in plan.of_layer(1)][:2] == ["query_1", "key"]
    assert plan.banks_of_role("nothing") == ()
    assert plan.roles().count("query") == 1


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("sharing", [None, "groups:2", [[0, 3], [1, 2]]], ids=str)
def test_the_twin_computes_the_same(sharing, rank):
    options = {"adapter_rank": rank} if rank else {}
    model = mixed(tiny_bert().double(), sharing=sharing, fit="mean", **options)
    stir_adapters(model)
    check_twin(model)


def test_what_is_uncut_computes_what_it_did():
    plain = tiny_bert().double()
    model = mixed(copy.deepcopy(plain))
    for layer in (1, 2):
        before = plain.bert.encoder.layer[layer].attention.self.query.weight
        after = model.bert.encoder.layer[layer].attention.self.query.weight
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
    assert isinstance(model.bert.encoder.layer[1].attention.self.query, MPOLinear)
    assert type(model.bert.encoder.layer[2].attention.self.query) is torch.nn.Linear


def test_a_layer_called_alone_reads_its_own_slot():
    model = mixed()
    reader = model.bert.encoder.layer[3].attention.self.query
    assert (reader.layer, reader.slot) == (3, 1)
    torch.testing.assert_close(reader.weight, reader.bank.weights()[1])


def test_reload_is_exact(tmp_path):
    model = mixed(adapter_rank=2)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    mp.assert_shared(loaded)
    assert mp.account(loaded) == mp.account(model)
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert loaded.config.quantization_config == model.config.quantization_config
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["plan"]
    assert [bank.get("layers") for bank in stored["banks"]][:3] == ["0 3", "1", None]


def test_state_dicts_and_copies_go_into_each_other():
    model, other = mixed(), mixed(tiny_bert())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    mp.load_state_dict(other, model.state_dict())
    assert torch.equal(logits(other), logits(model))
    twin = copy.deepcopy(model)
    mp.assert_shared(twin)
    assert torch.equal(logits(twin), logits(model))


def test_counts_are_those_of_the_tensors():
    model = mixed()
    report = mp.account(model)
    assert report.unique == sum(parameter.numel() for parameter in model.parameters())
    assert report.dense == mp.account(tiny_bert()).dense
    assert report.by_kind["dense"] >= 32 * 32


def test_describe_and_plan_say_which_layers():
    model = mixed()
    text = mp.describe(model)
    assert "query_0: 2 x (32 x 32)" in text
    assert "each layer its own (layers 0 3)" in text
    assert "query: plain matrices in layers 2" in text
    plan = str(model.config.quantization_config.plan)
    assert "layers 0 3" in plan
    assert "query: plain matrices in layers 2" in plan


def test_merging_gives_the_plain_model():
    model = mixed()
    merged = mp.merge(model)
    assert type(merged.bert.encoder.layer[2].attention.self.query) is torch.nn.Linear
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-4, atol=1e-5)


def test_certificates_name_the_layers_of_the_model():
    model = tiny_bert()
    config = mp.MPOConfig(ratio=0.6)
    mp.convert(model, config)
    read = {
        f"bert.encoder.layer.{layer}.attention.self.query"
        for spec in model.config.quantization_config.plan.banks_of_role("query")
        for layer in spec.layer_numbers
    }
    found = {name for name in mp.certificates(model) if name.endswith("query")}
    assert found == read
    for spec in model.config.quantization_config.plan.banks_of_role("query"):
        for layer, error in zip(spec.layer_numbers, spec.errors, strict=True):
            name = f"bert.encoder.layer.{layer}.attention.self.query"
            assert mp.certificates(model)[name].relative_error == pytest.approx(error, rel=1e-5)


def test_the_order_of_parameters_is_that_of_roles_and_layers():
    banks = list(mixed().bert.mpo)
    assert banks[:3] == ["query_0", "query_1", "key"]
    assert banks == list(mixed(tiny_bert()).bert.mpo)


def test_training_moves_every_bank():
    model = mixed().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if ".mpo." in name}
    model(ids(), labels=ids()).loss.backward()
    optimizer.step()
    # Attention does not depend on the biases of its keys.
    names = [name for name in before if not name.endswith("key.bias")]
    before = {name: before[name] for name in names}
    moved = [n for n, p in model.named_parameters() if n in before and not p.equal(before[n])]
    assert moved == names


def test_assert_shared_finds_a_reader_of_another_bank():
    model = mixed()
    reader = model.bert.encoder.layer[1].attention.self.query
    object.__setattr__(reader, "bank", model.bert.mpo["query_0"])
    with pytest.raises(
        SharingError, match=r"layer\.1\.attention\.self\.query must read .*'query_1'"
    ):
        mp.assert_shared(model)


def test_a_layer_that_does_not_read_a_bank_is_refused():
    bank = mixed().bert.mpo["query_0"]
    with pytest.raises(ConfigError, match=r"reads? bank 'query_0', \[0, 3\], got 2"):
        MPOLinear(bank, 2)


def damaged(change):
    fields = copy.deepcopy(mixed().config.quantization_config.plan.to_dict())
    change(fields["banks"])
    return fields


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda banks: banks[0].update(layers="3 0"), "layers of bank 'query'.*ascending numbers"),
        (lambda banks: banks[0].update(layers="0 9"), "ascending numbers from 0 to 3, got '0 9'"),
        (lambda banks: banks[0].update(layers="0 1 2"), "central of bank 'query'"),
        (lambda banks: banks[0].update(layers=[0]), "layers of bank 'query'.*must be a text"),
        (lambda banks: banks[0].update(layers=""), "layers must be ascending"),
        (lambda banks: banks[0].update(layers="0-99999999999"), "damaged"),
        (lambda banks: banks[1].update(layers="3"), r"once, got layers \[0, 3, 3\] of 'query'"),
        (lambda banks: banks.insert(0, dict(banks[3])), "must name each role once"),
    ],
)
def test_damaged_layers_are_refused(change, text):
    with pytest.raises(CheckpointError, match=text):
        mp.ConversionPlan.from_dict(damaged(change))


def test_plans_without_layers_are_read_as_before():
    plan = mp.convert(tiny_bert()).config.quantization_config.plan
    fields = plan.to_dict()
    assert all("layers" not in bank for bank in fields["banks"])
    assert mp.ConversionPlan.from_dict(fields) == plan
    fields["banks"][0]["layers"] = "0-3"
    assert mp.ConversionPlan.from_dict(fields) == plan


def test_blocks_of_a_function_come_back_for_several_banks():
    model = mixed(tiny_bert(), sharing=lambda layer, role: layer in (0, 3) or None, fit="mean")
    assert model.config.quantization_config.sharing == [[0, 3], [1], [2]]


def test_models_with_and_without_head_load_the_same_file(tmp_path):
    model = mixed()
    model.save_pretrained(tmp_path)
    bert = BertForMaskedLM.from_pretrained(tmp_path).bert
    torch.testing.assert_close(bert(ids())[0], model.bert(ids())[0])


def test_an_albert_of_own_layers_keeps_plain_copies():
    model = tiny_albert().double()
    before = logits(model)
    config = mp.MPOConfig(sharing="none")
    plan = mp.make_plan(model, config)
    first, *others = plan.banks
    banks = (*split.split_bank(first, {0: FULL, 1: FULL, 2: None, 3: None}), *others)
    plan = replace(plan, banks=banks)
    prepared = prepare(model, plan, config)
    assemble(model, prepared.plan, filled_banks(prepared), config)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-9)
    groups = model.albert.encoder.albert_layer_groups
    plain = [groups[k].albert_layers[0].attention.query.weight for k in (2, 3)]
    assert plain[0] is not plain[1]
    assert mp.account(model).unique == sum(p.numel() for p in model.parameters())
