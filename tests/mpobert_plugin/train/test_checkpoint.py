"""Checkpoints of a run: whole or absent, whatever happens while one is written."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train import checkpoint as module
from mpobert_plugin.train.checkpoint import SEAL, Checkpoints


@pytest.fixture
def told():
    return []


@pytest.fixture
def checkpoints(tmp_path, told):
    return Checkpoints(tmp_path / "run", 2, told.append)


def writing(text):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "model" / "a.bin").write_bytes(text.encode())
        (folder / "b.bin").write_bytes(b"second")

    return write


def steps(checkpoints):
    return sorted(int(p.name[5:]) for p in checkpoints.root.iterdir())


def content(found):
    return (found.folder / "model" / "a.bin").read_text()


def test_what_is_saved_comes_back(checkpoints):
    assert checkpoints.newest() is None
    checkpoints.save(3, writing("three"), {"scale": 2.0**16}, None)
    found = checkpoints.newest()
    assert (found.step, found.state, content(found)) == (3, {"scale": 65536.0}, "three")


def test_the_last_ones_and_the_best_are_kept(checkpoints):
    for step in range(1, 7):
        checkpoints.save(step, writing(str(step)), {}, best=2 if step >= 2 else None)
    assert steps(checkpoints) == [2, 5, 6]


def test_a_step_that_is_written_again_replaces_the_old(checkpoints):
    checkpoints.save(3, writing("old"), {}, None)
    checkpoints.save(3, writing("new"), {}, None)
    assert content(checkpoints.newest()) == "new"


DAMAGES = {
    "truncated": lambda f: f.write_bytes(f.read_bytes()[:-2]),
    "a bit flipped": lambda f: f.write_bytes(bytes([f.read_bytes()[0] ^ 4]) + f.read_bytes()[1:]),
    "missing": lambda f: f.unlink(),
    "empty": lambda f: f.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model/a.bin", "b.bin", SEAL])
def test_a_damaged_one_is_named_and_the_one_before_is_used(checkpoints, told, damage, name):
    checkpoints.save(1, writing("one"), {}, None)
    checkpoints.save(2, writing("two"), {}, None)
    DAMAGES[damage](checkpoints.root / "step-000000002" / name)
    found = checkpoints.newest()
    assert found.step == 1
    assert len(told) == 1
    assert "step 2 is passed over" in told[0]
    assert Path(name).name in told[0]


@pytest.mark.parametrize(
    "change",
    [
        {"files": 3},
        {"files": {"../x": {"bytes": 1, "sha256": ""}}},
        {"files": {"b.bin": 3}},
        {"state": 1},
    ],
)
def test_a_strange_seal_is_refused(checkpoints, told, change):
    folder = checkpoints.save(1, writing("one"), {}, None).folder
    record = json.loads((folder / SEAL).read_text()) | change
    del record["sha256"]
    # By somebody who knows how to seal.
    (folder / SEAL).write_text(json.dumps({**record, "sha256": module._sum(record)}))
    assert checkpoints.newest() is None
    assert len(told) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "version 1, got 'other', version 1"),
        ({"version": 9}, "got 'mpobert-checkpoint', version 9. Go on with the version"),
    ],
)
def test_a_checkpoint_of_another_version_is_no_damaged_one(checkpoints, told, change, message):
    checkpoints.save(1, writing("one"), {}, None)
    folder = checkpoints.save(2, writing("two"), {}, None).folder
    record = json.loads((folder / SEAL).read_text()) | change
    del record["sha256"]
    (folder / SEAL).write_text(json.dumps({**record, "sha256": module._sum(record)}))
    with pytest.raises(CheckpointError, match=message):
        checkpoints.newest()
    assert not told


def test_damaged_ones_of_later_steps_stay_and_do_not_count(checkpoints):
    for step in (1, 2, 5, 6):
        dataclasses.replace(checkpoints, keep=9).save(step, writing(str(step)), {}, None)
    for step in (5, 6):
        (checkpoints.root / f"step-{step:09d}" / "b.bin").unlink()
    assert checkpoints.newest().step == 2
    checkpoints.save(3, writing("3"), {}, None)
    assert steps(checkpoints) == [2, 3, 5, 6]
    checkpoints.save(7, writing("7"), {}, None)
    assert steps(checkpoints) == [6, 7]


def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_stays(checkpoints, told, monkeypatch):
    for step in (1, 2):
        checkpoints.save(step, writing(str(step)), {}, None)
    real = module.sha256_of

    def unreadable(path):
        if "step-000000002" in str(path):
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(module, "sha256_of", unreadable)
    assert checkpoints.newest().step == 1
    assert "cannot be read: [Errno 5] Input/output error" in told[0]
    assert steps(checkpoints) == [1, 2]


def crash_points(monkeypatch, number):
    """Fail at one of the calls to the system that writing a checkpoint makes."""
    count = {"calls": 0}

    def failing(real):
        def call(*arguments, **options):
            count["calls"] += 1
            if count["calls"] == number:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call

    for owner, name in (
        (os, "fsync"),
        (os, "open"),
        (Path, "mkdir"),
        (Path, "replace"),
        (Path, "write_bytes"),
        (module, "sha256_of"),
        (module, "write_json"),
    ):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    return count


def saved(checkpoints):
    try:
        checkpoints.save(2, writing("two"), {}, None)
    except CheckpointError as error:
        return "No space left on device" not in str(error)
    return True


def test_a_full_disk_at_any_point_leaves_the_older_ones(tmp_path, told):
    number, done = 1, False
    while not done:
        root = tmp_path / str(number)
        checkpoints = Checkpoints(root, 2, told.append)
        checkpoints.save(1, writing("one"), {}, None)
        with pytest.MonkeyPatch.context() as patch:
            count = crash_points(patch, number)
            done = saved(checkpoints) and count["calls"] < number
        found = checkpoints.newest()
        assert content(found) == {1: "one", 2: "two"}[found.step]
        assert found.step == 2 or not done
        assert not [p for p in root.iterdir() if p.name.startswith(".writing")]
        number += 1
    assert number > 8


def test_a_seal_that_was_changed_is_refused(checkpoints, told):
    folder = checkpoints.save(7, writing("one"), {}, None).folder
    text = (folder / SEAL).read_text()
    (folder / SEAL).write_text(text.replace('"step": 7', '"step": 8'))
    assert checkpoints.newest() is None
    assert "was changed after it was written" in told[0]


def test_a_process_killed_while_writing_leaves_the_older_ones(checkpoints):
    checkpoints.save(1, writing("one"), {}, None)

    def killed(folder):
        writing("two")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, killed, {}, None)
    assert checkpoints.newest().step == 1
    checkpoints.save(3, writing("three"), {}, None)
    assert steps(checkpoints) == [1, 3]


def test_other_folders_beside_them_do_not_matter(checkpoints):
    checkpoints.save(1, writing("one"), {}, None)
    (checkpoints.root / "notes").mkdir()
    shutil.copytree(checkpoints.root / "step-000000001", checkpoints.root / "step-copy")
    assert checkpoints.newest().step == 1
