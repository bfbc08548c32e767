"""A run writes into a folder of its own, and into no other."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from mpobert_plugin.cli import app
from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train import run as run_module
from mpobert_plugin.train.run import pretrain, settings_of
from mpobert_plugin.train.run_folder import check_out, is_run
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

SHORT = BASE.replace(steps=2, save_every=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def texts_in(folder, number=6):
    folder.mkdir()
    for k in range(number):
        (folder / f"{k}.txt").write_text("Mine.")
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_with_other_things_is_refused_and_stays_as_it_is(corpus, tmp_path):
    texts = texts_in(tmp_path / "texts")
    (texts / "log.jsonl").write_text('{"text": "a record of mine"}\n')
    before = names(texts)
    with pytest.raises(CheckpointError) as error:
        pretrain(fresh(), corpus, SHORT, texts, device="cpu")
    assert str(error.value) == (
        f"out must be a new or an empty folder, or that of a run, got {texts}, which holds other "
        "things: 0.txt, 1.txt, 2.txt, 3.txt, ... (7 in total). Nothing was changed. Name another "
        f"folder, such as {texts / 'run'}."
    )
    assert names(texts) == before
    # A folder inside, as the message says.
    assert pretrain(fresh(), corpus, SHORT, texts / "run", device="cpu").finished


def test_the_command_refuses_before_a_model_is_made(corpus, tmp_path, monkeypatch):
    texts = texts_in(tmp_path / "texts", 1)

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(run_module, "start_model", never)
    words = ["preset=mpobert-tiny", f"data={corpus.folder}", f"out={texts}"]
    with pytest.raises(CheckpointError, match=r"got .*texts, which holds other things: 0\.txt\."):
        settings_of(None, words)
    done = CliRunner().invoke(app, ["pretrain", *words])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: out must be a new or an empty folder")
    assert names(texts) == ["0.txt"]


def test_models_and_corpora_are_no_runs(corpus, tmp_path):
    fresh().save_pretrained(tmp_path / "model")
    for folder in (tmp_path / "model", corpus.folder):
        assert not is_run(folder)
        with pytest.raises(CheckpointError, match="which holds other things: "):
            check_out(folder)
    with pytest.raises(CheckpointError, match=r"other things: config\.json, model"):
        pretrain(fresh(), corpus, SHORT, tmp_path / "model", device="cpu")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": 3}', "[" * 100_000, "\x00"])
def test_a_configuration_of_something_else_is_no_run(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"other things: config\.json\."):
        check_out(tmp_path)


def test_new_and_empty_folders_and_remains_of_a_start_are_fine(tmp_path):
    for name in ("", ".lock", ".config.json.0123abcd.tmp", ".gitkeep"):
        folder = tmp_path / f"with{name}"
        check_out(folder)
        folder.mkdir()
        if name:
            (folder / name).touch()
        (folder / "tensorboard").mkdir()
        check_out(folder)


def test_a_run_may_have_notes_beside_it_and_goes_on(corpus, tmp_path):
    run = tmp_path / "run"
    pretrain(fresh(), corpus, SHORT, run, device="cpu")
    (run / "notes.txt").write_text("mine")
    assert {"steps", "micro_batch"} <= set(json.loads((run / "config.json").read_text()))
    # Either tells that it is a run: its checkpoints, and its settings before the first one.
    (run / "config.json").rename(run / "kept")
    check_out(run)
    (run / "kept").rename(run / "config.json")
    shutil.rmtree(run / "checkpoints")
    assert pretrain(fresh(), corpus, SHORT, run, device="cpu").finished
    assert "notes.txt" in names(run)


def test_a_folder_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "iterdir", refused)
    with pytest.raises(CheckpointError, match=r"out must be a folder that can be read: .*denied"):
        check_out(tmp_path)
