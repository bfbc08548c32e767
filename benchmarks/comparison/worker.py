"""One run of the comparison: from its start or its last checkpoint to a result, or to a deadline.

A deadline is a signal that the process sends to itself: the run ends after the step that is being
made, with a checkpoint, as it would for anybody else's wish, and goes on when it is called again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AlbertForPreTraining

from benchmarks.comparison.models import SOURCE, build, count
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.tasks import RESULT, Task
from mpobert_plugin.errors import DivergenceError
from mpobert_plugin.train import Samples, open_corpus, pretrain
from mpobert_plugin.train.aside import write_json
from mpobert_plugin.train.data.batches import Division, micro_batches
from mpobert_plugin.train.evaluation import means
from mpobert_plugin.train.objective import Objective

# Held-out masks are the same for every run, whatever its seed.
_JUDGE_SEED = 12345
_JUDGE_BATCH = 64


@dataclass(frozen=True)
class Place:
    """Where runs read, write and compute, and how many of them do so at a time."""

    corpus: Path
    out: Path
    device: str
    side_by_side: int = 1
    workers: int = 0
    # Seconds since the epoch, so that other processes know it too.
    deadline: float = float("inf")


def run_task(task: Task, recipe: Recipe, place: Place) -> str:
    """Return 'done', or 'left' when the deadline came first; the folder has the rest."""
    if time.time() >= place.deadline:
        return "left"
    folder = place.out / task.name
    source = _source(task, place.out)
    model = build(task.model, recipe.sizes, task.seed, source)
    config = recipe.config(task.steps, task.seed, task.rate).replace(
        workers=place.workers, compile="none" if place.device == "cpu" else "layers"
    )
    found: dict[str, Any] = {**vars(task), "parameters": count(model), "lr": config.lr}
    try:
        with wish_at(place.deadline):
            result = pretrain(
                model, place.corpus / "train", config, folder,
                held_out=place.corpus / "held-out", device=place.device, say=_quiet,
            )  # fmt: skip
    except DivergenceError as error:
        # A rate that is too high for a model is an answer too.
        found["failed"] = str(error)
    else:
        if not result.finished:
            return "left"
        found["held_out"] = judged(model, place, config.recipe())
    found["tokens"] = task.steps * config.batch_size * config.length
    found["tokens_per_second"] = speed(folder)
    found["side_by_side"], found["device"] = place.side_by_side, device_name(place.device)
    write_json(folder / RESULT, found)
    keep_record(folder)
    _tidy(folder / "checkpoints", keep=task.model == SOURCE)
    return "done"


def _quiet(_text: str) -> None:
    """Say nothing: the log of the run has it."""


def _tidy(checkpoints: Path, keep: bool) -> None:
    """Delete what a run that is done needs no more; of a source, the last model is kept."""
    found = sorted(checkpoints.glob("step-*"))
    for folder in found[:-1] if keep else found:
        shutil.rmtree(folder)
    for state in checkpoints.glob("step-*/optimizer.safetensors"):
        state.unlink()


def _source(task: Task, out: Path) -> Any:
    if not task.needs:
        return None
    last = max((out / task.needs / "checkpoints").glob("step-*"))
    return AlbertForPreTraining.from_pretrained(last, dtype=torch.float32)


@contextmanager
def wish_at(deadline: float) -> Iterator[None]:
    """Return a context in which this process asks itself to stop when the time has come."""
    if deadline == float("inf"):
        yield
        return

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def pass_over(_number: int, _frame: Any) -> None:
        """Outlive a wish that comes while no run is there to hear it."""

    before = signal.signal(signal.SIGTERM, pass_over)
    timer = threading.Timer(max(0.0, deadline - time.time()), ask)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGTERM, before)


@torch.no_grad()
def judged(model: Any, place: Place, samples_like: Any) -> dict[str, float]:
    """Return losses and accuracies over the whole held-out text, in float32."""
    held_out = open_corpus(place.corpus / "held-out")
    samples = Samples(held_out, replace(samples_like, seed=_JUDGE_SEED))
    size = min(_JUDGE_BATCH, len(samples))
    objective, device = Objective(model.eval()), model.device
    totals = torch.zeros(6, device=device)
    parts, division = len(samples) // size, Division(size, size)
    for batch in micro_batches(samples, division, 0, parts, workers=place.workers):
        placed = batch.to(device)
        totals += torch.cat([objective(placed).numbers(), placed.counts().float()])
    return means(totals[:4], totals[4:])


def keep_record(folder: Path) -> None:
    """Put the held-out losses of a run into its result, so that curves need no log."""
    file = folder / RESULT
    found = json.loads(file.read_text(encoding="utf-8"))
    seen = records(folder, "eval")
    found["curve"] = {str(record["step"]): record["masked_loss"] for record in seen}
    write_json(file, found)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in the log of a run."""
    file = folder / "log.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def speed(folder: Path) -> float:
    """Return the median of the tokens per second, the first record left out where it can be."""
    found = [record["tokens_per_second"] for record in records(folder, "train")]
    found = sorted(found[1:] or found)
    return found[len(found) // 2] if found else 0.0


def device_name(device: str) -> str:
    """Return the name of a card, or the kind of device."""
    kind = torch.device(device)
    return torch.cuda.get_device_name(kind) if kind.type == "cuda" else kind.type
