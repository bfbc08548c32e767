"""Parameter counts: sharing, ties, plain models, and the published sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.spec import BankSpec
from tests.mpobert_plugin.models import tiny_albert, tiny_bert

DOCS = Path(__file__).parents[2] / "docs"


def test_m05_one_central_tensor_in_twelve_layers():
    own = tuple(range(12))
    spec = BankSpec("query", 64, 64, (4, 4, 4), (4, 4, 4), (1, 16, 16, 1), (0,) * 12, own)
    report = mp.account(nn.ModuleList([mp.MPOBank(spec)]))
    assert (report.unique, report.total, report.dense) == (10_240, 55_296, 49_152)
    assert report.shared == 4096
    assert report.by_kind == {"central": 4096, "auxiliary": 6144}
    assert report.central_share == pytest.approx(0.4)
    assert report.ratio == pytest.approx(10_240 / 49_152)


def test_m05_plain_bert_with_tied_head():
    torch.manual_seed(0)
    model = tiny_bert()
    report = mp.account(model)
    assert (report.unique, report.total, report.dense) == (39_971, 43_238, 39_971)
    assert report.shared == 3_267
    assert sum(report.by_kind.values()) == report.unique
    assert "stored / dense twin 1.0000 (as large)" in str(report)


def test_converted_bert():
    model = mp.convert(tiny_bert(), sharing="all", fit="mean", adapter_rank=2)
    report = mp.account(model)
    assert report.unique == sum(p.numel() for p in model.parameters())
    assert report.dense == 39_971
    assert report.by_kind["central"] == 4 * 1024 + 2 * 2048
    assert report.by_kind["auxiliary"] == 6 * 4 * 2 * (16 + 256)
    assert report.by_kind["adapter"] == 4 * 4 * 2 * (32 + 32)
    assert report.by_kind["bias"] == 4 * (5 * 32 + 64)
    assert report.by_kind["norm"] == 4 * 2 * 64 + 64
    assert report.by_kind["embedding"] == 32 * (99 + 40 + 2)
    assert report.total - report.unique == 3 * report.by_kind["central"] + 3_267
    assert report.shared == report.by_kind["central"] + 3_267
    assert report.trainable == report.unique
    model.bert.mpo["query"].central.requires_grad_(False)
    assert mp.account(model).trainable == report.unique - 1024


def test_full_bonds_without_sharing_are_called_larger():
    report = mp.account(mp.convert(tiny_bert()))
    assert report.ratio > 1
    assert "(larger)" in str(report)
    assert report.before == report.dense
    assert report.ratio_before == report.ratio
    assert "before" not in str(report)


def test_an_albert_is_compared_with_itself_too():
    plain = tiny_albert()
    stored = mp.account(plain).unique
    assert mp.account(plain).before is None
    assert str(mp.account(plain)).endswith("plain matrices of its own in every layer.")
    model = mp.convert(plain)
    report = mp.account(model)
    assert report.before == stored
    assert report.ratio < 1 < report.ratio_before
    lines = str(report).splitlines()
    assert lines[-3] == f"stored / before conversion {report.unique / stored:.4f} (larger)"
    assert lines[-2].startswith(f"stored / dense twin {report.ratio:.4f} (smaller)")
    assert lines[-1] == "The dense twin has plain matrices of its own in every layer."
    assert mp.account(nn.Sequential(model)) == report
    # Where there is more than the model, what was before is not known; the table says what it
    # compares with.
    around = mp.account(nn.Sequential(model, nn.Linear(99, 2)))
    assert around.before is around.ratio_before is None
    assert str(around).splitlines()[-1] == lines[-1]
    deep = mp.account(mp.from_albert(tiny_albert(), 6))
    assert deep.before == stored


def test_albert_layers_count_each_run():
    plain = tiny_albert()
    report = mp.account(plain)
    layer = sum(p.numel() for p in plain.albert.encoder.albert_layer_groups.parameters())
    assert report.total - report.unique == 3 * layer + 99 * 16 + 99
    assert report.dense == report.unique + 3 * layer
    kept, deep = mp.account(mp.convert(tiny_albert())), mp.account(mp.from_albert(plain, 4))
    assert kept.dense == deep.dense == report.dense
    assert kept.by_kind["central"] == deep.by_kind["central"]
    assert kept.shared > kept.by_kind["auxiliary"]
    assert deep.by_kind["auxiliary"] == 4 * kept.by_kind["auxiliary"]


PUBLISHED = [
    ("mpobert-12", 0, "none", 19.41),
    ("mpobert-12", 4, "none", 19.72),
    ("mpobert-12", 8, "none", 20.02),
    ("mpobert-12", 64, "none", 24.29),
    ("mpobert-24", 0, "pretraining", 46.23),
    ("mpobert-48", 0, "pretraining", 74.62),
    ("mpobert-48+", 0, "pretraining", 99.78),
]


@pytest.mark.parametrize(("name", "rank", "head", "millions"), PUBLISHED)
def test_presets_have_the_published_sizes(name, rank, head, millions):
    model = mp.build(name, adapter_rank=rank, head=head, device="meta")
    report = mp.account(model)
    assert report.unique / 1e6 == pytest.approx(millions, abs=0.01)
    assert model.device.type == "meta"
    assert len(list(model.parameters())) < 70
    groups = 3 if name.endswith("+") else 1
    assert model.base_model.mpo["ffn_in"].central.shape[0] == groups
    mp.assert_shared(model)


def test_table_and_command_have_the_same_words(tmp_path):
    # The README shows the table, and the docs explain each of its words.
    model = mp.convert(tiny_albert(), n=3)
    model.save_pretrained(tmp_path)
    names = [name.strip() for name, _, _ in mp.account(model).rows()]
    explained = (DOCS / "concepts" / "sharing.md").read_text(encoding="utf-8")
    assert set(names) - set(explained.splitlines()) == {*mp.account(model).by_kind, "trainable"}
    shown = CliRunner().invoke(app, ["account", str(tmp_path)]).stdout
    rows = [line.strip("│").split("│") for line in shown.splitlines() if line.startswith("│")]
    table = [tuple(cell.strip() for cell in row) for row in rows]
    assert table == [tuple(cell.strip() for cell in row) for row in mp.account(model).rows()]
    assert shown.splitlines()[-3:] == list(mp.account(model).summary())


def test_table():
    text = str(mp.account(mp.build("mpobert-48", device="meta")))
    assert "stored (unique)                  74,618,034" in text
    assert "dense twin" in text
