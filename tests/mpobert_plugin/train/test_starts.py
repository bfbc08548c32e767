"""Where runs start, and what can be done with what they leave."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.errors import CheckpointError, ConfigError
from mpobert_plugin.presets import PRESETS, SMALL_PRESETS
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.presets import SETTINGS
from mpobert_plugin.train.run import pretrain, settings_of
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.settings_file import read_settings, split_settings
from mpobert_plugin.train.source import start_model
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

LOAD = """
import json, sys, torch, mpobert_plugin as mp
from transformers import AutoModelForPreTraining, AutoTokenizer
model = AutoModelForPreTraining.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
mp.assert_shared(model)
text = tokenizer("the number 3 is here.", "and then comes 4.", return_tensors="pt")
with torch.no_grad():
    logits = model(**text).prediction_logits
found = {name: value.tolist() for name, value in text.items()} | {"logits": logits.tolist()}
found |= {"words": tokenizer.convert_ids_to_tokens(text["input_ids"][0])}
print(json.dumps({**found, "mask": tokenizer.mask_token, "most": tokenizer.model_max_length}))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    pretrain(fresh(), corpus, BASE.replace(steps=4), folder, device="cpu")
    return folder


def same(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.slow
def test_any_checkpoint_is_a_model_in_a_new_process(corpus, run):
    folder = run / "checkpoints" / "step-000000003"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["words"][:8] == ["[CLS]", "the", "number", "3", "is", "here", ".", "[SEP]"]
    assert found["input_ids"][0][-1] == corpus.special.end
    assert found["token_type_ids"] == [[0] * 8 + [1] * (len(found["words"]) - 8)]
    assert (found["mask"], found["most"]) == ("[MASK]", BASE.length)
    inputs = {name: torch.tensor(found[name]) for name in ("input_ids", "token_type_ids")}
    with torch.no_grad():
        logits = start_model(str(folder), corpus, 32).eval()(**inputs).prediction_logits
    torch.testing.assert_close(logits, torch.tensor(found["logits"]), rtol=1e-5, atol=1e-5)


def test_commands_take_a_checkpoint(run, tmp_path):
    folder = str(run / "checkpoints" / "step-000000004")
    for words in (["account", folder], ["describe", folder], ["merge", folder, "-o", "plain"]):
        words = [str(tmp_path / "plain") if word == "plain" else word for word in words]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "plain" / "model.safetensors").exists()


def test_a_run_starts_from_a_checkpoint_of_another_with_other_settings(corpus, run, tmp_path):
    folder = run / "checkpoints" / "step-000000003"
    assert same(start_model(str(folder), corpus, 32), start_model({"folder": folder}, corpus, 32))
    last = start_model(str(run), corpus, 32)
    assert same(last, start_model(str(run / "checkpoints" / "step-000000004"), corpus, 32))
    assert not same(last, start_model(str(folder), corpus, 32))
    words = [f"model={run}", f"data={corpus.folder}", f"out={tmp_path / 'new'}", "lr=1e-3"]
    words += ["steps=2", "batch_size=4", "micro_batch=2", "length=16", "masked_most=3"]
    done = CliRunner().invoke(app, ["pretrain", *words, "precision=fp32", "workers=0"])
    assert done.exit_code == 0, done.output
    kept = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (kept["model"], kept["data"]) == (str(run), str(corpus.folder))
    assert kept["lr"] == 1e-3
    # What is kept is a file of settings: it goes on with the run.
    again = CliRunner().invoke(app, ["pretrain", str(tmp_path / "new" / "config.json")])
    assert again.exit_code == 0, again.output
    assert "has made all of its 2 steps" in again.output


