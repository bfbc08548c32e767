"""Runs over whole files that stop half way: what is kept, what is refused, what is removed."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensornet import errors
from tensornet.streaming import Options, decompose_file, inspect_file
from tests.tensornet.weights import sharded, small_model, smooth


@pytest.fixture
def model(tmp_path):
    return small_model(tmp_path)


def test_an_interrupted_run_goes_on(model, tmp_path):
    path, _ = model
    out = tmp_path / "o.safetensors"
    seen = []

    def stop(done, total, name):
        seen.append(name)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decompose_file(path, out, Options(max_bond=4), progress=stop)
    parts = tmp_path / "o.safetensors.parts"
    times = {p.name: p.stat().st_mtime_ns for p in parts.glob("*.safetensors")}
    assert len(times) == 1  # what stays as it is costs nothing to look at again
    assert not out.exists()
    with pytest.raises(
        errors.OptionError,
        match=r"source and limits must be those of the run that was interrupted, "
        r"got max_bond 5 instead of 4\. Pass overwrite=True to start anew",
    ):
        decompose_file(path, out, Options(max_bond=5))
    kept = []

    def look(done, total, name):
        if done == total:
            kept.extend(
                p.name
                for p in parts.glob("*.safetensors")
                if times.get(p.name) == p.stat().st_mtime_ns
            )

    decompose_file(path, out, Options(max_bond=4), progress=look)
    assert sorted(kept) == sorted(times)
    other = tmp_path / "fresh.safetensors"
    decompose_file(path, other, Options(max_bond=4))
    assert other.read_bytes() == out.read_bytes()


def test_damaged_parts_are_made_again(model, tmp_path):
    path, _ = model
    out = tmp_path / "o.safetensors"

    def stop(done, total, name):
        if done == total:
            for part in (tmp_path / "o.safetensors.parts").glob("*.safetensors"):
                part.write_bytes(part.read_bytes()[:-7])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decompose_file(path, out, Options(max_bond=4), progress=stop)
    decompose_file(path, out, Options(max_bond=4))
    decompose_file(path, tmp_path / "p.safetensors", Options(max_bond=4))
    assert out.read_bytes() == (tmp_path / "p.safetensors").read_bytes()


def test_overwrite_starts_anew(model, tmp_path):
    path, _ = model
    out = tmp_path / "o.safetensors"
    decompose_file(path, out, Options(max_bond=4))
    with pytest.raises(errors.OptionError, match=r"not exist yet, got o\.safetensors"):
        decompose_file(path, out, Options(max_bond=2))
    assert decompose_file(path, out, Options(max_bond=2), overwrite=True).chains
    with pytest.raises(errors.OptionError, match="another file than the source"):
        decompose_file(path, path, Options(max_bond=2), overwrite=True)


def test_killed_at_any_moment(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    save_file({f"w{k}": smooth(192, 192, shift=k / 40) for k in range(30)}, path)
    code = (
        "import sys; from tensornet.streaming import *\n"
        "decompose_file(sys.argv[1], sys.argv[2], Options(max_bond=6))"
    )
    for _ in range(3):
        run = subprocess.Popen([sys.executable, "-c", code, str(path), str(out)])
        deadline = time.monotonic() + 60
        parts = tmp_path / "o.safetensors.parts"
        before = len(list(parts.glob("*.safetensors")))
        while len(list(parts.glob("*.safetensors"))) < before + 3 and time.monotonic() < deadline:
            if run.poll() is not None:
                break
            time.sleep(0.002)
        run.kill()
        run.wait()
    if not out.exists():
        decompose_file(path, out, Options(max_bond=6))
    decompose_file(path, tmp_path / "p.safetensors", Options(max_bond=6))
    assert out.read_bytes() == (tmp_path / "p.safetensors").read_bytes()


def stop_at(count):
    def stop(done, total, name):
        if done == count:
            raise KeyboardInterrupt

    return stop


def test_killed_while_files_are_put_together(tmp_path, monkeypatch):
    index, _ = sharded(tmp_path, 3)
    goal = tmp_path / "out"
    goal.mkdir()
    out = goal / "o.safetensors.index.json"
    from tensornet.streaming import work

    real, calls = work.write_pieces, []

    def failing(pieces, metadata, target, folder=None):
        calls.append(target)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(pieces, metadata, target, folder)

    monkeypatch.setattr(work, "write_pieces", failing)
    with pytest.raises(KeyboardInterrupt):
        decompose_file(index, out, Options(max_bond=3))
    monkeypatch.undo()
    assert len(list(goal.glob("o-*.safetensors"))) == 2
    with pytest.raises(errors.OptionError, match=r"out must not exist yet, got o-00001-of-00003"):
        decompose_file(index, out, Options(max_bond=4))
    assert len(decompose_file(index, out, Options(max_bond=3)).chains) == 3
    assert not [p for p in goal.iterdir() if "parts" in p.name or p.suffix == ".tmp"]


def test_killed_before_the_work_folder_is_gone(model, tmp_path, monkeypatch):
    out = tmp_path / "o.safetensors"
    from tensornet.streaming.parts import Parts

    def failing(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Parts, "remove", failing)
    with pytest.raises(KeyboardInterrupt):
        decompose_file(model[0], out, Options(max_bond=4))
    monkeypatch.undo()
    blob = out.read_bytes()
    decompose_file(model[0], out, Options(max_bond=4))
    assert out.read_bytes() == blob
    assert not (tmp_path / "o.safetensors.parts").exists()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_killed_after_some_time(tmp_path, seconds):
    index, _ = sharded(tmp_path, 6)
    goal = tmp_path / "out"
    goal.mkdir()
    out = goal / "o.safetensors.index.json"
    code = (
        "import sys; from tensornet.streaming import *; print(flush=True)\n"
        "decompose_file(sys.argv[1], sys.argv[2], Options(max_bond=3), overwrite=True)"
    )
    command = [sys.executable, "-c", code, str(index), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        run.stdout.readline()
        time.sleep(seconds)
        run.kill()
    decompose_file(index, out, Options(max_bond=3), overwrite=True)
    assert len(inspect_file(out).chains) == 6
    names = {p.name for p in goal.iterdir()}
    assert names == {out.name, *(f"o-{k:05d}-of-00006.safetensors" for k in range(1, 7))}


def test_overwrite_goes_on_too(model, tmp_path):
    path, _ = model
    out = tmp_path / "o.safetensors"
    decompose_file(path, out, Options(max_bond=2))
    with pytest.raises(KeyboardInterrupt):
        decompose_file(path, out, Options(max_bond=4), overwrite=True, progress=stop_at(3))
    parts = list((tmp_path / "o.safetensors.parts").glob("*.safetensors"))
    assert len(parts) == 1
    changed = parts[0].stat().st_mtime_ns

    def look(done, total, name):
        if done == total:
            assert parts[0].stat().st_mtime_ns == changed

    decompose_file(path, out, Options(max_bond=4), overwrite=True, progress=look)
    assert max(max(row.bonds) for row in inspect_file(out).chains) == 4


def test_after_a_bad_matrix_it_goes_on_without_it(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    sick = smooth(32, 32)
    sick[3, 4] = np.nan
    save_file({"a": smooth(32, 32), "sick": sick, "z": smooth(32, 32)}, path)
    with pytest.raises(errors.NonFiniteError, match=r"^sick: .* Exclude it to leave it as it is"):
        decompose_file(path, out, Options(max_bond=4))
    summary = decompose_file(path, out, Options(max_bond=4, exclude=("sick",)))
    assert {row.name: row.reason for row in summary.rows}["sick"] == "not selected"
    assert len(summary.chains) == 2
    assert load_file(out)["sick"].tobytes() == sick.tobytes()


def test_another_source_is_refused(model, tmp_path):
    path, tensors = model
    out = tmp_path / "o.safetensors"
    with pytest.raises(KeyboardInterrupt):
        decompose_file(path, out, Options(max_bond=4), progress=stop_at(3))
    size = path.stat().st_size
    changed = {**tensors, "a.weight": 2 * tensors["a.weight"]}
    save_file(changed, path, metadata={"format": "pt"})
    assert path.stat().st_size == size
    with pytest.raises(errors.OptionError, match="got another or a changed source"):
        decompose_file(path, out, Options(max_bond=4))
    note = tmp_path / "o.safetensors.parts" / "tensornet-run.json"
    note.write_text("{")
    with pytest.raises(errors.OptionError, match="got a damaged note of that run"):
        decompose_file(path, out, Options(max_bond=4))
    decompose_file(path, out, Options(max_bond=4), overwrite=True)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"max_bond": 4, "sites": 3}, "got sites 3 instead of 5"),
        ({"max_bond": 4, "keep_larger": True}, "got keep_larger True instead of False"),
        ({"max_bond": 4, "ratio": 0.5}, "got ratio 0.5 instead of None"),
        ({"rtol": 0.1}, "got max_bond None instead of 4, rtol 0.1 instead of None"),
    ],
)
def test_other_limits_are_refused(model, tmp_path, other, text):
    out = tmp_path / "o.safetensors"
    with pytest.raises(KeyboardInterrupt):
        decompose_file(model[0], out, Options(max_bond=4), progress=stop_at(3))
    with pytest.raises(errors.OptionError, match=text):
        decompose_file(model[0], out, Options(**other))
    assert decompose_file(model[0], out, Options(max_bond=4, min_size=48)).chains


def test_files_of_others_are_never_removed(model, tmp_path):
    out = tmp_path / "o.safetensors"
    folder = tmp_path / "o.safetensors.parts"
    folder.mkdir()
    (folder / "mine.safetensors").write_bytes(b"precious")
    for overwrite in (False, True):
        with pytest.raises(
            errors.FileAccessError, match=r"have a free work folder, got .* with other files"
        ):
            decompose_file(model[0], out, Options(max_bond=4), overwrite=overwrite)
    assert (folder / "mine.safetensors").read_bytes() == b"precious"
    (folder / "mine.safetensors").unlink()

    def drop(done, total, name):
        (folder / "notes.txt").write_text("mine")

    decompose_file(model[0], out, Options(max_bond=4), progress=drop)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_a_file_where_the_work_folder_should_be(model, tmp_path):
    (tmp_path / "o.safetensors.parts").write_bytes(b"")
    with pytest.raises(errors.FileAccessError, match="have a writable folder, got"):
        decompose_file(model[0], tmp_path / "o.safetensors", Options(max_bond=4))
