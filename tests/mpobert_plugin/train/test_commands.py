"""``mpobert prepare`` and ``mpobert pretrain``, and the models that runs start from."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.cli.change import GAUGE, RANK, SITES
from mpobert_plugin.errors import CheckpointError, ConfigError
from mpobert_plugin.train.run import settings_of
from mpobert_plugin.train.source import start_model
from tests.mpobert_plugin.train.tiny_run import DOCS, corpus_in, fresh

SMALL = {
    "num_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "embedding_size": 8,
    "n": 3,
}
STEPS = ["steps=2", "batch_size=4", "micro_batch=2", "length=32", "masked_most=5", "workers=0"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_from_text_to_a_model(tmp_path):
    texts, data = tmp_path / "texts", tmp_path / "data"
    texts.mkdir()
    (texts / "text.txt").write_text("\n\n".join(DOCS))
    (texts / "table.csv").write_text("1,2")
    done = invoke("prepare", texts, "-o", data, "--size", 90, "--workers", 1)
    assert done.exit_code == 0, done.output
    # Nothing stands before them, not even an empty line in place of a bar.
    left_out, corpus = done.stdout.splitlines()
    assert left_out == f"Left out of {texts}: 1 file of other kinds than text (1 .csv)."
    assert corpus.startswith("Corpus(")
    assert "40 documents" in done.stdout
    sizes = [f"model.{name}={value}" for name, value in SMALL.items()]
    words = ["model.preset=mpobert-12", *sizes, f"data={data}", f"out={tmp_path / 'run'}"]
    done = invoke("pretrain", *words, *STEPS, "precision=fp32", f"held_out={data}")
    assert done.exit_code == 0, done.output
    assert "finished after step 2" in done.stdout
    again = invoke("pretrain", *words, *STEPS, "precision=fp32", f"held_out={data}")
    assert "has made all of its 2 steps" in again.stdout


def test_a_file_of_settings(tmp_path, corpus):
    lines = [f"data: {corpus.folder}", "steps: 3", "model:", "  preset: mpobert-12"]
    lines += [f"  {name}: {value}" for name, value in SMALL.items()]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    order = settings_of(tmp_path / "run.yaml", ["steps=4", "model.adapter_rank=2"])
    assert order["config"].steps == 4
    assert order["model"].config.vocab_size == 128
    assert order["model"].albert.mpo["query"].adapter_up.shape == (2, 16, 2)
    assert order["out"] == "mpobert-run"


@pytest.mark.parametrize("module", ["mpobert_plugin", "mpobert_plugin.cli"])
def test_the_module_is_the_command(module):
    assert quickly(module, "--version").stdout == invoke("--version").stdout


def quickly(module, *words):
    """Run a command that imports nothing which takes seconds."""
    command = [sys.executable, "-X", "importtime", "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    loaded = {name.partition(".")[0] for name in names}
    assert "mpobert_plugin" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "scipy", "tensornet"}
    return done


def test_help_is_quick():
    help_of = quickly("mpobert_plugin", "convert", "-h").stdout
    assert "--calibration" in help_of
    config = mp.MPOConfig()
    assert (config.n, config.adapter_rank, config.gauge) == (SITES, RANK, GAUGE)


@pytest.mark.slow
def test_a_command_that_is_given_such_a_word_as_a_value_runs():
    words = ["convert", "nowhere", "--out", "new", "--sharing", "--help"]
    command = [sys.executable, "-m", "mpobert_plugin", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert re.match(r"Error: .*sharing|Error: .*nowhere", done.stderr)


def test_every_setting_is_printed():
    done = invoke("pretrain", "--options")
    assert done.exit_code == 0
    assert re.search(r"^lr: 0.00176  # Largest", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", "lrr=1"], "'lrr': Did you mean 'lr'"),
        (["pretrain", "steps=2"], "model must be given"),
        (["pretrain", "model=mpobert-12"], "data must be given"),
        (["pretrain", "nowhere.yaml"], "must be a YAML file"),
        (["prepare", "nowhere.txt", "-o", "out"], "existing files or folders"),
        (
            ["prepare", "pyproject.toml", "-o", "out"],
            "got pyproject.toml. Give plain text the ending",
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(words, message):
    done = invoke(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.output


def test_a_run_starts_from_a_folder_or_a_deepened_albert(tmp_path, corpus):
    converted = fresh()
    converted.save_pretrained(tmp_path / "converted")
    mp.merge(fresh(num_layers=1)).save_pretrained(tmp_path / "albert")
    loaded = start_model(str(tmp_path / "converted"), corpus, 32)
    pairs = zip(loaded.parameters(), converted.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert type(loaded) is type(converted)
    deep = start_model(
        {"from_albert": str(tmp_path / "albert"), "num_layers": 3, "n": 3}, corpus, 32
    )
    assert deep.albert.mpo["query"].central.shape[0] == 1
    assert deep.config.num_hidden_layers == 3
    mp.assert_shared(deep)


def test_fresh_models_depend_on_the_seed_alone(corpus):
    given = {"preset": "mpobert-12", **SMALL}
    a, b, c = (start_model(given, corpus, 32, seed) for seed in (1, 1, 2))
    assert torch.equal(next(a.parameters()), next(b.parameters()))
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("mpobert12", ConfigError, "Did you mean 'mpobert-12'"),
        (3, ConfigError, "a name or a mapping, got 3"),
        ({}, ConfigError, "got none of nothing"),
        ({"preset": "mpobert-12", "folder": "x"}, ConfigError, "got preset, folder"),
        ({"folder": "nowhere"}, CheckpointError, "folder with a config.json, got nowhere"),
    ],
)
def test_descriptions_that_are_no_model(corpus, given, error, message):
    with pytest.raises(error, match=message):
        start_model(given, corpus, 32)
