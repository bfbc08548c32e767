"""Losses that explode or are not finite: the run stops with advice, or goes back."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from mpobert_plugin.errors import DivergenceError
from mpobert_plugin.train.guard import Health, examine
from mpobert_plugin.train.loop import Loop
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

USUAL = Health(mean=6.0, seen=30)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_lost_at_once_but_where_a_scale_may_mend_it(loss):
    for skipped, scaled in ((False, True), (False, False), (True, False)):
        _, lost = examine(USUAL, loss, skipped, 2.0, 50, scaled)
        assert lost.startswith(f"The loss is {loss}. Try a smaller lr, a longer warmup_ratio")
        assert "Other settings make another run: give out= another folder" in lost
    health, lost = examine(USUAL, loss, True, 2.0, 50)
    assert lost is None
    assert health == Health(mean=6.0, seen=30, skipped=1)


def test_overflows_in_a_row_are_counted_and_have_an_end():
    health = USUAL
    for _ in range(49):
        health, lost = examine(health, 6.0, True, 2.0, 50)
        assert lost is None
    again, lost = examine(health, 6.0, False, 2.0, 50)
    assert (again.skipped, lost) == (0, None)
    _, lost = examine(health, 6.0, True, 2.0, 50)
    assert lost.startswith("50 steps one after the other overflowed. Try")


def test_a_loss_far_above_its_mean_is_lost_and_one_below_it_is_not():
    assert examine(USUAL, 11.9, False, 2.0, 50)[1] is None
    message = "The loss is 12.1, far above its mean of the last steps, 6. Try a smaller lr"
    assert examine(USUAL, 12.1, False, 2.0, 50)[1].startswith(message)
    # The first losses are high, and their mean is of few.
    assert examine(Health(mean=6.0, seen=5), 100.0, False, 2.0, 50)[1] is None


def spoil(monkeypatch, at, times=1):
    """Put a NaN into the weights before some steps, as a fault of the memory would."""
    real, done = Loop._step, []

    def step(self, batches):
        if self.progress.step == at and len(done) < times:
            done.append(1)
            with torch.no_grad():
                next(self.parts.model.parameters())[:] = math.nan
        real(self, batches)

    monkeypatch.setattr(Loop, "_step", step)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_weights_that_are_no_numbers_stop_the_run_and_are_never_kept(
    corpus, tmp_path, monkeypatch, optimizer
):
    spoil(monkeypatch, 4)
    config = BASE.replace(optimizer=optimizer, save_every=1, keep=8)
    said = []
    with pytest.raises(DivergenceError, match=r"step \d: The loss is nan\. Try a smaller lr"):
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu", say=said.append)
    # The error says it, and the console need not say it twice.
    assert not any("The loss is nan" in text for text in said)
    folders = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [folder.name[-1] for folder in folders] == ["1", "2", "3", "4"]
    for folder in folders:
        weights = load_file(folder / "model.safetensors").values()
        assert all(bool(w.isfinite().all()) for w in weights)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["text"].startswith("The loss is nan")


def test_going_back_mends_weights_that_are_no_numbers(corpus, tmp_path, monkeypatch):
    spoil(monkeypatch, 4)
    said, model = [], fresh()
    config = BASE.replace(guard="rollback")
    result = pretrain(model, corpus, config, tmp_path / "run", device="cpu", say=said.append)
    assert result.finished
    assert "Back at step 3." in said
    assert sum("The loss is nan. Try" in text for text in said) == 1
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    state = json.loads((result.checkpoint / "checkpoint.json").read_text())["state"]
    # The samples of the steps that led there are left out.
    assert state["progress"]["offset"] >= 2
    assert state["progress"]["health"]["rollbacks"] == 1


def test_going_back_again_and_again_ends_with_how_often(corpus, tmp_path, monkeypatch):
    spoil(monkeypatch, 4, times=100)
    config = BASE.replace(guard="rollback")
    text = r"loss is nan\. .* The run has gone back 3 times\."
    with pytest.raises(DivergenceError, match=text) as error:
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    assert "guard=" not in str(error.value)


@pytest.mark.parametrize("guard", ["stop", pytest.param("rollback", marks=pytest.mark.nightly)])
def test_a_rate_that_is_far_too_large_explodes_and_stops(corpus, tmp_path, guard):
    config = BASE.replace(
        steps=100, lr=3.0, optimizer="adamw", clip=0.0, warmup_ratio=1.0, guard=guard,
        save_every=0, log_every=100,
    )  # fmt: skip
    # Which of the two comes first depends on how a processor rounds.
    text = "far above its mean of the last steps|50 steps one after the other overflowed"
    with pytest.raises(DivergenceError, match=text) as error:
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    back = "goes back to the last checkpoint" if guard == "stop" else "found no checkpoint"
    assert f"guard='rollback' {back}" in str(error.value)


def test_a_loss_before_any_checkpoint_says_that_there_is_none(corpus, tmp_path, monkeypatch):
    spoil(monkeypatch, 0)
    config = BASE.replace(guard="rollback", save_every=0)
    with pytest.raises(DivergenceError) as error:
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    text = str(error.value)
    assert "or precision='bf16'; guard='rollback' found no checkpoint to go back to yet" in text
    assert text.endswith("Other settings make another run: give out= another folder.")
    assert "goes back" not in text
