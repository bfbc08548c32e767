"""Only the command itself, asked for words, goes without most of the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mpobert_plugin.cli import app
from mpobert_plugin.words import asks_for_words

STUB = """#!/usr/bin/python
# -*- coding: utf-8 -*-
import re
import sys
from mpobert_plugin.cli import app
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(app())
"""
OTHER = "import mpobert_plugin as mp\nprint(mp.convert)\n"


def script(folder: Path, text: str, name: str = "mpobert") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], True), (["convert", "-h"], True), (["--version"], True), (["convert", "x"], False)],
)
def test_the_script_that_installers_write(words: list[str], asked: bool, tmp_path: Path) -> None:
    path = script(tmp_path, STUB)
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "mpobert"
    link.symlink_to(path)
    for program in (path, str(link)):
        assert asks_for_words([program, *words], ["python", program, *words]) is asked


@pytest.mark.parametrize("words", [[], ["--help"]])
@pytest.mark.parametrize(
    "text", [OTHER, STUB + OTHER, "from mpobert_plugin.cli import app\napp\n", STUB + "#" * 2000]
)
def test_other_scripts_of_that_name(text: str, words: list[str], tmp_path: Path) -> None:
    program = script(tmp_path, text)
    assert not asks_for_words([program, *words], ["python", program, *words])


def test_other_programs_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "mpobert").mkdir()
    (tmp_path / "mpobert" / "__main__.py").write_text(OTHER)
    for program in (str(tmp_path / "mpobert"), "mpobert", "mpobert_plugin", "-c", ""):
        assert not asks_for_words([program, "--help"], ["python", program, "--help"])
    assert not asks_for_words(["-m", "--help"], ["python", "-m", "mpobert", "--help"])
    assert not asks_for_words(["-m", "--help"], ["python", "-m"])
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "mpobert").write_bytes(b"\xff\xfe\x00")
    assert not asks_for_words([str(tmp_path / "bytes" / "mpobert")], [])


def test_programs_of_windows_lie_beside_the_interpreter(tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("mpobert.exe")
    assert asks_for_words([str(beside), "--help"], [])
    assert not asks_for_words([str(tmp_path / "mpobert.exe"), "--help"], [])


def test_an_embedded_interpreter_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    assert not asks_for_words()
    monkeypatch.delattr(sys, "argv")
    monkeypatch.delattr(sys, "orig_argv")
    assert not asks_for_words()


@pytest.mark.parametrize("words", [[], ["convert"], ["pretrain"]])
def test_the_short_word_for_help(words: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*words, word]) for word in ("-h", "--help"))
    assert short.exit_code == 0
    assert "Usage" in short.output
    assert short.output == long.output