def test_a_damaged_checkpoint_is_no_model(corpus, run, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "step-000000004"
    weights = bytearray((last / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (last / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"model\.safetensors has another checksum"):
        start_model(str(last), corpus, 32)
    # A run has an earlier one.
    earlier = start_model(str(run / "checkpoints" / "step-000000003"), corpus, 32)
    assert same(start_model(str(tmp_path / "run"), corpus, 32), earlier)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000000003")
    with pytest.raises(CheckpointError, match=r"a run with a checkpoint, got .* another checksum"):
        start_model(str(tmp_path / "run"), corpus, 32)


def test_a_text_of_another_tokenizer_is_refused(run, tmp_path):
    other = prepare(
        ["Whatever else is said. It is said here."], tmp_path / "c", Vocabulary(size=60)
    )
    message = r"got \d+ of \d+ that have another number in .*: '.*Prepare the text with --tokenizer"
    with pytest.raises(ConfigError, match=message):
        start_model(str(run), other, 32)


@pytest.mark.parametrize(("task", "told"), [("sentence_order", True), ("full", False)])
def test_a_model_without_a_head_for_order_is_told_of(corpus, tmp_path, task, told):
    said, config = [], BASE.replace(steps=1, task=task)
    model = fresh(head="masked_lm")
    pretrain(model, corpus, config, tmp_path / "run", device="cpu", say=said.append)
    assert any("no head for the order of two segments" in text for text in said) is told


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_tiny_presets(name):
    model = mp.build(name, device="meta", vocab_size=8000)
    kinds = mp.account(model).by_kind
    assert kinds["central"] > kinds["auxiliary"]
    assert model.config.hidden_size == {"mpobert-tiny": 128, "mpobert-mini": 256}[name]
    mp.assert_shared(model)


def test_every_model_has_settings():
    assert set(SETTINGS) == {*PRESETS, *SMALL_PRESETS}
    assert read_settings(None, ["preset=mpobert-48"]) == PretrainConfig()
    config = read_settings(None, ["preset=mpobert-tiny", "steps=7"])
    assert (config.steps, config.batch_size, config.precision) == (7, 64, "fp32")


@pytest.mark.parametrize(
    "words",
    [
        ["preset=mpobert-tiny", "model.num_layers=3"],
        ["model.num_layers=3", "preset=mpobert-tiny"],
        ["model=mpobert-tiny", "model.num_layers=3"],
        ["model.preset=mpobert-tiny", "model.num_layers=3"],
    ],
)
def test_options_of_the_model_stand_beside_its_preset(words):
    expected = {"preset": "mpobert-tiny", "num_layers": 3}
    assert split_settings(None, words, ["model"])[1] == {"model": expected}


def test_options_of_a_model_need_one_that_takes_them():
    with pytest.raises(ConfigError, match=r"'model.num_layers=3' needs a preset .* got 'folder'"):
        split_settings(None, ["model=folder", "model.num_layers=3"], ["model"])


def test_a_preset_is_all_that_a_run_needs_beside_text(corpus, tmp_path):
    (tmp_path / "run.yaml").write_text(f"preset: mpobert-tiny\ndata: {corpus.folder}\nlr: 2e-3\n")
    order = settings_of(tmp_path / "run.yaml", ["steps=20"])
    assert order["model"].config.num_hidden_layers == 2
    assert order["model"].config.vocab_size == 128
    assert (order["config"].lr, order["config"].steps, order["config"].length) == (2e-3, 20, 128)
    other = settings_of(tmp_path / "run.yaml", ["model=mpobert-mini"])
    assert other["model"].config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modl=mpobert-tiny"], "'modl': Did you mean 'model'"),
        (["dta=corpus"], "'dta': Did you mean 'data'"),
        (["prset=mpobert-tiny"], "'prset': Did you mean 'preset'"),
        (["preset=mpobert-tny"], "preset must be one of .* Did you mean 'mpobert-tiny'"),
        (["preset=3"], "preset must be one of .* got 3"),
        (["model.presett=mpobert-tiny"], r"got none of presett\. Did you mean 'preset'"),
        (["model.preset=mpobert-tiny", "model.num_layer=3"], "Did you mean 'num_layers'"),
    ],
)
def test_misspelt_names(corpus, words, message):
    with pytest.raises(ConfigError, match=message):
        settings_of(None, [*words, *([] if "dta" in words[0] else [f"data={corpus.folder}"])])


def test_a_deepened_albert_needs_its_depth(corpus, tmp_path):
    mp.merge(fresh(num_layers=1)).save_pretrained(tmp_path / "albert")
    given = {"from_albert": str(tmp_path / "albert")}
    with pytest.raises(ConfigError, match="from_albert must have num_layers, got none"):
        start_model(given, corpus, 32)
    with pytest.raises(ConfigError, match="Did you mean 'num_layers'"):
        start_model({**given, "num_layers": 3, "num_layer": 3}, corpus, 32)


@pytest.mark.nightly
def test_the_tiny_preset_learns_on_a_processor(corpus, tmp_path):
    words = ["preset=mpobert-tiny", f"data={corpus.folder}", f"held_out={corpus.folder}"]
    words += ["steps=120", "length=32", "masked_most=5", "eval_every=120", "workers=0"]
    order = settings_of(None, [*words, f"out={tmp_path / 'run'}"])
    pretrain(**order, device="cpu")
    records = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    (held_out,) = [record for record in records if record["kind"] == "eval"]
    # Far below what the frequencies of the words alone can give.
    assert held_out["masked_loss"] < 0.6 * math.log(90)
