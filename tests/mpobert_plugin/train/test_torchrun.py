"""Jobs of several processes: a failing one ends them, restarts go on, signals save and end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mpobert_plugin.train.loop import Loop
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.signals import end_on_signal
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).parent / "tiny_run.py"
# A worker whose second process fails at a step, at its first start alone.
FAILING = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("tiny_run", {worker!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
from mpobert_plugin.train.loop import Loop

real = Loop._step

def step(self, batches):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if self.progress.step == 5 and os.environ["RANK"] == "1" and first:
        raise RuntimeError("the second process has lost its card")
    real(self, batches)

Loop._step = step
tiny.main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def torchrun(command, script, corpus, run, *words, options=(), **more):
    base = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    base += ["--monitor-interval=0.1", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    arguments = [*base, str(script), str(corpus.folder), str(run), "micro_batch=2", *words]
    return command(arguments, env=environment, cwd=ROOT, text=True, **more)


def weights(run, step):
    return load_file(run / "checkpoints" / f"step-{step:09d}" / "model.safetensors")


def failing_worker(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(worker=str(WORKER)))
    return script


@pytest.mark.slow
def test_a_process_that_fails_ends_the_job_with_its_error(corpus, tmp_path):
    start = time.monotonic()
    done = torchrun(
        subprocess.run, failing_worker(tmp_path), corpus, tmp_path / "run", "steps=5000",
        capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode != 0
    assert "RuntimeError: the second process has lost its card" in done.stderr
    assert re.search(r"rank\s+: 1 \(local_rank: 1\)", done.stderr)
    # Far below the ten minutes for which processes wait for each other.
    assert time.monotonic() - start < 120
    assert weights(tmp_path / "run", 3)


@pytest.mark.slow
def test_a_job_that_is_restarted_goes_on_from_its_last_checkpoint(corpus, tmp_path):
    words = ("steps=8", "save_every=3")
    done = torchrun(
        subprocess.run, failing_worker(tmp_path), corpus, tmp_path / "run", *words,
        options=["--max-restarts=1"], capture_output=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "The run goes on after step 3 of 8." in done.stdout
    assert done.stdout.count("RESULT 8 True") == 2
    whole = torchrun(
        subprocess.run, WORKER, corpus, tmp_path / "whole", *words,
        capture_output=True, check=False, timeout=280,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    ours, theirs = weights(tmp_path / "run", 8), weights(tmp_path / "whole", 8)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def begun(corpus, run, *words):
    process = torchrun(
        subprocess.Popen, WORKER, corpus, run, "steps=100000", "save_every=2", *words,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 150
    while not (run / "checkpoints" / "step-000000002").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def ended(process, run, name):
    start = time.monotonic()
    out, err = process.communicate(timeout=100)
    assert time.monotonic() - start < 40
    ends = re.findall(r"RESULT (\d+) False (\w*)", out)
    assert len(ends) == 2, err
    assert len({step for step, _ in ends}) == 1
    assert name in {signal for _, signal in ends}
    assert weights(run, int(ends[0][0]))


def children(process):
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in found if WORKER.name in Path(f"/proc/{pid}/cmdline").read_text()]


SIGNALS = [
    pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param(signal.SIGINT, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_one_process_ends_the_job_with_success(corpus, tmp_path, number):
    process = begun(corpus, tmp_path / "run")
    os.kill(children(process)[1], number)
    ended(process, tmp_path / "run", number.name)
    assert process.returncode == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_whole_job_saves_though_it_comes_twice(corpus, tmp_path, number):
    # As Ctrl-C in a terminal does: torchrun gets it too and hands it on.
    process = begun(corpus, tmp_path / "run")
    os.killpg(process.pid, number)
    ended(process, tmp_path / "run", number.name)


@pytest.mark.nightly
def test_a_signal_to_torchrun_saves(corpus, tmp_path):
    process = begun(corpus, tmp_path / "run")
    process.terminate()
    ended(process, tmp_path / "run", "SIGTERM")


def test_a_signal_that_comes_twice_at_once_is_one():
    with end_on_signal() as wish:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert wish.name == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_later_acts_as_usual(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("mpobert_plugin.train.signals.time.monotonic", lambda: now[0])
    with end_on_signal() as wish:
        signal.raise_signal(signal.SIGINT)
        assert wish
        now[0] += 2.5
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_large_step_is_left_in_its_middle_and_made_again(corpus, tmp_path, monkeypatch):
    real, begun = Loop._reseed, []

    def reseed(self, number):
        begun.append((self.progress.step, number))
        if begun[-1] == (4, 1) and not self.wish:
            signal.raise_signal(signal.SIGTERM)
        real(self, number)

    config = BASE.replace(micro_batch=2, save_every=100)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_reseed", reseed)
        result = pretrain(fresh(), corpus, config, run, device="cpu")
    # Two of its four micro-batches were never begun.
    assert begun[-1] == (4, 1)
    assert (result.step, result.finished, result.signal) == (4, False, "SIGTERM")
    pretrain(fresh(3), corpus, config, run, device="cpu")
    pretrain(fresh(), corpus, config, tmp_path / "whole", device="cpu")
    ours, theirs = weights(run, 8), weights(tmp_path / "whole", 8)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
