"""Rebuilding once for a step or for each micro-batch, by what each takes."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.accumulate import Accumulation
from mpobert_plugin.train import rebuilding
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.rebuilding import EACH, ONCE, Rebuilding, choose_rebuilding
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.setup import set_up
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

AUTO = BASE.replace(reconstruction="auto")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def parts_of(corpus, model=None, **changes):
    return set_up(model or fresh(), corpus, AUTO.replace(**changes), Processes())


def is_once(around):
    return isinstance(getattr(around, "__self__", None), Accumulation)


def timed(once, each):
    def time_of(_engine, around, _batches):
        return once if is_once(around) else each

    return time_of


MEASURED = "2 micro-batches took {} s, and {} s when they were rebuilt"
NEAR = "a difference within what measuring errs"


@pytest.mark.parametrize(
    ("once", "each", "name", "told"),
    [
        (0.9, 1.0, ONCE, f"{MEASURED.format('0.900', '1.00')} for each micro-batch."),
        (1.04, 1.0, ONCE, f"{MEASURED.format('1.04', '1.00')} for each micro-batch, {NEAR}."),
        (12.0, 10.0, EACH, f"{MEASURED.format('10.0', '12.0')} once for a step."),
        (math.inf, 1.0, EACH, "the device has no room for matrices that stay."),
    ],
)
def test_the_faster_one_is_taken(corpus, monkeypatch, once, each, name, told):
    monkeypatch.setattr(rebuilding, "_timed", timed(once, each))
    parts = parts_of(corpus)
    found = choose_rebuilding(parts, "auto")
    assert (found.name, found.accumulation) == (name, 2)
    when = "once for a step" if name == ONCE else "for each micro-batch"
    assert found.told() == f"Matrices are rebuilt {when}: {told}"
    assert is_once(parts.engine.around) is (name == ONCE)


def test_both_are_really_measured_and_leave_nothing_behind(corpus):
    parts = parts_of(corpus)
    before = [p.detach().clone() for p in parts.model.parameters()]
    said = []
    found = choose_rebuilding(parts, "auto", steps=120, say=said.append)
    assert found.name in (ONCE, EACH)
    (line,) = said
    assert line.startswith("Measuring how often to rebuild the matrices: 3 times 2 micro-batches")
    assert all(0.0 < seconds < 60.0 for seconds in found.seconds)
    assert not bool(parts.engine.gradients.flat.any())
    assert all(torch.equal(a, b) for a, b in zip(before, parts.model.parameters(), strict=True))
    assert float(parts.engine.scale.value) == 1.0


@pytest.mark.parametrize(
    ("batch", "micro", "least"), [(8, 4, 120), (8, 1, 120), (16, 1, 60), (80, 1, 12)]
)
def test_a_short_run_on_a_processor_measures_nothing(corpus, monkeypatch, batch, micro, least):
    def never(*_):
        raise AssertionError

    parts = parts_of(corpus, batch_size=batch, micro_batch=micro)
    monkeypatch.setattr(rebuilding, "_timed", never)
    said = []
    found = choose_rebuilding(parts, "auto", steps=least - 1, say=said.append)
    assert (found.name, said) == (ONCE, [])
    assert is_once(parts.engine.around)
    assert found.told() == (
        f"Matrices are rebuilt once for a step; runs of at least {least} steps measure whether for "
        "each micro-batch is faster."
    )
    monkeypatch.setattr(rebuilding, "_timed", timed(2.0, 1.0))
    assert choose_rebuilding(parts, "auto", steps=least).name == EACH


def test_a_short_run_on_a_gpu_measures_whether_there_is_room(corpus, monkeypatch):
    monkeypatch.setattr(rebuilding, "_timed", timed(math.inf, 1.0))
    monkeypatch.setattr(rebuilding, "_is_cheap", lambda _: True)
    assert choose_rebuilding(parts_of(corpus), "auto", steps=1).name == EACH


def test_processes_agree_by_the_sum_of_their_times(corpus, monkeypatch):
    class Two(Processes):
        def add(self, tensor):
            # The other one found the opposite, and by more.
            return tensor.add_(torch.tensor([3.0, 1.0]))

    monkeypatch.setattr(rebuilding, "_timed", timed(0.5, 1.0))
    parts = parts_of(corpus)
    parts.engine.processes = Two()
    assert choose_rebuilding(parts, "auto").name == EACH


def test_no_room_is_no_error(corpus, monkeypatch):
    parts = parts_of(corpus)

    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(parts.engine, "accumulate", full)
    assert rebuilding._timed(parts.engine, nullcontext, []) == math.inf


def test_where_there_is_nothing_to_choose(corpus):
    assert choose_rebuilding(parts_of(corpus), ONCE) is None
    assert choose_rebuilding(parts_of(corpus, micro_batch=8), "auto") is None
    assert choose_rebuilding(parts_of(corpus, mp.merge(fresh())), "auto") is None


def test_a_choice_is_kept_while_steps_are_of_as_many_micro_batches(corpus, monkeypatch):
    monkeypatch.setattr(rebuilding, "_timed", timed(0.5, 1.0))
    parts = parts_of(corpus)
    found = choose_rebuilding(parts, "auto", {"name": EACH, "accumulation": 2})
    assert found == Rebuilding(EACH, 2)
    assert (found.told(), parts.engine.around) == ("", nullcontext)
    assert choose_rebuilding(parts, "auto", {"name": EACH, "accumulation": 4}).name == ONCE


def test_a_run_tells_keeps_and_goes_on_with_what_was_chosen(corpus, tmp_path, monkeypatch):
    run, said = tmp_path / "run", []
    monkeypatch.setattr(rebuilding, "_timed", timed(2.0, 1.0))
    monkeypatch.setattr(rebuilding, "_TIMES", 0)
    first = pretrain(fresh(), corpus, AUTO.replace(steps=4), run, device="cpu", say=said.append)
    assert said[0].startswith("Measuring how often to rebuild the matrices: ")
    assert said[1].startswith("Matrices are rebuilt for each micro-batch: 2 micro-batches took 1.0")
    state = json.loads((first.checkpoint / "checkpoint.json").read_text())["state"]
    assert state["rebuilding"] == {"name": EACH, "accumulation": 2}
    # Measured now, the other one would be taken.
    monkeypatch.setattr(rebuilding, "_timed", timed(0.5, 1.0))
    import shutil

    shutil.rmtree(first.checkpoint)
    said.clear()
    pretrain(fresh(), corpus, AUTO.replace(steps=4), run, device="cpu", say=said.append)
    assert not any("rebuil" in text for text in said)
    state = json.loads((first.checkpoint / "checkpoint.json").read_text())["state"]
    assert state["rebuilding"]["name"] == EACH


def test_a_short_run_says_and_keeps_what_it_took_and_goes_on_so(corpus, tmp_path):
    run, said = tmp_path / "run", []
    config = AUTO.replace(steps=2)
    first = pretrain(fresh(), corpus, config, run, device="cpu", say=said.append)
    assert said[0].startswith("Matrices are rebuilt once for a step; runs of at least 120 steps")
    state = json.loads((first.checkpoint / "checkpoint.json").read_text())["state"]
    assert state["rebuilding"] == {"name": ONCE, "accumulation": 2}
    # Another run from the beginning is the same, bit for bit: nothing was measured.
    again = pretrain(fresh(), corpus, config, tmp_path / "again", device="cpu")
    one, other = (
        (result.checkpoint / "model.safetensors").read_bytes() for result in (first, again)
    )
    assert one == other
