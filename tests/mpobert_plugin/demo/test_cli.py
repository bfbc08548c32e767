"""The command line: help, version, messages and exit codes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mpobert_plugin.cli import app
from mpobert_plugin.demo import run as demo_run
from mpobert_plugin.demo import source
from mpobert_plugin.demo.errors import DemoError, MissingPackageError

runner = CliRunner()


@pytest.mark.parametrize("command", [["--help"], ["demo", "--help"], []])
def test_help(command):
    result = runner.invoke(app, command, env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert "demo" in result.output
    if command == ["demo", "--help"]:
        assert all(name in result.output for name in ("--out", "--steps", "--seed", "--quiet"))


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip()


def test_a_missing_package_gives_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "PACKAGE", "no_such_package_here")
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps rxnmapper==0\.4\.3"):
        source.find_albert()
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "Run: pip install --no-deps rxnmapper==0.4.3" in result.output
    assert not list(tmp_path.iterdir())


def test_a_package_without_the_model(monkeypatch, tmp_path):
    (tmp_path / "hollow_package").mkdir()
    (tmp_path / "hollow_package" / "__init__.py").write_text("raise SystemExit('never run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(source, "PACKAGE", "hollow_package")
    with pytest.raises(DemoError, match=r"config\.json, pytorch_model\.bin, vocab\.txt is missing"):
        source.find_albert()


def test_a_failed_claim_gives_exit_code_1(monkeypatch):
    monkeypatch.setattr(demo_run, "run", lambda _settings, _console: ["the sky is green"])
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "These claims do not hold: the sky is green" in result.output


def test_options_reach_the_demo(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(demo_run, "run", lambda *given: seen.append(given) or [])
    command = ["demo", "--steps", "7", "--seed", "5", "--out", str(tmp_path), "--quiet"]
    assert runner.invoke(app, command).exit_code == 0
    ((settings, console),) = seen
    assert (settings.steps, settings.seed, settings.out) == (7, 5, tmp_path)
    assert console.quiet


def test_ctrl_c_is_no_traceback(monkeypatch):
    def stop(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_run, "run", stop)
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 130
    assert "Stopped; nothing was written." in result.output


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_impossible_steps(steps):
    assert runner.invoke(app, ["demo", "--steps", steps]).exit_code == 2
