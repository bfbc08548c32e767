"""What a run tells: lines of JSON, TensorBoard, the console and its bar."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from types import ModuleType

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import RobertaForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.cli.bar import step_bar
from mpobert_plugin.kinds import kinds_of
from mpobert_plugin.train import interval as interval_module
from mpobert_plugin.train import journal as journal_module
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.engine import StepResult
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.interval import Interval
from mpobert_plugin.train.journal import Journal, train_line
from mpobert_plugin.train.late import Sent
from mpobert_plugin.train.loop import Loop
from mpobert_plugin.train.norms import KindNorms
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny import ROBERTA
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

ADAPTED = {"adapter_rank": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def records(run, kind="train"):
    lines = (run / "log.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def root_of_squares(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


@pytest.fixture(scope="module")
def told(corpus, tmp_path_factory):
    run, lines, steps = tmp_path_factory.mktemp("run"), [], []
    config = BASE.replace(steps=5, log_every=2, eval_every=4, eval_batches=2)
    pretrain(
        fresh(**ADAPTED), corpus, config, run, held_out=corpus, device="cpu",
        say=lines.append, progress=lambda *moved: steps.append(moved),
    )  # fmt: skip
    return run, lines, steps


def test_every_number_is_in_the_lines_of_json(told):
    run, _, steps = told
    found = records(run)
    assert [r["step"] for r in found] == [2, 4, 5]
    kinds = ("central", "auxiliary", "adapter", "bias", "norm", "embedding", "head", "dense")
    names = {f"{what}_norm_{kind}" for what in ("grad", "update") for kind in kinds}
    names |= {"loss", "masked_loss", "order_loss", "masked_accuracy", "order_accuracy", "lr"}
    names |= {"grad_norm", "loss_scale", "skipped", "tokens_per_second", "seconds_per_step"}
    names |= {"waited", "left", "tflops", "memory_gib"}
    for record in found:
        assert names <= set(record)
        assert all(math.isfinite(record[name]) for name in names)
        parts = [record[f"grad_norm_{kind}"] for kind in kinds]
        assert math.hypot(*parts) == pytest.approx(record["grad_norm"], rel=1e-5)
        assert all(record[f"update_norm_{kind}"] > 0 for kind in kinds)
    assert found[-1]["left"] == 0
    assert steps == [(k, 5) for k in range(1, 6)]
    assert [r["step"] for r in records(run, "eval")] == [4, 5]


def test_lines_for_people_have_what_matters(told):
    _, lines, _ = told
    (line,) = [text for text in lines if text.startswith("step 4/5")]
    for part in ("loss ", "(tokens ", "right ", "gradient ", "lr ", "tokens/s", "GiB", "left"):
        assert part in line
    assert any(text.startswith("held out after step 4: loss ") for text in lines)


def test_time_counts_as_waiting_only_where_the_device_stands_still(corpus, tmp_path, monkeypatch):
    config = BASE.replace(steps=4, log_every=1, save_every=0)
    drawn, read = [], []

    def follow(run, busy):
        monkeypatch.setattr(Sent, "has_come", lambda _: not busy)
        pretrain(fresh(), corpus, config, tmp_path / run, device="cpu")
        return [record["waited"] for record in records(tmp_path / run)]

    plain_draw, plain_read = Loop._draw, Loop._read
    monkeypatch.setattr(Loop, "_draw", lambda *a: (drawn.append(len(read)), plain_draw(*a))[1])
    monkeypatch.setattr(Loop, "_read", lambda *a: (read.append(1), plain_read(*a))[1])
    assert all(share > 0 for share in follow("idle", busy=False))
    # Those of step k + 1 come before the host waits for step k; the last one finds no more.
    assert drawn == [0, 0, 1, 2, 3]
    first, *later = follow("busy", busy=True)
    assert first > 0
    assert later == [0.0, 0.0, 0.0]


def test_norms_are_those_of_what_the_optimizer_changed(corpus, tmp_path):
    model = fresh(**ADAPTED)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    kinds = {name: kind for kind, named in kinds_of(model).items() for name in named}
    config = BASE.replace(steps=1, clip=0.01)
    result = pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    weights = load_file(result.checkpoint / "model.safetensors")
    moments = load_file(result.checkpoint / "optimizer.safetensors")
    (record,) = records(tmp_path / "run")
    clipped = max(1.0, record["grad_norm"] / 0.01)
    for kind in set(kinds.values()):
        of_kind = [name for name in before if kinds[name] == kind]
        moved = root_of_squares(weights[name] - before[name] for name in of_kind)
        assert record[f"update_norm_{kind}"] == pytest.approx(moved, rel=1e-4)
        # The first mean is a tenth of the gradient, which was clipped.
        gradient = root_of_squares(10 * clipped * moments[f"{name}|exp_avg"] for name in of_kind)
        assert record[f"grad_norm_{kind}"] == pytest.approx(gradient, rel=1e-4)


def test_a_watched_step_changes_nothing(corpus, tmp_path):
    ends = []
    for every in (1, 100):
        model = fresh()
        config = BASE.replace(steps=4, log_every=every)
        pretrain(model, corpus, config, tmp_path / str(every), device="cpu")
        ends.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_large_gradients_have_norms_and_infinite_ones_say_so():
    model = torch.nn.Linear(3, 2)
    gradients = Gradients(dict(model.named_parameters()))
    norms = KindNorms(model, gradients)
    gradients.parts["weight"].fill_(1e18)
    gradients.parts["bias"].fill_(1.0)
    found = norms.named(norms.after(norms.before(torch.tensor(2.0))))
    assert found["grad_norm_dense"] == pytest.approx(6**0.5 * 1e18 / 2)
    assert found["update_norm_dense"] == 0.0
    gradients.parts["weight"][0, 0] = math.inf
    found = norms.named(norms.after(norms.before(torch.tensor(2.0))))
    assert not math.isfinite(found["grad_norm_dense"])


def test_lines_are_json_whatever_the_numbers(tmp_path):
    journal = Journal(tmp_path, print)
    journal.record("train", 1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.5, "n": 3})
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert found == {
        "kind": "train", "step": 1, "loss": None, "grad_norm": None, "lr": 0.5, "n": 3,
    }  # fmt: skip


def result_of(loss, skipped):
    one = torch.ones(())
    return StepResult(
        torch.tensor([loss, 0.0, 0.0, 0.0]), torch.tensor([2, 0]), torch.zeros(1),
        one, torch.tensor(skipped), one,
    )  # fmt: skip


def test_an_overflow_spoils_no_mean_and_a_lost_loss_is_not_hidden():
    interval = Interval.begun(torch.device("cpu"))
    for loss, skipped in ((8.0, False), (math.inf, True), (4.0, True)):
        interval.add(result_of(loss, skipped), loss)
    assert interval.steps == 3
    assert interval.losses()["loss"] == 3.0
    interval.add(result_of(math.nan, False), math.nan)
    assert math.isnan(interval.losses()["loss"])
    lost = Interval.begun(torch.device("cpu"))
    lost.add(result_of(math.inf, True), math.inf)
    assert math.isnan(lost.losses()["loss"])


def test_speeds(monkeypatch):
    interval = Interval.begun(torch.device("cpu"))
    interval.steps, interval.waited = 4, 1.0
    monkeypatch.setattr(interval_module.time, "monotonic", lambda: interval.since + 8.0)
    monkeypatch.setattr(interval_module, "flops_per_sample", lambda *_: 10**12)
    monkeypatch.setattr(interval_module, "peak_flops", lambda *_: 8e12)
    monkeypatch.setattr(interval_module, "memory_gib", lambda _: None)
    config = BASE.replace(batch_size=8, length=32)
    # 32 samples in 8 seconds, by two processes.
    assert interval.speeds(None, config, torch.device("cpu"), 2) == {
        "tokens_per_second": 128.0,
        "seconds_per_step": 2.0,
        "waited": 0.125,
        "tflops": 2.0,
        "share_of_peak": 0.25,
    }


def test_an_evaluation_takes_no_time_of_training(corpus, tmp_path, monkeypatch):
    from mpobert_plugin.train import loop as loop_module

    now = [0.0]
    evaluated = loop_module.evaluate

    def slow(*given):
        now[0] += 1000.0
        return evaluated(*given)

    def clock():
        now[0] += 1e-3
        return now[0]

    monkeypatch.setattr(loop_module, "evaluate", slow)
    monkeypatch.setattr(loop_module.time, "monotonic", clock)
    config = BASE.replace(steps=6, log_every=3, eval_every=2, eval_batches=1, save_every=0)
    pretrain(fresh(), corpus, config, tmp_path / "run", held_out=corpus, device="cpu")
    assert [r["seconds_per_step"] < 1.0 for r in records(tmp_path / "run")] == [True, True]


def test_a_line_names_skipped_steps_and_the_share_of_peak():
    values = dict.fromkeys(
        ("loss", "masked_loss", "order_loss", "masked_accuracy", "order_accuracy"), 0.5
    )
    values |= {"lr": 1e-3, "tokens_per_second": 12e3, "left": 61.0, "skipped": 2}
    values |= {"loss_scale": 32768.0, "share_of_peak": 0.431, "memory_gib": 7.25, "grad_norm": 2.0}
    assert train_line(1, 2, values) == (
        "step 1/2  loss 0.500 (tokens 0.500, order 0.500)  right 50.0 %, 50.0 %  gradient 2.00  "
        "lr 1.00e-03  12,000 tokens/s  0.43 of peak  7.2 GiB  0:01:01 left  2 skipped, scale 32768"
    )


def test_what_nothing_was_asked_for_is_a_dash(corpus, tmp_path):
    """Documents of one sentence have no order, and some models no head for it."""
    lone = prepare(["One sentence alone"] * 20, tmp_path / "lone", Vocabulary(size=60))
    plain = RobertaForMaskedLM(ROBERTA)
    for name, model, text in (("lone", fresh(), lone), ("headless", plain, corpus)):
        run, lines = tmp_path / name / "run", []
        config = BASE.replace(steps=2, eval_every=2, eval_batches=1, length=24)
        pretrain(model, text, config, run, held_out=text, device="cpu", say=lines.append)
        for record in (*records(run), *records(run, "eval")):
            assert not {"order_loss", "order_accuracy"} & set(record)
            assert record["loss"] == record["masked_loss"]
        (line,) = [text for text in lines if text.startswith("step 2/2")]
        assert ", order -)  right " in line
        assert " %, -  gradient" in line
        assert any(re.search(r"^held out after step 2: .* %, -$", text) for text in lines)


def scalars(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {
        name: {event.step: event.value for event in events.Scalars(name)}
        for name in events.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_same_numbers_also_after_an_interruption(
    corpus, tmp_path, monkeypatch
):
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    # Files of one second are sorted by the text of their number, where 10 comes before 9.
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))
    run = tmp_path / "run"
    config = BASE.replace(steps=6, log_every=1, save_every=2, eval_every=2, eval_batches=1)
    real = mp.train.loop.Loop._step

    def step(self, batches):
        if self.progress.step == 5:
            raise KeyboardInterrupt
        real(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(mp.train.loop.Loop, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            pretrain(fresh(), corpus, config, run, held_out=corpus, device="cpu")
    pretrain(fresh(), corpus, config, run, held_out=corpus, device="cpu")
    found = scalars(run)
    for kind in ("train", "eval"):
        lines = records(run, kind)
        for name in set(lines[0]) - {"kind", "step"}:
            expected = {r["step"]: pytest.approx(r[name], rel=1e-6) for r in lines}
            assert found[f"{kind}/{name}"] == expected, name
    assert sorted(found["train/update_norm_central"]) == [1, 2, 3, 4, 5, 6]


def test_without_tensorboard_the_lines_are_enough(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "find_spec", lambda _: None)
    pretrain(fresh(), corpus, BASE.replace(steps=2), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert records(tmp_path / "run")


def test_a_bar_on_a_terminal_alone():
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80, color_system=None)
        with step_bar(console) as bar:
            bar.say("step [1]/3")
            bar.moved(1, 3)
            bar.moved(2, 3)
            if terminal:
                bar._progress.refresh()
        assert ("2/3" in stream.getvalue()) is terminal
        assert stream.getvalue().startswith("step [1]/3\n")


def test_a_run_that_goes_on_draws_from_where_it_is():
    stream = io.StringIO()
    with step_bar(Console(file=stream, force_terminal=True, width=80, color_system=None)) as bar:
        bar.moved(7, 9)
        assert bar._progress.tasks[0].completed == 7
        # Remaining time comes from the steps of this start.
        bar.moved(8, 9)
    assert bar._task is None


def test_the_board_gets_numbers_alone_and_forgets_what_comes_again(tmp_path, monkeypatch):
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, *event):
            told.append(event)

        def close(self):
            told.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(journal_module, "find_spec", lambda _: True)
    journal = Journal(tmp_path, [].append)
    journal.open(4)
    journal.record("train", 5, {"loss": 7.5, "skipped": 1})
    journal.event(5, "a sentence")
    journal.close()
    # The record of step 4 stays.
    assert told[0] == (str(tmp_path / "tensorboard"), 5)
    assert told[1:] == [("train/loss", 7.5, 5), ("train/skipped", 1, 5), "closed"]
