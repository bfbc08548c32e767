"""Runs: resumed bit for bit, the same for any processes, stopped politely, and never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError, ConfigError, DivergenceError
from mpobert_plugin.train import loop as loop_module
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).parent / "tiny_run.py"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def weights(run, step=None):
    folders = sorted((run / "checkpoints").glob("step-*"))
    folder = folders[-1] if step is None else run / "checkpoints" / f"step-{step:09d}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def same(a, b):
    assert set(a) == set(b)
    return all(torch.equal(a[name], b[name]) for name in a)


def losses(run):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {r["step"]: r["loss"] for r in records if r["kind"] == "train"}


class Stop(Exception):
    """What a test raises in the middle of a run."""


def interrupted(monkeypatch, at):
    """Make the run fail at the beginning of a step, as a lost machine would."""
    real = loop_module.Loop._step

    def step(self, batches):
        if self.progress.step == at:
            raise Stop
        real(self, batches)

    monkeypatch.setattr(loop_module.Loop, "_step", step)


# Other tests of the process may have started JAX, which warns of processes that are forked.
@pytest.mark.parametrize(
    ("optimizer", "dropout", "workers", "at"),
    [
        ("lamb", 0.0, 0, 4),
        ("lamb", 0.1, 2, 5),
        ("adamw", 0.1, 0, 7),
        pytest.param("lamb", 0.1, 0, 7, marks=pytest.mark.slow),
        pytest.param("adamw", 0.0, 0, 4, marks=pytest.mark.slow),
        pytest.param("adamw", 0.1, 2, 5, marks=pytest.mark.slow),
    ],
)
def test_m22_a_resumed_run_is_the_same_bit_for_bit(
    corpus, tmp_path, monkeypatch, dropout, workers, at, optimizer
):
    config = BASE.replace(optimizer=optimizer, workers=workers, log_every=1)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    pretrain(fresh(**rates), corpus, config, tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patch:
        interrupted(patch, at)
        with pytest.raises(Stop):
            pretrain(fresh(**rates), corpus, config, tmp_path / "cut", device="cpu")
    assert weights(tmp_path / "cut", at // 3 * 3)
    # Another model at first: everything must come from the checkpoint.
    result = pretrain(fresh(5, **rates), corpus, config, tmp_path / "cut", device="cpu")
    assert result.finished
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


def updates_agree(one, other):
    """Compare what a run changed, over all parameters."""
    pairs = [
        (one[name] - start, other[name] - start)
        for name, start in ((name, p.detach()) for name, p in fresh().named_parameters())
    ]
    apart = torch.stack([torch.linalg.vector_norm(a - b) for a, b in pairs])
    moved = torch.stack([torch.linalg.vector_norm(a) for a, _ in pairs])
    return torch.linalg.vector_norm(apart) <= 1e-5 * torch.linalg.vector_norm(moved)


# With the usual eps, entries whose gradient is nothing but rounding noise move as far as others.
ONE_STEP = BASE.replace(steps=1, eps=1.0)


@pytest.mark.parametrize("reconstruction", ["per_step", "per_micro_batch"])
def test_micro_batches_of_any_size_make_the_same_update(corpus, tmp_path, reconstruction):
    for micro in (2, 8):
        config = ONE_STEP.replace(micro_batch=micro, reconstruction=reconstruction)
        pretrain(fresh(), corpus, config, tmp_path / str(micro), device="cpu")
    assert updates_agree(*(weights(tmp_path / micro) for micro in ("2", "8")))


def run(command, folder, corpus, *words, world=1, **options):
    base = [sys.executable]
    if world > 1:
        base += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    arguments = [*base, str(WORKER), str(corpus.folder), str(folder), *words]
    return command(arguments, env=environment, cwd=ROOT, text=True, **options)


# The same of processes that are forked, and thus soon there, is tested with worlds of 2 and 4.
@pytest.mark.slow
def test_torchrun_shares_the_work_and_makes_the_same_model(corpus, tmp_path):
    done = run(
        subprocess.run, tmp_path / "many", corpus, "steps=1", "eps=1.0", "micro_batch=2",
        world=2, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RESULT 1 True") == 2
    assert done.stdout.count("step 1/1") == 1  # one of them talks
    pretrain(fresh(), corpus, ONE_STEP, tmp_path / "one", device="cpu")
    assert updates_agree(weights(tmp_path / "many"), weights(tmp_path / "one"))
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def wait_for(folder, step, process):
    deadline = time.monotonic() + 120
    while not (folder / "checkpoints" / f"step-{step:09d}").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Forked processes are ended by a signal, and runs in this process get one, every time.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_with_success(corpus, tmp_path, number):
    process = run(
        subprocess.Popen, tmp_path / "run", corpus, "steps=5000", "save_every=2",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(tmp_path / "run", 2, process)
    process.send_signal(number)
    start = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - start < 20
    step = int(out.split("RESULT ")[1].split()[0])
    assert f"RESULT {step} False {signal.Signals(number).name}" in out
    assert weights(tmp_path / "run", step)


def test_a_damaged_checkpoint_is_passed_over(corpus, tmp_path):
    config = BASE.replace(steps=7)
    pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    last = tmp_path / "run" / "checkpoints" / "step-000000007" / "model.safetensors"
    last.write_bytes(last.read_bytes()[:-3])
    said = []
    result = pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu", say=said.append)
    assert result.finished
    assert any("step 7 is passed over" in text and "model.safetensors" in text for text in said)
    assert any("goes on after step 6 of 7" in text for text in said)


def test_a_checkpoint_is_a_folder_that_loads(corpus, tmp_path):
    model = fresh()
    result = pretrain(model, corpus, BASE, tmp_path / "run", device="cpu")
    loaded = transformers.AutoModelForPreTraining.from_pretrained(result.checkpoint)
    assert type(loaded) is type(model)
    mp.assert_shared(loaded)
    ids = torch.arange(5, 25).view(2, 10)
    model.eval()
    with torch.no_grad():
        a, b = (m(ids).prediction_logits for m in (model, loaded.eval()))
    assert torch.equal(a, b)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(result.checkpoint / "tokenizer.json")
    )
    assert len(tokenizer) == corpus.vocab_size


def test_held_out_text_decides_which_checkpoint_is_the_best(corpus, tmp_path):
    config = BASE.replace(eval_every=2, eval_batches=3, keep=1, steps=6)
    result = pretrain(fresh(), corpus, config, tmp_path / "run", held_out=corpus, device="cpu")
    records = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    found = {r["step"]: r["loss"] for r in map(json.loads, records) if r["kind"] == "eval"}
    assert sorted(found) == [2, 4, 6]
    best = min(found, key=found.get)
    kept = {int(p.name[5:]) for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {best, result.step}


def test_a_plain_model_trains_too(corpus, tmp_path):
    plain = mp.merge(fresh())
    config = BASE.replace(steps=3)
    assert pretrain(plain, corpus, config, tmp_path / "run", device="cpu").finished


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_m18_a_half_model_gets_float32_masters(corpus, tmp_path, dtype):
    said = []
    model = fresh().to(dtype)
    pretrain(model, corpus, BASE.replace(steps=2), tmp_path / "run", device="cpu", say=said.append)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert any("float32 masters" in text for text in said)


def test_m24_a_head_without_a_loss_is_named_and_stays(corpus, tmp_path):
    model = fresh(head="masked_lm")
    model.unused = torch.nn.Linear(2, 2)
    before = model.unused.weight.clone()
    said = []
    config = BASE.replace(steps=2, task="full")
    pretrain(model, corpus, config, tmp_path / "run", device="cpu", say=said.append)
    assert any("get no gradient" in text and "unused.weight" in text for text in said)
    assert torch.equal(model.unused.weight, before)


def explode_at(monkeypatch, step, once=True):
    real = loop_module.means
    seen = []

    def means(numbers, counts):
        found = real(numbers, counts)
        seen.append(1)
        if len(seen) == step if once else len(seen) >= step:
            return {**found, "loss": float("nan")}
        return found

    monkeypatch.setattr(loop_module, "means", means)


def test_a_lost_loss_stops_with_advice(corpus, tmp_path, monkeypatch):
    explode_at(monkeypatch, 5)
    with pytest.raises(DivergenceError, match=r"step \d+: The loss is nan\. Try a smaller lr"):
        pretrain(fresh(), corpus, BASE.replace(log_every=100), tmp_path / "run", device="cpu")
    assert weights(tmp_path / "run", 3)


def test_a_lost_loss_goes_back_and_on_with_other_samples(corpus, tmp_path, monkeypatch):
    explode_at(monkeypatch, 5)
    said = []
    config = BASE.replace(guard="rollback", log_every=100)
    result = pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu", say=said.append)
    assert result.finished
    assert "Back at step 3." in said


def test_going_back_has_an_end(corpus, tmp_path, monkeypatch):
    explode_at(monkeypatch, 5, once=False)
    config = BASE.replace(guard="rollback", log_every=100)
    with pytest.raises(DivergenceError, match="The loss is nan"):
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")


def test_another_run_in_the_folder_is_refused(corpus, tmp_path):
    pretrain(fresh(), corpus, BASE.replace(steps=3), tmp_path / "run", device="cpu")
    with pytest.raises(CheckpointError, match=r"lr 0\.01 -> 0\.5"):
        pretrain(fresh(), corpus, BASE.replace(steps=3, lr=0.5), tmp_path / "run", device="cpu")
    with pytest.raises(CheckpointError, match="a folder without a run"):
        pretrain(fresh(), corpus, BASE, tmp_path / "run", device="cpu", resume=False)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"vocab_size": 60}, {}, "vocabulary of at least 90 tokens, .* got 60"),
        ({"max_position_embeddings": 16}, {}, "at most the 16 positions of the model, got 32"),
    ],
)
def test_models_that_do_not_fit_the_text(corpus, tmp_path, options, change, message):
    with pytest.raises(ConfigError, match=message):
        pretrain(fresh(**options), corpus, BASE.replace(**change), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_config_must_be_one(corpus, tmp_path):
    with pytest.raises(ConfigError, match="config must be a PretrainConfig, got dict"):
        pretrain(fresh(), corpus, {"steps": 3}, tmp_path / "run")


def test_the_settings_are_kept_with_the_run(corpus, tmp_path):
    pretrain(fresh(), corpus, BASE.replace(steps=2), tmp_path / "run", device="cpu")
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept == BASE.replace(steps=2).to_dict()
