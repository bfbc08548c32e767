"""Folders that one process has, and helper processes that fail, are killed or lose their parent."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mpobert_plugin.errors import CheckpointError, DataError
from mpobert_plugin.train import Vocabulary, prepare
from mpobert_plugin.train.aside import clear_leftovers
from mpobert_plugin.train.lock import NAME, held
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny_run import BASE, DOCS, corpus_in, fresh

ROOT = Path(__file__).parents[3]
HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX); "
    "print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def holder():
    """Let another process hold the lock of a folder, until it is killed."""
    started = []

    def hold(folder):
        folder.mkdir(parents=True)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder / NAME)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_of_a_run_belongs_to_one_process(corpus, tmp_path, holder):
    process = holder(tmp_path / "run")
    config = BASE.replace(steps=1)
    with pytest.raises(CheckpointError, match="by one process at a time, got another one"):
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [NAME]
    process.kill()
    process.communicate()
    assert pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu").finished


def test_a_folder_of_a_corpus_belongs_to_one_process(tmp_path, holder):
    process = holder(tmp_path / "data" / ".parts")
    with pytest.raises(DataError, match="by one process at a time, got another one"):
        prepare(DOCS, tmp_path / "data", Vocabulary(size=90))
    process.kill()
    process.communicate()
    prepare(DOCS, tmp_path / "data", Vocabulary(size=90))
    assert not (tmp_path / "data" / ".parts").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL])
def test_file_systems_without_locks_are_used_without(tmp_path, monkeypatch, code):
    def lockf(*_arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with held(tmp_path, DataError):
        pass


def test_a_lock_is_free_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), held(tmp_path, DataError):
            raise KeyboardInterrupt


def test_leftovers_are_what_was_written_aside_and_nothing_else(tmp_path):
    kept = [".notes.tmp", "a.0123abcd.tmp", ".lock", ".config.json.0123abcx.tmp"]
    for name in (*kept, ".config.json.0123abcd.tmp", ".tokens.bin.ffffffff.tmp"):
        (tmp_path / name).write_text("x")
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


# PyTorch tells of the end of a worker by an error that the handler of SIGCHLD raises, wherever the
# main thread is: also between the opening of a file and the 'with' that would close it.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGBUS, marks=pytest.mark.slow)]
)
def test_a_worker_that_is_killed_ends_the_run_with_advice(corpus, tmp_path, number):
    def kill(step, _steps):
        if step == 3:
            os.kill(multiprocessing.active_children()[0].pid, number)

    config = BASE.replace(steps=20, workers=1, save_every=1)
    with pytest.raises(
        DataError, match=r"ended by itself, .* with fewer workers or with workers=0"
    ):
        pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu", progress=kill)
    config = config.replace(workers=0)
    assert pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu").finished


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), EOFError(), OSError(2, "")])
def test_a_worker_that_ends_while_it_hands_a_batch_over(corpus, tmp_path, monkeypatch, error):
    plain = DataLoader.__iter__

    def fail(loader):
        if loader.num_workers:
            raise error
        yield from plain(loader)

    monkeypatch.setattr(DataLoader, "__iter__", fail)
    with pytest.raises(DataError, match=rf"ended by itself, .*{type(error).__name__}.*workers=0"):
        pretrain(fresh(), corpus, BASE.replace(workers=1), tmp_path / "run", device="cpu")


def test_what_a_worker_raises_is_said_without_its_stack(tmp_path):
    corpus = corpus_in(tmp_path / "data")
    file = corpus.folder / "tokens.bin"
    np.full(len(corpus.tokens), 60000, "<u2").tofile(file)
    with pytest.raises(DataError) as caught:
        pretrain(fresh(), corpus.folder, BASE.replace(workers=1), tmp_path / "run", device="cpu")
    assert str(caught.value).startswith(f"{corpus.folder} must hold ids below 90")
    assert "Traceback" not in str(caught.value)


SCRIPT = """
import sys
from mpobert_plugin.train import Vocabulary, prepare
from mpobert_plugin.train.data import prepare as preparing

if __name__ == "__main__":
    preparing.CHUNK = 2000
    prepare(sys.argv[1], sys.argv[2], Vocabulary(size=90), workers=2)
"""


def members(group):
    found = subprocess.run(
        ["ps", "-o", "pid=", "-g", str(group)], text=True, capture_output=True, check=False
    )
    return found.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_of_prepare_end_with_it(tmp_path, number):
    (tmp_path / "run.py").write_text(SCRIPT)
    (tmp_path / "text.txt").write_text("\n\n".join(DOCS * 400))
    process = subprocess.Popen(
        [sys.executable, "run.py", "text.txt", "out"], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    parts = tmp_path / "out" / ".parts"
    deadline = time.monotonic() + 200
    while not list(parts.glob("0*.safetensors")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode in (-signal.SIGINT, -signal.SIGKILL, 1, 130)
    # A worker that is just being started may have something to say too.
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    while members(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # What was done is there, and whole.
    assert len(list(parts.glob("0*.safetensors"))) >= 1
