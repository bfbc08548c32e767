"""Models with an MPO embedding: files, reports, and the size of the vocabulary."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertModel,
)

import mpobert_plugin as mp
from mpobert_plugin.attach import attach, finish, make_banks
from mpobert_plugin.errors import CheckpointError, ConversionError, SharingError
from mpobert_plugin.runtime import Banks
from tests.mpobert_plugin.embeddings import (
    TIED,
    bank_of,
    embedding_of,
    head_of,
    with_embedding,
)
from tests.mpobert_plugin.models import (
    ids,
    logits,
    snapshot,
    tiny_bert,
)
from tests.mpobert_plugin.zoo import language_model, outputs

# Files


@pytest.mark.parametrize("model_type", [*TIED, "llama"])
def test_files_bring_back_the_same(model_type, tmp_path):
    tied = {"tie_word_embeddings": True} if model_type == "llama" else {}
    model = with_embedding(language_model(model_type, **tied), max_bond=3)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    mp.assert_shared(loaded)
    assert mp.account(loaded) == mp.account(model)
    assert torch.equal(outputs(loaded)[0], outputs(model)[0])
    assert embedding_of(loaded).padding_idx == embedding_of(model).padding_idx
    assert loaded.config.quantization_config == model.config.quantization_config
    assert loaded.resize_token_embeddings(99) is embedding_of(loaded)


def test_a_state_dict_goes_into_a_model_on_meta():
    model = with_embedding(tiny_bert(BertModel), "pooler", max_bond=4)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("mpo.pooler")}
    with torch.device("meta"):
        empty = BertModel(model.config)
    empty = mp_attached(empty, model)
    torch.manual_seed(0)
    with pytest.warns(mp.errors.MPOBertWarning, match=r"mpo\.pooler\.central"):
        mp.load_state_dict(empty, state, assign=True)
    assert torch.equal(logits(empty.eval()), logits(model))
    assert 0.01 < empty.mpo["pooler"].weights()[0].std() < 0.03
    assert not empty.mpo["pooler"].bias.any()


def mp_attached(empty, like):
    plan = like.config.quantization_config.plan
    attach(empty, plan, Banks(dict(make_banks(plan, device="meta")), plan))
    finish(empty, plan)
    return empty


def test_models_with_and_without_a_pooler_load_into_each_other(tmp_path):
    model = with_embedding(tiny_bert(BertModel), "pooler", max_bond=4)
    model.save_pretrained(tmp_path / "base")
    with pytest.warns(mp.errors.MPOBertWarning, match="cls.predictions"):
        masked = BertForMaskedLM.from_pretrained(tmp_path / "base")
    assert "pooler" not in masked.bert.mpo
    assert not head_of(masked).bias.any()
    mp.assert_shared(masked)
    assert "pooler" not in mp.describe(masked)
    masked.save_pretrained(tmp_path / "masked")
    torch.manual_seed(0)
    with pytest.warns(mp.errors.MPOBertWarning, match=r"bert\.mpo\.pooler\.central"):
        task = AutoModelForSequenceClassification.from_pretrained(tmp_path / "masked")
    assert 0.01 < task.bert.mpo["pooler"].weights()[0].std() < 0.03
    assert not task.bert.mpo["pooler"].bias.any()
    torch.testing.assert_close(task.bert(ids())[0], model(ids())[0], rtol=0, atol=0)


def change(folder, edit):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    edit(config["quantization_config"]["plan"])
    file.write_text(json.dumps(config))


def _rename(plan):
    plan["outside"][0]["role"] = "head"


def _two(plan):
    plan["outside"] *= 2


def _more_rows(plan):
    plan["outside"][0] |= {"rows": 100}


def _huge(plan):
    plan["outside"][0] |= {
        "row_dims": "4 50000 50000",
        "col_dims": "2 4 4",
        "bond_dims": "1 3 3 1",
    }


def _other_bonds(plan):
    plan["outside"][0] |= {"bond_dims": "1 2 3 1"}


def _many_sites(plan):
    ones = " ".join(["1"] * 97)
    plan["outside"][0] |= {
        "row_dims": f"4 5 5 {ones}",
        "col_dims": f"2 4 4 {ones}",
        "bond_dims": f"1 3 3 {ones} 1",
    }


def _bias(plan):
    plan["outside"][0] |= {"bias": "0"}


def _adapter(plan):
    plan["outside"][0] |= {"adapter_rank": 2, "adapter_alpha": 2.0}


def _no_list(plan):
    plan["outside"] = {"role": "embedding"}


def _lost(plan):
    del plan["outside"]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (_rename, r"must name matrices of the model \(embedding\), got 'head'"),
        (_two, "must name each role once, got"),
        (_more_rows, r"'embedding' of the stored plan must be 99 x 32 for .*, got 100 x 32"),
        (_huge, r"embedding\.central \(stored \(1, 3, 5, 4, 3\), expected \(1, 3, 50000, 4, 3\)\)"),
        (_other_bonds, "have another shape"),
        (_many_sites, "at most 32 sites, .* got 100 sites, no bias and adapter_rank 0"),
        (_bias, "got 3 sites, a bias and adapter_rank 0. Its config.json was changed"),
        (_adapter, "got 3 sites, no bias and adapter_rank 2"),
        (_no_list, "outside of the stored plan must be a list of objects"),
        (_lost, "missing: bert.embeddings.word_embeddings.weight"),
    ],
)
def test_damaged_files_are_refused(edit, text, tmp_path):
    with_embedding(tiny_bert(), "query", max_bond=3).save_pretrained(tmp_path)
    change(tmp_path, edit)
    with pytest.raises(CheckpointError, match=text):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_the_plain_architecture_refuses_the_file(tmp_path):
    model = with_embedding(tiny_bert(), max_bond=3)
    state = model.state_dict()
    assert state["bert.embeddings.word_embeddings.weight"].numel() == 0
    with pytest.raises(RuntimeError, match="size mismatch"):
        tiny_bert().load_state_dict(state, strict=False)


def test_tensors_that_are_read_from_memory_when_they_are_needed():
    accelerate = pytest.importorskip("accelerate")
    model = with_embedding(tiny_bert(), "query", max_bond=4)
    before = logits(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert bank_of(model).central.is_meta
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-6)


def test_a_model_without_values_says_so():
    model = with_embedding(tiny_bert(BertModel), max_bond=4).to("meta")
    assert embedding_of(model)(ids().to("meta")).shape == (2, 7, 32)
    with pytest.raises(mp.errors.PlacementError, match="bank 'embedding' must hold values"):
        embedding_of(model)(ids())


# Reports


def test_m05_counts_of_both_ends():
    plain = mp.account(tiny_bert())
    model = with_embedding(tiny_bert(), max_bond=3)
    report, cores = mp.account(model), sum(p.numel() for p in bank_of(model).parameters())
    assert cores == 1 * 4 * 2 * 3 + 3 * 5 * 4 * 3 + 3 * 5 * 4
    others = report.by_kind["embedding"] - cores
    assert plain.by_kind["embedding"] == 99 * 32 + others
    assert report.unique == plain.unique - 99 * 32 + cores
    assert report.total == plain.total - 2 * 99 * 32 + 2 * cores
    assert report.shared == plain.shared - 99 * 32 + cores
    assert report.dense == plain.dense == plain.unique
    assert mp.account(model.bert).total == mp.account(tiny_bert().bert).unique - 99 * 32 + cores


def test_describe_and_certificates():
    model = with_embedding(tiny_bert(BertModel), "pooler", max_bond={"embedding": 3})
    text = mp.describe(model)
    assert "embedding: 1 x (99 x 32), bonds 1 3 3 1, 1 central, 1 auxiliary, error 0." in text
    assert "pooler: 1 x (32 x 32)" in text
    found = mp.certificates(model)
    assert found["pooler.dense"].relative_error < 1e-6
    spec = model.config.quantization_config.plan.outside[0]
    wide = found["embeddings.word_embeddings"].relative_error
    assert spec.errors == (float(f"{wide:.6g}"),)
    assert "cls.predictions.decoder: reads the matrix of the embedding" in mp.describe(
        with_embedding(tiny_bert())
    )


def test_m03_what_was_put_in_the_place_of_a_reader_is_found():
    model = with_embedding(tiny_bert())
    mp.assert_shared(model)
    mp.assert_shared(copy.deepcopy(model))
    model.set_input_embeddings(nn.Embedding(99, 32))
    with pytest.raises(SharingError, match=r"word_embeddings must read the bank 'embedding'"):
        mp.assert_shared(model)
    model = with_embedding(tiny_bert())
    model.cls.predictions.decoder = head_of(with_embedding(tiny_bert()))
    with pytest.raises(SharingError, match=r"cls\.predictions\.decoder must read the bank"):
        mp.assert_shared(model)


def test_m04_copies_and_casts_keep_both_ends_together():
    model = copy.deepcopy(with_embedding(tiny_bert(), max_bond=3)).half().float()
    with torch.no_grad():
        bank_of(model).central.mul_(3)
    assert torch.equal(head_of(model).weight, embedding_of(model).weight)
    model.tie_weights()
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias


# Sizes of the vocabulary


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama"])
def test_another_size_of_the_vocabulary_is_refused(model_type, tmp_path):
    model = with_embedding(language_model(model_type), max_bond=3)
    model.save_pretrained(tmp_path)
    for each in (model, model.base_model, type(model).from_pretrained(tmp_path)):
        before = snapshot(each)
        for asked in ({"new_num_tokens": 100}, {"pad_to_multiple_of": 8}):
            with pytest.raises(ConversionError, match=r"keep the 99 rows .* got 10[04]\. Resize"):
                each.resize_token_embeddings(**asked)
        assert each.resize_token_embeddings() is embedding_of(each)
        assert each.resize_token_embeddings(99) is embedding_of(each)
        assert each.resize_token_embeddings(98, pad_to_multiple_of=99) is embedding_of(each)
        assert snapshot(each)[0] == before[0]


def test_a_copy_knows_its_own_embedding():
    model = with_embedding(tiny_bert(), max_bond=3)
    again = copy.deepcopy(model)
    assert again.resize_token_embeddings() is embedding_of(again) is not embedding_of(model)


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "electra"])
def test_the_remedy_works(model_type):
    model = with_embedding(language_model(model_type), max_bond=3)
    plain = mp.merge(model)
    for mine, expected in zip(outputs(plain), outputs(model), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
    assert plain.get_output_embeddings().weight is embedding_of(plain).weight
    plain.resize_token_embeddings(120, mean_resizing=False)
    again = with_embedding(plain, max_bond=3)
    assert outputs(again)[0].shape[-1] == 120
    mp.assert_shared(again)
