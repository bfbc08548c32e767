"""Runs in processes that are forked from one that has imported everything: quick to kill."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny_run
import torch
from torch import distributed

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train import loop as loop_module
from mpobert_plugin.train.checkpoint import Checkpoints
from mpobert_plugin.train.data import prepare as preparing
from mpobert_plugin.train.data.store import open_corpus
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.run import pretrain

DOCS = [f"Text {k} is here. It goes on with {k * k}. Then it ends." for k in range(12)]
# Six steps for an epoch, as the corpus has twelve windows.
LONG = {"steps": 10, "batch_size": 2, "micro_batch": 1, "save_every": 1, "log_every": 1}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def fork(function, *arguments):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alone(function, *arguments):
    code = ended(fork(function, *arguments))
    assert code == 0, (function.__name__, code)


def corpus_in(folder):
    alone(preparing.prepare, DOCS, folder, preparing.Vocabulary(size=80))
    return open_corpus(folder)


def train(corpus, out, model=None, **options):
    """Train a tiny model; what it says goes to a file beside the run."""
    settings = {**LONG, **options}
    config = tiny_run.BASE.replace(**settings)
    with out.with_suffix(".said").open("a") as said:
        model = tiny_run.fresh(**DROPOUT) if model is None else model()
        return pretrain(model, corpus, config, out, device="cpu", say=lambda t: print(t, file=said))


def world(size, folder, function, *arguments):
    """Run a function in processes of one group."""
    folder.mkdir(exist_ok=True)
    store = folder / f"store{random.random()}"

    def member(rank):
        distributed.init_process_group(
            "gloo", f"file://{store}", timedelta(seconds=100), size, rank
        )
        function(*arguments)
        distributed.destroy_process_group()

    codes = [ended(pid) for pid in [fork(member, rank) for rank in range(size)]]
    assert codes == [0] * size, codes


def still(**options):
    return tiny_run.fresh(**options)


def recomputed():
    model = still()
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    return model


# ------------------------------------------------------------------------------- scenarios
def splits(folder, corpus):
    """Worlds x accumulations; then every one goes on in another world."""
    options = {"batch_size": 8, "micro_batch": 2, "steps": 3, "eps": 1.0, "keep": 9}
    for size in (1, 2, 4):
        world(size, folder, _split, corpus, folder / f"world{size}", still, options)
    moved = folder / "moved"
    _copied(folder / "world2", moved, 2)
    alone(_split, corpus, moved, still, options)


def _split(corpus, out, model, options):
    train(corpus, out, model, **options)


def recompute(folder, corpus):
    """Masked tokens alone, with layers that run again in backward, in one and two processes."""
    options = {"batch_size": 4, "micro_batch": 2, "steps": 3, "eps": 1.0, "keep": 9}
    options["task"] = "full"
    world(2, folder, _split, corpus, folder / "two", recomputed, options)
    alone(_split, corpus, folder / "one", still, options)


def _copied(run, target, step):
    """Copy a run as it was after a step."""
    shutil.copytree(run, target)
    for path in (target / "checkpoints").iterdir():
        if int(path.name[5:]) > step:
            shutil.rmtree(path)


def overflow(folder, corpus):
    """Gradients that are infinite in one of two processes, at the third step."""
    options = {
        "batch_size": 4, "micro_batch": 1, "steps": 6, "keep": 9, "precision": "fp16",
        "loss_scale": 256.0, "scale_interval": 2, "schedule": "linear",
    }  # fmt: skip
    world(2, folder, _overflowing, corpus, folder / "run", options)
    _copied(folder / "run", folder / "again", 4)
    world(2, folder, _split, corpus, folder / "again", still, options)


def _overflowing(corpus, out, options):
    real, seen = Gradients.add_over, []

    def add_over(self, processes):
        seen.append(1)
        if len(seen) == 3 and processes.rank == 1:
            self.flat[5] = float("inf")
        real(self, processes)

    Gradients.add_over = add_over
    model = still()
    train(corpus, out, lambda: model, **options)
    torch.save(
        {name: p.detach() for name, p in model.named_parameters()},
        out.parent / f"rank{distributed.get_rank()}.pt",
    )


def kills(folder, corpus, number, seed, workers=0):
    """Kill a run at random moments until it was done so often; wholes are compared each time."""
    generator = random.Random(seed)
    options = {"eval_every": 3, "eval_batches": 1, "workers": workers}
    start = time.monotonic()
    alone(_quiet, corpus, folder / "whole", options)
    usual = time.monotonic() - start
    seen, cuts = [], 0
    run = folder / "cut0"
    while len(seen) < number:
        pid = fork(_quiet, corpus, run, options)
        time.sleep(generator.uniform(0.0, 0.9 * usual))
        os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        told = []
        newest = Checkpoints(run / "checkpoints", 2, told.append).newest()
        half = [p.name for p in run.glob("checkpoints/.writing-*")]
        assert not told, told
        step = newest.step if newest else 0
        if code == -signal.SIGKILL:
            seen.append({"step": step, "half": half})
        if step >= LONG["steps"]:
            cuts += 1
            run = folder / f"cut{cuts}"
    alone(_quiet, corpus, run, options)
    return {"kills": seen, "runs": cuts + 1}


def _quiet(corpus, run, options):
    train(corpus, run, None, **options)


def prepare_kills(folder, _corpus, number, seed):
    """Kill `prepare` at random moments, and between them let it replace what it made."""
    generator = random.Random(seed)
    preparing.CHUNK = 60
    start = time.monotonic()
    alone(_prepare, folder / "whole")
    usual = time.monotonic() - start
    kills, rounds = 0, 0
    while kills < number:
        pid = fork(_prepare, folder / "cut")
        time.sleep(generator.uniform(0.0, usual))
        os.kill(pid, signal.SIGKILL)
        kills += ended(pid) == -signal.SIGKILL
        rounds += 1
    alone(_prepare, folder / "cut")
    return {"kills": kills, "rounds": rounds}


def _prepare(folder):
    preparing.prepare(DOCS, folder, preparing.Vocabulary(size=80), overwrite=True)


def crash_points(folder, _corpus):
    """Die at every operation on the disk while a checkpoint is written and older ones go."""
    states = []
    # A process that dies loses no bytes that the system has; a lost system would.
    os.fsync = lambda _handle: None
    for step in (1, 2):
        Checkpoints(folder / "start", 1, print).save(step, _writing(str(step)), {}, None)
    for number in range(1, 400):
        root = folder / str(number)
        shutil.copytree(folder / "start", root)
        code = ended(fork(_save_and_die, root, number))
        told = []
        newest = Checkpoints(root, 1, told.append).newest()
        assert not told, told
        text = (newest.folder / "model.bin").read_text()
        states.append((newest.step, text))
        # The next run cleans up and goes on.
        Checkpoints(root, 1, told.append).save(4, _writing("4"), {}, None)
        assert sorted(p.name for p in root.iterdir()) == ["step-000000004"]
        if code == 0:
            return {"points": number - 1, "states": states}
    raise AssertionError("a checkpoint has no end")


def _writing(text):
    def write(aside):
        (aside / "model.bin").write_text(text)
        (aside / "inner").mkdir()
        with (aside / "inner" / "more.bin").open("w") as file:
            file.write(text)
            file.flush()
            # A file that is half written.
            os.fsync(file.fileno())
            file.write(text)

    return write


def _save_and_die(root, number):
    left = [number]

    def point(*_arguments):
        left[0] -= 1
        if not left[0]:
            os._exit(9)

    def hook(event, arguments):
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir"):
            point()

    os.fsync = point
    sys.addaudithook(hook)
    Checkpoints(root, 1, print).save(3, _writing("3"), {}, None)


def full_disk(folder, corpus):
    """Let every file of the second checkpoint be the one for which there is no room."""
    found = {}
    whole = folder / "whole"
    alone(train, corpus, whole, still)
    last = whole / "checkpoints" / "step-000000010"
    sizes = sorted({p.stat().st_size for p in last.iterdir()})
    for size in sizes:
        out = folder / f"run{size}"
        alone(_without_room, corpus, out, size - 1)
        told = []
        newest = Checkpoints(out / "checkpoints", 2, told.append).newest()
        found[size] = {
            "step": newest.step,
            "told": told,
            "message": out.with_suffix(".error").read_text(),
            "left": [p.name for p in (out / "checkpoints").glob(".*")],
        }
    return found


def _without_room(corpus, out, most):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    real = loop_module.Loop.save

    def save(self):
        if self.progress.step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        real(self)

    loop_module.Loop.save = save
    try:
        train(corpus, out, still)
    except CheckpointError as error:
        message = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    out.with_suffix(".error").write_text(message)


def lock(folder, corpus):
    """Two runs in one folder at a time, one of which has workers and is killed."""
    run = folder / "run"
    options = {"steps": 10_000, "workers": 2}
    first = fork(_quiet, corpus, run, options)
    _wait_for(run, 2)
    alone(_refused, corpus, run, options, folder / "second")
    os.kill(first, signal.SIGKILL)
    ended(first)
    # At once, although the workers of the first need some seconds to see that it is gone.
    again = fork(_quiet, corpus, run, options)
    _wait_for(run, _newest(run) + 2)
    os.kill(again, signal.SIGTERM)
    return {"message": (folder / "second").read_text(), "again": ended(again)}


def _refused(corpus, run, options, target):
    try:
        train(corpus, run, None, **options)
    except CheckpointError as error:
        target.write_text(str(error))


def _newest(run):
    return max((int(p.name[5:]) for p in (run / "checkpoints").glob("step-*")), default=0)


def _wait_for(run, step):
    deadline = time.monotonic() + 100
    while _newest(run) < step:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def group_signals(folder, corpus, number, seed):
    """SIGTERM and SIGINT for the whole group, workers among them, as torchrun and Slurm do."""
    generator = random.Random(seed)
    codes = []
    for count in range(number):
        run = folder / f"run{count}"
        pid = fork(_group, corpus, run)
        _wait_for(run, 1 + generator.randrange(3))
        time.sleep(generator.uniform(0.0, 0.1))
        name = (signal.SIGTERM, signal.SIGINT)[count % 2]
        os.killpg(pid, name)
        codes.append(ended(pid))
    return {"codes": codes}


def _group(corpus, run):
    os.setpgid(0, 0)
    result = train(corpus, run, None, steps=10_000, workers=2)
    assert not result.finished


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        splits, recompute, overflow, kills, prepare_kills, crash_points, full_disk, lock,
        group_signals,
    )
}  # fmt: skip


def main(folder: str, *orders: str) -> None:
    """Run scenarios such as 'kills:3:0' one after the other, and write down what they found."""
    torch.set_num_threads(1)
    root = Path(folder)
    corpus = corpus_in(root / "corpus")
    for order in orders:
        name, *numbers = order.split(":")
        own = root / order.replace(":", "_")
        own.mkdir()
        start = time.monotonic()
        try:
            found = {"found": SCENARIOS[name](own, corpus, *map(int, numbers))}
        except Exception:  # noqa: BLE001
            found = {"error": traceback.format_exc()}
        found["seconds"] = time.monotonic() - start
        own.with_suffix(".json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
