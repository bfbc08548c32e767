"""Damaged and forged files of weights are refused with their fault, never read wrongly."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tensornet import errors
from tensornet.streaming import Options, decompose_file, inspect_file, reconstruct_file
from tensornet.streaming.source import open_source
from tensornet.streaming.summary import RECORD
from tensornet.streaming.target import Piece, copied, write_pieces
from tests.tensornet.weights import small_model, smooth


@pytest.fixture
def model(tmp_path):
    return small_model(tmp_path)


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
        errors.FileFormatError, match=r"hold '..weight.core_0', F\d\d of shape \(1, .*, 9\), got"
    ):
        inspect_file(out)


@pytest.mark.parametrize("offsets", [([0, 8], [12, 20]), ([0, 8], [4, 12]), ([0, 8], [0, 8])])
def test_tensors_that_overlap_or_leave_gaps(tmp_path, offsets):
    header = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": list(span)}
        for name, span in zip("ab", offsets, strict=True)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offsets[1][1]))
    with pytest.raises(
        errors.FileFormatError,
        match=rf"one after another, got '[ab]' at byte \d+ where {len(text) + 16}",
    ):
        open_source(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    source, out = folder / "m.safetensors", folder / "o.safetensors"
    save_file({"w": smooth(32, 48), "b": np.ones(3, np.float32)}, source)
    decompose_file(source, out, Options(max_bond=3))
    with safe_open(out, "np") as file:
        return folder, load_file(out), file.metadata()


def forge(written, change, tensors=None):
    folder, held, metadata = written
    record = json.loads(metadata[RECORD])
    change(record)
    path = folder / "forged.safetensors"
    save_file({**held, **(tensors or {})}, path, metadata={RECORD: json.dumps(record)})
    return path


def put(**values):
    return lambda record: record["matrices"][0].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r.update(version=2), "have version 1, got 2"),
        (lambda r: r.pop("matrices"), "the record must be JSON of its form"),
        (lambda r: r["matrices"].append(r["matrices"][0]), "hold 'w' once, got two of it"),
        (put(name="b"), r"hold 'b.core_0', F32 of shape"),
        (put(dtype="F64"), r"hold 'w.core_0', F64 of shape .*got F32"),
        (put(shape=[32, 49]), r"tell of a matrix 'w', got shape \(32, 49\) of sites"),
        (put(shape=[32]), r"tell of a matrix 'w', got shape \(32,\)"),
        (put(shape=[0, 4]), r"tell of a matrix 'w'"),
        (put(row_dims=[], col_dims=[], bonds=[]), "tell of a matrix 'w'"),
        (put(bonds=[1]), "describe a chain"),
        (put(stored="many"), "describe a chain"),
        (put(relative_error=None), "describe a chain"),
        (put(name=3), "describe a chain"),
        (put(shape=[float("inf"), 1]), "describe a matrix"),
        (put(extra=1), "describe a matrix"),
    ],
)
def test_forged_records(written, change, text):
    path = forge(written, change)
    for action in (inspect_file, lambda p: reconstruct_file(p, p.with_name("b.safetensors"))):
        with pytest.raises(errors.FileFormatError, match=text):
            action(path)


def test_a_chain_beside_its_own_matrix(written):
    path = forge(written, lambda r: None, {"w": np.ones((32, 48), np.float32)})
    with pytest.raises(errors.FileFormatError, match="hold 'w' once, got two of it"):
        inspect_file(path)


def test_cores_that_hold_no_real_numbers(written):
    folder, held, metadata = written
    whole = {k: v.astype(np.int32) if "core" in k else v for k, v in held.items()}
    path = forge((folder, whole, metadata), put(dtype="I32"))
    with pytest.raises(errors.FileFormatError, match="have real numbers for 'w', got I32"):
        inspect_file(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(
        [
            "name",
            "dtype",
            "shape",
            "dense",
            "stored",
            "reason",
            "relative_error",
            "row_dims",
            "col_dims",
            "bonds",
        ]
    ),
    value=VALUES,
)
def test_any_change_of_a_record_is_read_or_refused(written, field, value):
    path = forge(written, put(**{field: value}))
    try:
        str(inspect_file(path))
        reconstruct_file(path, path.with_name("r.safetensors"), overwrite=True)
    except errors.TensorNetError:
        return
    assert open_source(path.with_name("r.safetensors")).entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 900), byte=st.integers(0, 255))
def test_any_change_of_a_header_is_read_or_refused(written, at, byte):
    folder = written[0]
    blob = bytearray((folder / "o.safetensors").read_bytes())
    blob[at] = byte
    path = folder / "bent.safetensors"
    path.write_bytes(blob)
    try:
        str(inspect_file(path))
        reconstruct_file(path, folder / "r.safetensors", overwrite=True)
    except errors.TensorNetError:
        return
    assert open_source(folder / "r.safetensors").entries


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "o.safetensors"
    short = Piece("w", "F32", (2,), 8, lambda: [b"1234"])
    with pytest.raises(errors.FileAccessError, match=r"w must have 8 bytes, got 4"):
        write_pieces([short], {}, target)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.FileAccessError, match=r"out must be a file that can be written, "):
        write_pieces([short], {}, tmp_path / "gone" / "o.safetensors")
    gone = Piece("w", "F32", (2,), 8, lambda: copied(tmp_path / "no", 0, 8))
    with pytest.raises(errors.FileAccessError, match=r"path must be a file that can be read, got"):
        write_pieces([gone], {}, target)
    assert list(tmp_path.iterdir()) == []
