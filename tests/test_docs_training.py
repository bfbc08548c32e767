"""The pages about pre-training say what the code does: settings, files, keys, messages."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("docutils")

import numpy as np
import torch
from safetensors import safe_open

import mpobert_plugin as mp
from mpobert_plugin import train
from mpobert_plugin.errors import MPOBertError
from mpobert_plugin.train.data.vocabulary import load_tokenizer

DOCS = Path(__file__).parents[1] / "docs"
TEXTS = [f"Number {k} is here. It is followed by {k + 1}. Then comes {k + 2}." for k in range(30)]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("table", DOCS / "_ext" / "settings_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["table"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> train.Corpus:
    return train.prepare(TEXTS, tmp_path_factory.mktemp("text"), train.Vocabulary(size=90))


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = mp.build(
        "mpobert-12", num_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        embedding_size=8, vocab_size=96, max_position_embeddings=48, n=3,
    )  # fmt: skip
    config = train.PretrainConfig(
        steps=2, batch_size=4, micro_batch=2, length=32, masked_most=5, precision="fp32",
        log_every=1, eval_every=2, eval_batches=1, workers=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("run") / "run"
    train.pretrain(model, corpus, config, folder, held_out=corpus, device="cpu")
    return folder


def tried(name: str, value: object) -> bool:
    try:
        train.PretrainConfig(**{name: value})
    except MPOBertError:
        return False
    return True


def test_every_setting_is_in_the_table_with_what_it_may_be(table):
    rows = {row.name: row for row in table.rows()}
    assert list(rows) == [entry.name for entry in fields(train.PretrainConfig)]
    for row in rows.values():
        assert row.text.endswith(".")
        assert bool(row.words) != bool(row.range), row.name
        assert not row.words or row.default in row.words


def test_the_words_of_the_table_are_those_that_settings_take(table):
    for row in table.rows():
        for word in row.words:
            assert tried(row.name, {"true": True, "false": False}.get(word, word)), (row.name, word)
        if row.words:
            assert not tried(row.name, "no such word"), row.name


def bounds(text: str) -> tuple[float, float, bool, bool]:
    """Return the limits of a range of the table, and whether they are inside."""
    numbers = [eval(number) for number in re.findall(r"2\*\*-?\d+(?: - 1)?|[\d.,e+]*\d", text)]
    low, high = numbers[0], numbers[1] if len(numbers) > 1 else math.inf
    return low, high, "above" not in text, "below" not in text


def test_the_ranges_of_the_table_are_those_that_settings_take(table):
    for row in table.rows():
        if not row.range:
            continue
        text = row.range.replace("above 0, below 1", "above 0 to below 1").replace(",", "")
        low, high, with_low, with_high = bounds(text)
        least = 1 if row.kind == "int" else 1e-9
        assert tried(row.name, low) == with_low, row
        assert not tried(row.name, low - least), row
        if high < math.inf:
            assert tried(row.name, high) == with_high, row
            assert not tried(row.name, high * 1.001 if row.kind == "float" else high + 1), row


def test_the_table_becomes_rows_with_anchors(table):
    from docutils import nodes

    rows = list(table.made().findall(nodes.row))
    assert len(rows) == 1 + len(fields(train.PretrainConfig))
    assert "setting-steps" in rows[1]["ids"]
    assert "10000" in rows[1].astext()


def test_the_page_of_the_text_names_every_file_and_key(corpus):
    text = page("reference/data-format.md")
    for file in corpus.folder.iterdir():
        assert f"`{file.name}`" in text, file.name
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    for key in (*manifest, *manifest["options"], "bytes", "sha256"):
        assert f"`{key}`" in text or f'"{key}"' in text, key


def test_the_example_of_the_page_of_the_text_reads_it(corpus, monkeypatch):
    code = re.search(r"```python\n(.*?)```", page("reference/data-format.md"), re.DOTALL)
    monkeypatch.chdir(corpus.folder.parent)
    names: dict[str, object] = {}
    exec(code[1].replace("corpus/", f"{corpus.folder.name}/"), names)
    decoded = load_tokenizer(corpus.folder).decode(np.asarray(names["first"]).tolist())
    assert decoded == "number 0 is here. it is followed by 1. then comes 2."


def keys_of(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value) | {key for inner in value.values() for key in keys_of(inner)}


def test_the_page_of_checkpoints_names_every_file_and_key(run):
    text = page("reference/checkpoint-format.md")
    names = {path.name for path in run.rglob("*") if path.is_file() and "tfevents" not in path.name}
    assert names >= {"config.json", "log.jsonl", "checkpoint.json", "optimizer.safetensors"}
    for name in names:
        assert name in text, name
    seal = json.loads((run / "checkpoints/step-000000002/checkpoint.json").read_text())
    settings = set(seal["state"].pop("config"))
    files = set(seal.pop("files"))
    for key in keys_of(seal) | {"config", "files", "bytes", "sha256"}:
        assert f"`{key}`" in text or f'"{key}"' in text, key
    assert settings == {entry.name for entry in fields(train.PretrainConfig)}
    assert files >= {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"}
    assert all(name in text for name in files)


def test_the_page_of_checkpoints_names_the_tensors_of_the_optimizer(run):
    folder = run / "checkpoints/step-000000002"
    with safe_open(folder / "optimizer.safetensors", "pt") as handle:
        kinds = {key.rpartition("|")[2] for key in handle.keys()}  # noqa: SIM118
    text = page("reference/checkpoint-format.md")
    assert kinds == {"exp_avg", "exp_avg_sq", "step"}
    assert all(f"`{kind}`" in text for kind in kinds)


def test_the_page_of_checkpoints_names_every_number_of_the_log(run):
    text = page("reference/checkpoint-format.md")
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} >= {"train", "eval"}
    for key in {key for record in records for key in record}:
        what, by, kind = key.partition("_norm_")
        assert f"`{what}_norm_central`" in text if by else f"`{key}`" in text, key
        assert not by or f"`{kind}`" in text or kind == "central", key


def test_the_numbers_of_the_page_about_lost_losses_are_those_of_the_guard():
    from mpobert_plugin.train import guard, loop, signals

    text, config = page("howto/divergence.md"), train.PretrainConfig()
    assert f"{config.guard_skips} steps in a row (`guard_skips`)" in text
    assert config.guard_factor == 2.0
    assert "above twice its running mean (`guard_factor`)" in text
    assert f"from the {guard._FIRST + 1}st step on; a mean below {guard._LOW:.0f} counts" in text
    assert loop._MOST_ROLLBACKS == 3
    assert "Three times at most" in text
    assert signals._SAME == 2.0
    assert "more than two seconds later" in page("howto/resume.md")


PAGES = ("howto/resume", "howto/multi-node", "howto/divergence", "howto/pretraining")
PAGES += ("tutorials/pretraining", "concepts/training", "reference/settings")


@pytest.mark.parametrize("name", PAGES)
def test_settings_that_pages_name_exist(name):
    known = {entry.name for entry in fields(train.PretrainConfig)}
    known |= {"model", "data", "held_out", "out", "preset"}
    given = re.findall(r"`(\w+): \w[\w-]*`", page(f"{name}.md"))
    given += re.findall(r"pretrain run\.yaml (\w+)=", page(f"{name}.md"))
    for block in re.findall(r"```yaml\n(.*?)```", page(f"{name}.md"), re.DOTALL):
        given += re.findall(r"^(\w+):", block, re.MULTILINE)
    assert set(given) <= known
