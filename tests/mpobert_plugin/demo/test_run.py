"""The demo from end to end, in small; its screen."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from mpobert_plugin.demo.picture import Curve, draw
from mpobert_plugin.demo.run import PICTURE, run
from mpobert_plugin.demo.screen import Screen
from mpobert_plugin.demo.settings import Settings
from mpobert_plugin.demo.threads import half_the_cores
from tests.mpobert_plugin.real import needs_albert


def console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width)


@needs_albert
def test_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings(steps=3, batch=4, stride=24, maskings=1, rise=-1.0)
    screen = console()
    assert run(settings, screen) == []
    text = screen.file.getvalue()
    assert "All 6 claims hold" in text
    assert "picture  mpobert-demo/spectra-and-loss.png" in text
    assert "step 3 of 3" in text
    folder = tmp_path / "mpobert-demo"
    assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    result = json.loads((folder / "demo.json").read_text())
    assert len(result["losses"]) == 3
    assert all(result["claims"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["mpobert-demo"]


def test_half_the_cores_are_used_and_given_back():
    before = torch.get_num_threads()
    with half_the_cores() as threads:
        assert 1 <= threads <= before
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == before


def test_failed_claims_are_remembered():
    screen = Screen(console())
    screen.step("First")
    screen.claim(True, "one is one")
    screen.claim(False, "one is two")
    assert screen.failed == ["one is two"]
    text = screen.console.file.getvalue()
    assert "1  First" in text
    assert "one is two" in text


def test_marks_are_plain_where_the_terminal_is():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    screen = Screen(Console(file=file, width=80))
    screen.claim(True, "fine")
    screen.claim(False, "not fine")
    file.seek(0)
    assert file.read().split() == ["ok:", "fine", "FAILED:", "not", "fine"]


def test_the_bar_moves_in_a_terminal():
    screen = Screen(Console(file=io.StringIO(), width=100, force_terminal=True))
    with screen.training(4) as report:
        for step in range(1, 5):
            report(step, 1.0 / step)
    assert "4/4" in screen.console.file.getvalue()
    assert "loss 0.250" in screen.console.file.getvalue()


@pytest.mark.parametrize("losses", [[1.0], [1.0, 0.5, 0.25]])
def test_a_picture_of_few_steps(tmp_path, losses):
    draw(tmp_path / "p.png", {"query": [3.0, 1.0]}, Curve(losses, 0.5, 0.75))
    assert (tmp_path / "p.png").stat().st_size > 10_000
