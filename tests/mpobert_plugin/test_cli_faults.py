"""Strange arguments of the commands: one line that says what is wrong, and nothing written."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

from mpobert_plugin.cli import app
from tests.mpobert_plugin.models import tiny_bert


@pytest.fixture
def bert(tmp_path):
    tiny_bert().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def fails(*command):
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sharing", "[]"], "layers [0, 1, 2, 3] are in no block"),
        (["--sharing", "[" * 50_000], "--sharing must be a word or JSON, got '[[["),
        (["--sharing", '{"key": "all", "key": "none"}'], "'key' comes twice in one object"),
        (["--shapes", "[[4, 8], [8, "], "--shapes must be a word or JSON, got '[[4, 8], [8, '"),
        (["--plot", "nowhere/errors.png"], "--plot must lie in a folder that is there, got no"),
    ],
)
def test_impossible_options(bert, tmp_path, options, message):
    assert message in fails("convert", bert, "-o", tmp_path / "out", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 50_000, "must be JSON, got a file that is none: maximum recursion"),
        ('{"n": 3, "n": 2}', "must be JSON, got a file that is none: 'n' comes twice in one"),
        ("null", "must hold one object of options, got None."),
        ('{"quant_method": "gptq"}', "quant_method must be 'mpo', got 'gptq'."),
    ],
)
def test_strange_files_of_options(bert, tmp_path, text, message):
    file = tmp_path / "options.json"
    file.write_text(text)
    assert message in fails("convert", bert, "-o", tmp_path / "out", "--config", file)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["account"], ["report"]])
def test_pictures_need_a_folder(bert, tmp_path, command):
    place = tmp_path / "nowhere" / "picture.png"
    assert f"must lie in a folder that is there, got {place}." in fails(
        *command, bert, "--plot", place
    )
    (tmp_path / "folder.png").mkdir()
    message = fails(*command, bert, "--plot", tmp_path / "folder.png", "--force")
    assert "--plot must be a file, got the folder" in message


@pytest.mark.parametrize("command", ["convert", "merge"])
def test_a_folder_cannot_lie_in_a_file(bert, tmp_path, command):
    (tmp_path / "file").write_text("x")
    message = fails(command, bert, "-o", tmp_path / "file" / "deep" / "out")
    assert f"--out must lie in a folder, got {tmp_path / 'file' / 'deep' / 'out'} in" in message


@pytest.mark.parametrize("command", [("convert", "--max-bond", 2), ("merge",)])
def test_force_removes_a_model_and_nothing_else(command, bert, tmp_path):
    name, *options = command
    out = tmp_path / "out"
    shutil.copytree(bert, out)
    (out / "notes.txt").write_text("x")
    (out / "runs").mkdir()
    message = fails(name, bert, "-o", out, *options, "--force")
    assert "--out must hold nothing but a model where --force replaces it" in message
    assert "notes.txt, runs. Move that away, or name another folder" in message
    assert (out / "notes.txt").read_text() == "x"
