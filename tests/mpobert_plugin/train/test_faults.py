"""Processes that are killed, have no room, share a folder or an overflow: what is left of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mpobert_plugin.train import PretrainConfig
from tests.mpobert_plugin.train.tiny_run import BASE

ROOT = Path(__file__).parents[3]
END = 10  # steps of the runs that are killed
SCRIPT = Path(__file__).parent / "forked.py"
QUICK = (
    "splits", "overflow", "kills:3:0", "prepare_kills:3:0", "crash_points", "lock",
)  # fmt: skip


def run(folder, *orders):
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *orders]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


SLOW = (
    "kills:17:1:0", "kills:3:2:2", "prepare_kills:20:3", "full_disk", "group_signals:8:0",
    "recompute",
)  # fmt: skip


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return run(tmp_path_factory.mktemp("long"), *SLOW)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return run(tmp_path_factory.mktemp("quick"), *QUICK)


def found(folder, order):
    name = order.replace(":", "_")
    record = json.loads((folder / f"{name}.json").read_text())
    assert "error" not in record, record["error"]
    return record["found"]


def state(run, step):
    folder = run / "checkpoints" / f"step-{step:09d}"
    record = json.loads((folder / "checkpoint.json").read_text())
    weights, moments = (load_file(folder / f"{n}.safetensors") for n in ("model", "optimizer"))
    return weights, moments, record["state"]


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def log(run, kind="train"):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def near(one, other, start):
    """Compare what was changed since the start, over all tensors."""
    apart, moved = (
        torch.stack([torch.linalg.vector_norm(a[n] - b[n]) for n in start])
        for a, b in ((one, other), (other, start))
    )
    return torch.linalg.vector_norm(apart) <= 1e-5 * torch.linalg.vector_norm(moved)


# ---------------------------------------------------------------------- worlds x accumulation
@pytest.mark.parametrize("world", [2, 4])
def test_m21_worlds_and_accumulations_make_the_same_updates(quick, world):
    found(quick, "splits")
    one, many = quick / "splits" / "world1", quick / "splits" / f"world{world}"
    start = state(one, 1)[0]
    assert near(state(many, 3)[0], state(one, 3)[0], start)
    for mine, theirs in zip(log(many), log(one), strict=True):
        for name in ("loss", "masked_loss", "order_loss", "grad_norm", "masked_accuracy"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5), name
    said = (quick / "splits" / f"world{world}.said").read_text()
    assert said.count("step 3/3") == 1  # one of them talks


@pytest.mark.parametrize("world", [1, 2, 4])
def test_m37_the_rate_counts_optimizer_steps_in_any_world(quick, world):
    found(quick, "splits")
    schedule = BASE.replace(steps=3).rates()
    rates = [record["lr"] for record in log(quick / "splits" / f"world{world}")]
    assert rates == pytest.approx([BASE.lr * schedule(step) for step in range(3)])


def test_m22_another_world_goes_on_and_says_that_it_is_not_exact(quick):
    found(quick, "splits")
    texts = [record["text"] for record in log(quick / "splits" / "moved", "event")]
    assert any("not bit for bit" in text and "processes 2 -> 1 changes" in text for text in texts)
    assert (quick / "splits" / "moved.said").read_text().count("not bit for bit") == 1
    one, moved = (state(quick / "splits" / name, 3)[0] for name in ("world2", "moved"))
    assert near(moved, one, state(quick / "splits" / "world2", 1)[0])
    # Nothing to say where nothing changed.
    assert "bit for bit" not in (quick / "splits" / "world2.said").read_text()


# ------------------------------------------------------------------------------- overflow
def test_a_rank_that_overflows_makes_all_skip_the_step(quick):
    found(quick, "overflow")
    run = quick / "overflow" / "run"
    records = log(run)
    assert [record["skipped"] for record in records] == [0, 0, 1, 1, 1, 1]
    # Doubled after two clean steps, halved by the overflow.
    assert [record["loss_scale"] for record in records] == [256, 256, 512, 256, 256, 512]
    before, after = state(run, 2), state(run, 3)
    assert same(before[0], after[0])
    assert same(before[1], after[1])  # moments and their counts
    assert after[2]["scale"] == {"scale": 256.0, "clean": 0, "skipped": 1}
    rates = [record["lr"] for record in records]
    assert rates[2] == rates[3]  # the step that was skipped is made again
    schedule = PretrainConfig(steps=6).rates()
    assert rates[3:] == pytest.approx([BASE.lr * schedule(step) for step in (2, 3, 4)])
    one, two = (torch.load(quick / "overflow" / f"rank{r}.pt", weights_only=True) for r in (0, 1))
    assert same(one, two)


def test_the_loss_scale_is_restored_with_the_run(quick):
    found(quick, "overflow")
    run, again = quick / "overflow" / "run", quick / "overflow" / "again"
    assert state(again, 6)[2]["scale"] == {"scale": 512.0, "clean": 1, "skipped": 1}
    assert same(state(run, 6)[0], state(again, 6)[0])
    assert same(state(run, 6)[1], state(again, 6)[1])
    scales = [record["loss_scale"] for record in log(again)]
    assert scales == [record["loss_scale"] for record in log(run)]


# ---------------------------------------------------------------------------------- kills
def check_kills(folder, order, number):
    kills = found(folder, order)
    assert len(kills["kills"]) == number
    own = folder / order.replace(":", "_")
    for count in range(kills["runs"]):
        run = own / f"cut{count}"
        assert same(state(own / "whole", END)[0], state(run, END)[0])
        assert same(state(own / "whole", END)[1], state(run, END)[1])
        assert state(own / "whole", END)[2]["progress"] == state(run, END)[2]["progress"]
        losses = [
            {record["step"]: record["loss"] for record in log(r)} for r in (own / "whole", run)
        ]
        assert losses[0] == losses[1]
        left = {path.name for path in run.rglob("*") if path.name.endswith(".tmp")}
        assert not left
        assert not list(run.glob("checkpoints/.*"))


def test_runs_killed_at_random_moments_end_the_same(quick):
    check_kills(quick, "kills:3:0", 3)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "number"), [("kills:17:1:0", 17), ("kills:3:2:2", 3)])
def test_runs_killed_twenty_times_end_the_same(long, order, number):
    """Without and with workers that prepare batches."""
    check_kills(long, order, number)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_prepared(folder, order, number):
    assert found(folder, order)["kills"] == number
    whole, cut = (folder / order.replace(":", "_") / name for name in ("whole", "cut"))
    assert contents(whole) == contents(cut)
    assert not [path for path in cut.iterdir() if path.is_dir()]


def test_prepare_killed_at_random_moments_ends_the_same(quick):
    check_prepared(quick, "prepare_kills:3:0", 3)


@pytest.mark.slow
def test_prepare_killed_often_ends_the_same(long):
    check_prepared(long, "prepare_kills:20:3", 20)


def test_dying_at_any_operation_on_the_disk_leaves_a_whole_checkpoint(quick):
    points = found(quick, "crash_points")
    states = [tuple(entry) for entry in points["states"]]
    assert points["points"] > 20
    assert set(states) == {(2, "2"), (3, "3")}
    assert states == sorted(states)  # the old one until the new one is whole


# ----------------------------------------------------------------------- disk and folder
@pytest.mark.slow
def test_a_full_disk_at_any_file_leaves_the_checkpoint_before(long):
    files = found(long, "full_disk")
    assert len(files) >= 5
    for entry in files.values():
        assert entry["step"] == 1
        assert entry["told"] == entry["left"] == []
        assert "the checkpoint of step 2 cannot be written" in entry["message"]
        assert "File too large" in entry["message"]
        assert "make room and start the run again" in entry["message"]


def test_a_folder_has_one_run_at_a_time(quick):
    ends = found(quick, "lock")
    assert "must be written by one process at a time, got another one" in ends["message"]
    assert ends["again"] == 0


@pytest.mark.slow
def test_signals_for_the_whole_group_end_a_run_with_workers_politely(long):
    codes = found(long, "group_signals:8:0")["codes"]
    assert codes == [0] * 8


@pytest.mark.slow
def test_m23_m24_recomputed_layers_and_unused_heads_in_two_processes(long):
    found(long, "recompute")
    own = long / "recompute"
    start = state(own / "one", 1)[0]
    assert near(state(own / "two", 3)[0], state(own / "one", 3)[0], start)
    for name in ("one", "two"):
        first, last = (state(own / name, step)[0] for step in (1, 3))
        # Nothing but the order of sentences asks for the pooler.
        assert torch.equal(first["albert.pooler.weight"], last["albert.pooler.weight"])
        texts = [record["text"] for record in log(own / name, "event")]
        assert any("get no gradient" in text and "pooler.weight" in text for text in texts)
