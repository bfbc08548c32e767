"""Losses that explode or are not finite: the run stops with advice, or goes back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mpobert_plugin.errors import DivergenceError
from mpobert_plugin.train.guard import Health, advice, examine
from mpobert_plugin.train.loop import Loop
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.settings import PretrainConfig
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

USUAL = Health(mean=6.0, seen=30)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_lost_at_once_but_where_a_scale_may_mend_it(loss):
    for skipped, scaled in ((False, True), (False, False), (True, False)):
        _, lost = examine(USUAL, loss, skipped, 2.0, 50, scaled)
        assert lost == f"The loss is {loss}."
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
    assert lost == "50 steps one after the other overflowed."


def test_a_loss_far_above_its_mean_is_lost_and_one_below_it_is_not():
    assert examine(USUAL, 11.9, False, 2.0, 50)[1] is None
    message = "The loss is 12.1, far above its mean of the last steps, 6."
    assert examine(USUAL, 12.1, False, 2.0, 50)[1] == message
    # The first losses are high, and their mean is of few.
    assert examine(Health(mean=6.0, seen=5), 100.0, False, 2.0, 50)[1] is None


BACK = "guard='rollback' goes back to the last checkpoint and on with other samples. "
OTHER = (
    f"Other settings make another run: give out= another folder, and model={Path('run/3')} to "
    "begin with its weights."
)


@pytest.mark.parametrize(
    ("settings", "tried"),
    [
        ({}, "a smaller clip or precision='bf16' or 'fp32'"),
        ({"precision": "bf16"}, "a smaller clip or precision='fp32'"),
        ({"precision": "tf32", "clip": 0}, "a clip above 0 or precision='fp32'"),
    ],
)
def test_advice_leaves_out_what_a_run_has(settings, tried):
    text = advice(PretrainConfig(**settings), Path("run/3"))
    assert text == f"Try a smaller lr, a longer warmup_ratio, {tried}. {BACK}{OTHER}"


def test_advice_for_float32_names_no_other_format_and_a_whole_warm_up_no_longer_one():
    config = PretrainConfig(precision="fp32", warmup_ratio=1.0, guard="rollback")
    assert advice(config, Path("run/3")) == f"Try a smaller lr or a smaller clip. {OTHER}"


@pytest.mark.parametrize("guard", ["stop", "rollback"])
@pytest.mark.parametrize("every", [0, 500, 20_000])
def test_advice_before_the_first_checkpoint_promises_none(guard, every):
    text = advice(PretrainConfig(guard=guard, save_every=every), None)
    verb = "found" if guard == "rollback" else "would find"
    when = f"{'after step 500' if every == 500 else 'at the end'} (save_every={every})"
    assert text.endswith(
        f"guard='rollback' {verb} no checkpoint to go back to yet: the first one is written {when}."
        " Without one the same command begins anew, with other settings too."
    )
    assert "another folder" not in text


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
    with pytest.raises(
        DivergenceError, match=r"step \d: The loss is nan\. Try a smaller lr"
    ) as error:
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu", say=said.append)
    last = tmp_path / "run" / "checkpoints" / "step-000000004"
    assert str(error.value).endswith(f"and model={last} to begin with its weights.")
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
    verb = "would find" if guard == "stop" else "found"
    assert f"guard='rollback' {verb} no checkpoint to go back to yet" in str(error.value)


@pytest.mark.parametrize("guard", ["stop", pytest.param("rollback", marks=pytest.mark.slow)])
def test_a_run_that_is_lost_before_any_checkpoint_begins_anew_with_other_settings(
    corpus, tmp_path, monkeypatch, guard
):
    config = BASE.replace(guard=guard, save_every=0, steps=1)
    with monkeypatch.context() as patch:
        spoil(patch, 0)
        with pytest.raises(DivergenceError, match="the same command begins anew, with other"):
            pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    other = config.replace(lr=1e-3)
    assert pretrain(fresh(), corpus, other, tmp_path / "run", device="cpu").finished
