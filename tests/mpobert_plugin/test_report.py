"""The report of a conversion: numbers against dense matrices, the table, JSON, loaded models."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.report import SAVES_NOTHING

from .models import ids, tiny_albert, tiny_bert

CUT = {"max_bond": 6, "n": 3}


def measured(plain, model):
    """Return error and norm of each converted matrix, from the dense matrices."""
    found = {}
    for matrix in mp.report(model).matrices:
        a = plain.get_submodule(matrix.name).weight.detach().double()
        b = model.get_submodule(matrix.name).weight.detach().double()
        found[matrix.name] = float((a - b).norm() / a.norm()), float(a.norm())
    return found


@pytest.mark.parametrize(
    "options",
    [
        CUT,
        {**CUT, "adapter_rank": 2, "adapter_fit": "residual"},
        {"n": 3, "sharing": "groups:2", "fit": "mean"},
        {"n": 3, "sharing": {"query": "all"}, "fit": "first"},
        {**CUT, "targets": ["query", "pooler", "embedding"]},
    ],
)
def test_numbers_are_those_of_the_dense_matrices(options):
    from transformers import BertModel

    plain = tiny_bert(BertModel)
    model = mp.convert(copy.deepcopy(plain), **options)
    found = mp.report(model)
    dense = measured(plain, model)
    for matrix in found.matrices:
        error, norm = dense[matrix.name]
        assert matrix.error == pytest.approx(error, rel=1e-4, abs=1e-6)
        assert matrix.norm == pytest.approx(norm, rel=1e-5)
    missing = sum((error * norm) ** 2 for error, norm in dense.values())
    norms = sum(norm**2 for _, norm in dense.values())
    assert found.total_error == pytest.approx(math.sqrt(missing / norms), rel=1e-4, abs=1e-6)
    stored = [
        tensor.numel()
        for bank in model.mpo.stacked()
        if bank.role not in ("attention_norm", "output_norm")
        for name, tensor in bank.tensors().items()
        if name != "bias"
    ]
    assert found.stored_matrices == sum(stored)
    assert found.stored == mp.account(model).unique
    assert found.dense == mp.account(model).dense


def test_parts_of_shared_tensors():
    model = mp.convert(tiny_bert(), n=3, sharing="all", fit="first", targets=["query"])
    bank = model.base_model.mpo["query"]
    central, own = bank.central.numel(), bank.auxiliary_0[0].numel() + bank.auxiliary_2[0].numel()
    for matrix in mp.report(model).matrices:
        assert matrix.parameters == central + own
        assert matrix.stored == pytest.approx(central / 4 + own)
        assert matrix.dense == 32 * 32


def test_exact_conversions_say_that_nothing_is_saved():
    found = mp.report(mp.convert(tiny_bert()))
    assert found.saves_nothing
    assert found.ratio > 1
    assert found.total_error < 1e-6
    assert str(found).endswith(SAVES_NOTHING)
    assert found.to_dict()["note"] == SAVES_NOTHING
    for word in ("sharing=", "ratio=", "max_bond="):
        assert word in SAVES_NOTHING
    cut = mp.report(mp.convert(tiny_bert(), **CUT))
    assert not cut.saves_nothing
    assert SAVES_NOTHING not in str(cut)
    assert cut.to_dict()["note"] is None


def test_a_model_that_shares_already_is_compared_with_itself_and_with_own_layers(tmp_path):
    plain = tiny_albert()
    stored, dense = mp.account(plain).unique, mp.account(plain).dense
    model = mp.convert(plain)
    found = mp.report(model)
    assert (found.before, found.dense) == (stored, dense)
    assert found.ratio == found.stored / dense < 1 < found.ratio_before == found.stored / stored
    was, own, note = str(found).splitlines()[-3:]
    assert was.startswith(
        f"stored parameters {found.stored:,} of {stored:,} in the model as it was"
    )
    assert was.endswith(f"ratio {found.ratio_before:.4f}")
    assert "in its dense twin, the same model with a layer of its own per layer, ratio 0." in own
    assert note == found.note == found.to_dict()["note"]
    # The advice helps: it names budgets below what is stored.
    assert f"max_params= below {stored:,}, ratio= below {stored / dense:.4f}" in note
    assert "sharing=" not in note
    fields = json.loads(found.to_json())
    assert (fields["before"], fields["ratio_before"]) == (stored, found.ratio_before)
    model.save_pretrained(tmp_path)
    assert mp.report(AutoModelForMaskedLM.from_pretrained(tmp_path)) == found
    sure = mp.report(mp.convert(tiny_albert(), max_params=stored - 1))
    assert sure.ratio_before < 1


def test_files_without_the_number_say_what_they_compare_with():
    model = mp.convert(tiny_bert(), **CUT)
    assert str(mp.report(model)).count("stored parameters ") == 1
    model.base_model.mpo.plan = dataclasses.replace(model.base_model.mpo.plan, stored_before=None)
    found = mp.report(model)
    assert found.before is found.ratio_before is None
    assert str(found).splitlines()[-1].startswith("stored parameters ")
    assert "with a layer of its own per layer" in str(found)


def test_nothing_cut_is_exact_but_for_rounding():
    assert "all matrices together 0, but for rounding" in str(mp.report(mp.convert(wide())))
    assert "but for rounding" not in str(mp.report(mp.convert(wide(), **CUT)))


def wide():
    return tiny_bert(num_hidden_layers=1).double()


def test_the_table():
    model = mp.convert(tiny_bert(), **CUT, targets=["query", "ffn_in"], calibration=[ids(32, 20)])
    text = str(mp.report(model)).splitlines()
    assert text[0] == "BertForMaskedLM, 8 matrices in cores"
    assert text[1].split() == ["matrices", "stored", "dense", "ratio", "relative", "errors"]
    assert text[2].startswith("query ")
    assert len(text[2].split()) == 4 + 4
    assert text[3].startswith("  of the outputs ")
    assert text[6].startswith("all matrices ")
    assert text[7].startswith("relative error of all matrices together 0.")
    assert text[8].startswith("largest 0.")
    assert "bert.encoder.layer." in text[8]
    assert text[9].startswith("relative error of the outputs on calibration inputs 0.")
    assert text[10].startswith("stored parameters ")
    assert max(map(len, text)) <= 140


def test_many_layers_are_wrapped():
    model = mp.convert(tiny_bert(num_hidden_layers=11), **CUT, targets=["key"])
    lines = str(mp.report(model)).splitlines()
    assert len(lines[2].split()) == 4 + 8
    assert len(lines[3].split()) == 3


def test_loaded_models_have_the_stored_errors(tmp_path):
    model = mp.convert(tiny_bert(), **CUT, targets=["key"], calibration=[ids()])
    before = mp.report(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert mp.report(loaded) == before
    assert before.output_error is not None
    assert mp.certificates(loaded) == {}


def test_json():
    found = mp.report(mp.convert(tiny_bert(), **CUT))
    fields = json.loads(found.to_json())
    assert fields["total_error"] == found.total_error
    assert fields["largest_error"] == max(m["error"] for m in fields["matrices"])
    assert len(fields["matrices"]) == 24
    assert fields["matrices"][0]["name"] == "bert.encoder.layer.0.attention.self.query"
    assert fields["output_error"] is None
    assert fields["matrices"][0]["dense"] == 32 * 32


def test_layers_of_an_albert():
    found = mp.report(mp.convert(tiny_albert(), **CUT))
    assert len(found.matrices) == 6
    deep = mp.report(mp.from_albert(tiny_albert(), 6, **CUT))
    assert len(deep.matrices) == 36
    assert deep.matrices[0].name.endswith("albert_layer_groups.0.albert_layers.0.attention.query")
    assert deep.matrices[0].error == deep.matrices[5].error


def test_fresh_models_have_no_errors():
    found = mp.report(mp.build("mpobert-12", head="none", device="meta"))
    assert found.total_error is None
    assert found.largest is None
    assert found.output_error is None
    assert len(found.matrices) == 72
    assert "together" not in str(found)
    assert not found.saves_nothing


def test_plain_models_are_refused():
    with pytest.raises(ConversionError, match="model must be converted, got a plain BertForMask"):
        mp.report(tiny_bert())
