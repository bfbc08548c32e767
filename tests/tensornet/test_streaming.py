"""Files of weights decomposed one matrix at a time: round trips, resuming, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensornet import errors
from tensornet.streaming import Options, decompose_file, inspect_file, reconstruct_file
from tensornet.streaming.source import narrowed, open_source, widened


def smooth(rows, cols, dtype=np.float32, shift=0.0):
    x, y = np.linspace(0, 1, rows)[:, None], np.linspace(0, 1, cols)
    return np.exp(-3 * (x - y - shift) ** 2).astype(dtype)


def relative(found, matrix):
    return np.linalg.norm(found.astype(np.float64) - matrix) / np.linalg.norm(matrix)


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "a.weight": smooth(64, 96),
        "a.bias": rng.standard_normal(64).astype(np.float32),
        "b.weight": smooth(48, 64, np.float64, 0.3),
        "noise.weight": rng.standard_normal((64, 64)).astype(np.float32),
        "ids": np.arange(64 * 64).reshape(64, 64),
        "scalar": np.array(3.0, np.float32),
        "tiny.weight": smooth(4, 4),
        "empty": np.zeros((0, 3), np.float32),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path, tensors


def test_round_trip_keeps_promises_and_copies_the_rest(model, tmp_path):
    path, tensors = model
    out, back = tmp_path / "out.safetensors", tmp_path / "back.safetensors"
    summary = decompose_file(path, out, Options(rtol=1e-3, include=("*.weight",)))
    rows = {row.name: row for row in summary.rows}
    assert set(rows) == set(tensors)
    assert {row.name for row in summary.chains} == {"a.weight", "b.weight"}
    assert rows["noise.weight"].reason.startswith("no smaller as a chain (")
    assert rows["tiny.weight"].reason == "a side below 16"
    assert rows["ids"].reason == "not selected"
    assert "2 of 8 tensors are chains" in str(summary)
    stored = load_file(out)
    assert sum(a.size for a in stored.values()) == summary.stored
    reconstruct_file(out, back)
    again = load_file(back)
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].shape == tensor.shape
        if rows[name].row_dims:
            error = relative(again[name], tensor)
            assert error <= 1e-3
            assert error == pytest.approx(rows[name].relative_error, rel=1e-2, abs=1e-6)
        else:
            assert again[name].tobytes() == tensor.tobytes()
    assert open_source(back).shards[0].metadata == {"format": "pt"}
    assert not (tmp_path / "out.safetensors.parts").exists()
    assert inspect_file(out).stored == summary.stored
    assert {row.name for row in inspect_file(out).chains} == {"a.weight", "b.weight"}


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_a_ratio_is_met(model, tmp_path, ratio):
    path, _ = model
    summary = decompose_file(path, tmp_path / "o.safetensors", Options(ratio=ratio))
    assert {"a.weight", "noise.weight"} <= {row.name for row in summary.chains}
    for row in summary.chains:
        assert row.stored <= ratio * row.dense


def test_a_budget_below_every_chain_leaves_the_matrix(model, tmp_path):
    summary = decompose_file(model[0], tmp_path / "o.safetensors", Options(ratio=0.001))
    assert not summary.chains
    reasons = {row.reason for row in summary.rows if row.name == "a.weight"}
    assert reasons == {"its budget is below the smallest chain"}


def test_larger_chains_are_kept_on_demand(model, tmp_path):
    options = Options(max_bond=1000, keep_larger=True, exclude=("a.*", "b.*", "ids"))
    summary = decompose_file(model[0], tmp_path / "o.safetensors", options)
    (row,) = summary.chains
    assert row.name == "noise.weight"
    assert row.stored > row.dense


def bf16_file(path, values):
    bits = narrowed(values)
    header = {"w": {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [0, bits.nbytes]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes())
    return widened(bits)


def test_bfloat16_stays_bfloat16_and_its_error_is_measured(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    stored = bf16_file(path, smooth(64, 64))
    summary = decompose_file(path, out, Options(rtol=0.05))
    (row,) = summary.chains
    assert row.dtype == "BF16"
    assert row.relative_error <= 0.05
    assert {entry.dtype for entry in open_source(out).entries.values()} == {"BF16"}
    reconstruct_file(out, tmp_path / "b.safetensors")
    back = open_source(tmp_path / "b.safetensors").entries["w"]
    assert back.dtype == "BF16"
    assert relative(back.matrix(), stored) <= 0.06
    with pytest.raises(errors.ToleranceError, match=r"^w: rtol must be above 0\.\d+, got 0\.002"):
        decompose_file(path, tmp_path / "p.safetensors", Options(rtol=0.002))


def test_bfloat16_rounding_equals_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    theirs = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(widened(narrowed(values)), theirs)


def sharded(tmp_path, n=2):
    folder = tmp_path / "in"
    folder.mkdir()
    weight_map = {}
    for k in range(n):
        name = f"model-{k + 1:05d}-of-{n:05d}.safetensors"
        tensors = {f"l{k}.weight": smooth(64, 64, shift=k / 10), f"l{k}.bias": np.ones(3)}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index, weight_map


def test_several_files_with_an_index(tmp_path):
    index, _ = sharded(tmp_path)
    goal = tmp_path / "out"
    goal.mkdir()
    out = goal / "small.safetensors.index.json"
    summary = decompose_file(index, out, Options(max_bond=8))
    assert len(summary.chains) == 2
    names = {p.name for p in goal.iterdir()}
    files = {f"small-0000{k}-of-00002.safetensors" for k in (1, 2)}
    assert names == files | {out.name}
    back = goal / "back.safetensors.index.json"
    reconstruct_file(out, back)
    entries = open_source(back).entries
    assert relative(entries["l1.weight"].matrix(), smooth(64, 64, shift=0.1)) < 1e-3
    with pytest.raises(errors.OptionError, match=r"out must end in \.index\.json"):
        decompose_file(index, goal / "one.safetensors", Options(max_bond=8))


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..", ""]
)
def test_an_index_that_points_elsewhere(tmp_path, name):
    index, weight_map = sharded(tmp_path)
    weight_map["evil"] = name
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(errors.FileFormatError, match="name files in its own folder, got"):
        open_source(index)


def test_an_index_that_is_wrong(tmp_path):
    index, weight_map = sharded(tmp_path)
    first = next(iter(weight_map))
    wrong = {**weight_map, first: sorted(set(weight_map.values()))[1]}
    index.write_text(json.dumps({"weight_map": wrong}))
    with pytest.raises(
        errors.FileFormatError, match=f"1 elsewhere or missing, the first '{first}'"
    ):
        open_source(index)
    index.write_text("[]")
    with pytest.raises(errors.FileFormatError, match="index with a weight_map"):
        open_source(index)
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(errors.FileAccessError, match="existing file"):
        open_source(index)
    index.write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(errors.FileFormatError, match="list at least one tensor, got none"):
        open_source(index)


def test_a_name_in_two_files(tmp_path):
    index, weight_map = sharded(tmp_path)
    second = sorted(set(weight_map.values()))[1]
    save_file({"l0.weight": smooth(16, 16)}, index.parent / second)
    with pytest.raises(errors.FileFormatError, match=r"hold each tensor once, got .l0\.weight. in"):
        open_source(index)


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
    assert len(times) == 3
    assert not out.exists()
    with pytest.raises(errors.OptionError, match="those of the run that was interrupted"):
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


def test_memory_stays_near_one_matrix(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({f"w{k}": smooth(256, 256, shift=k / 40) for k in range(24)}, path)
    decompose_file(path, tmp_path / "warm.safetensors", Options(max_bond=6))
    tracemalloc.start()
    decompose_file(path, tmp_path / "o.safetensors", Options(max_bond=6))
    reconstruct_file(tmp_path / "o.safetensors", tmp_path / "b.safetensors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 256 * 256 * 4 < path.stat().st_size


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_values_are_named_and_nothing_is_lost(tmp_path, value):
    path = tmp_path / "m.safetensors"
    bad = smooth(32, 32)
    bad[1, 2] = value
    save_file({"good": smooth(32, 32), "sick": bad}, path)
    with pytest.raises(
        errors.NonFiniteError, match=r"^sick: W must be finite, got 1 non-finite value, .*\(1, 2\)"
    ):
        decompose_file(path, tmp_path / "o.safetensors", Options(max_bond=4))
    assert len(list((tmp_path / "o.safetensors.parts").glob("*.safetensors"))) == 1
    assert not (tmp_path / "o.safetensors").exists()


OPTIONS = [
    ({}, errors.OptionError, "limits must name max_bond, rtol or ratio, got none"),
    ({"rtol": 0.1, "ratio": 0.1}, errors.OptionError, "not name both rtol and ratio"),
    ({"ratio": 0}, errors.OptionError, r"ratio must be a number in \(0, 1\], got 0"),
    ({"ratio": 1.5}, errors.OptionError, "got 1.5. It is stored / dense"),
    ({"ratio": True}, errors.OptionError, "got True"),
    ({"max_bond": 0}, errors.BondError, "max_bond must be an integer of at least 1, got 0"),
    ({"rtol": 2.0}, errors.ToleranceError, r"rtol must be a number in \(0, 1\), got 2.0"),
    ({"max_bond": 2, "sites": 1}, errors.ShapeError, "sites must be an integer of at least 2"),
    ({"max_bond": 2, "sites": 99}, errors.ShapeError, "sites must be at most 32, got 99"),
    ({"max_bond": 2, "include": "*.w"}, errors.OptionError, "include must be a tuple of patterns"),
    ({"max_bond": 2, "exclude": (3,)}, errors.OptionError, "exclude must hold patterns"),
    ({"max_bond": 2, "min_size": -1}, errors.ShapeError, "min_size must be an integer"),
]


@pytest.mark.parametrize(("given", "kind", "text"), OPTIONS)
def test_options_are_checked(given, kind, text):
    with pytest.raises(kind, match=text):
        Options(**given)


def test_damaged_sources(tmp_path, model):
    path, _ = model
    blob = path.read_bytes()
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(blob[:-5])
    with pytest.raises(errors.FileFormatError, match="be a whole safetensors file, got"):
        open_source(bad)
    bad.write_bytes(b"hello")
    with pytest.raises(errors.FileFormatError, match="safetensors file"):
        open_source(bad)
    with pytest.raises(errors.FileAccessError, match="existing file"):
        open_source(tmp_path / "none.safetensors")
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header["a.weight"]["shape"] = [64, 97]
    text = json.dumps(header).encode()
    bad.write_bytes(len(text).to_bytes(8, "little") + text + blob[8 + size :])
    with pytest.raises(
        errors.FileFormatError, match=r"hold the whole tensor 'a.weight', got \d+ bytes"
    ):
        open_source(bad)


def test_a_forged_record_is_refused(model, tmp_path):
    out = tmp_path / "o.safetensors"
    decompose_file(model[0], out, Options(max_bond=4))
    blob = out.read_bytes()
    forged = re.sub(rb'\\"bonds\\": \[1, (\d)', rb'\\"bonds\\": [1, 9', blob, count=1)
    assert forged != blob
    out.write_bytes(forged)
    with pytest.raises(
        errors.FileFormatError, match=r"hold '..weight.core_0' of shape \(1, .*, 9\)"
    ):
        inspect_file(out)


def test_a_plain_file_has_nothing_to_rebuild(model, tmp_path):
    with pytest.raises(errors.FileFormatError, match="source must hold chains, got none"):
        reconstruct_file(model[0], tmp_path / "o.safetensors")


def test_a_clash_of_names(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"w": smooth(32, 32), "w.core_0": np.ones(2)}, path)
    with pytest.raises(
        errors.FileFormatError, match=r"leave room for w, got a tensor 'w.core_0' already"
    ):
        decompose_file(path, tmp_path / "o.safetensors", Options(max_bond=2))
