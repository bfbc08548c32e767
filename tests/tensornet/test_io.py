"""Saving and loading: round trips, damaged files, files of strangers, interrupted writes."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_bytes
from safetensors.numpy import save_file

import tensornet as tn
from tensornet import files
from tensornet.record import record_of
from tensornet.testing import layouts, matrices

torch = pytest.importorskip("torch")

W = np.random.default_rng(0).normal(size=(24, 24))
SITES = ((2, 3, 4), (4, 3, 2))


@settings(max_examples=25)
@given(st.data())
def test_round_trip(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("io") / "m.safetensors"
    layout = data.draw(layouts())
    matrix = data.draw(matrices(layout, dtype=data.draw(st.sampled_from(("float32", "float64")))))
    m = tn.mpo(matrix, layout.n_sites)
    tn.save(m, path)
    back = tn.load(path)
    assert back.shape == m.shape
    assert all(np.array_equal(a, b) for a, b in zip(m.cores, back.cores, strict=True))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
)
def test_torch_round_trip(dtype, tmp_path):
    source = torch.as_tensor(W).to(getattr(torch, dtype))
    m = tn.mpo(source, SITES, max_bond=6)
    tn.save(m, tmp_path / "m.safetensors")
    back = tn.load(tmp_path / "m.safetensors")
    assert back.dtype == m.dtype
    assert back.center == m.center
    assert back.layout == m.layout
    assert back.certificate.relative_error == m.certificate.relative_error
    assert back.certificate.discarded_weight == m.certificate.discarded_weight
    assert all(torch.equal(a, b) for a, b in zip(m.cores, back.cores, strict=True))


def test_padding_and_library_are_kept_or_chosen(tmp_path):
    m = tn.mpo(np.random.default_rng(0).normal(size=(103, 32)), 3, rtol=0.5)
    tn.save(m, tmp_path / "m.safetensors")
    back = tn.load(tmp_path / "m.safetensors")
    assert back.shape == (103, 32)
    assert isinstance(back.central, np.ndarray)
    as_torch = tn.load(tmp_path / "m.safetensors", library="torch")
    assert isinstance(as_torch.central, torch.Tensor)
    for a, b in zip(as_torch.cores, back.cores, strict=True):
        assert np.array_equal(a.numpy(), b)
    with pytest.raises(tn.errors.OptionError, match="'numpy', 'torch', 'jax', got 'cupy'"):
        tn.load(tmp_path / "m.safetensors", library="cupy")


def test_tensor_train_round_trip(tmp_path):
    t = tn.tt(np.arange(24.0).reshape(2, 3, 4), gauge="symmetric")
    tn.save(t, str(tmp_path / "t.safetensors"))
    back = tn.load(str(tmp_path / "t.safetensors"))
    assert isinstance(back, tn.TensorTrain)
    assert back.center is None
    assert np.array_equal(back.to_tensor(), t.to_tensor())


def test_bad_paths(tmp_path):
    m = tn.mpo(W, SITES)
    access = tn.errors.FileAccessError
    with pytest.raises(access, match="which is a folder"):
        tn.save(m, tmp_path)
    with pytest.raises(access, match="existing folder"):
        tn.save(m, tmp_path / "none" / "m.safetensors")
    with pytest.raises(access, match="null byte"):
        tn.save(m, "a\0b")
    with pytest.raises(access, match="name too long"):
        tn.save(m, tmp_path / ("a" * 300))
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(access, match="existing file"):
            tn.load(path)
    with pytest.raises(tn.errors.ArrayTypeError, match="MPO and TensorTrain, got ndarray"):
        tn.save(W, tmp_path / "m.safetensors")


def test_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tn.errors.FileAccessError, match="which is no file"):
        tn.save(tn.mpo(W, SITES), tmp_path / "pipe")


def test_links_and_modes_are_kept(tmp_path):
    real, link = tmp_path / "real.safetensors", tmp_path / "link.safetensors"
    tn.save(tn.mpo(W, SITES), real)
    real.chmod(0o640)
    link.symlink_to(real)
    tn.save(tn.mpo(2 * W, SITES), link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert np.allclose(tn.load(real).to_matrix(), 2 * W)


def test_long_names(tmp_path):
    path = tmp_path / ("n" * 250)
    tn.save(tn.mpo(W, SITES), path)
    assert tn.load(path).shape == (24, 24)


def test_paths_with_spaces_and_accents(tmp_path):
    path = tmp_path / "é à ß.safetensors"
    tn.save(tn.mpo(W, SITES), path)
    assert tn.load(path).shape == (24, 24)


@pytest.mark.parametrize("cut", [0, 1, 8, 200, -1, -100])
def test_truncated_files(cut, tmp_path):
    path = tmp_path / "m.safetensors"
    tn.save(tn.mpo(W, SITES), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(tn.errors.FileFormatError):
        tn.load(path)


def test_garbage_and_foreign_files(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"not a network" * 100)
    with pytest.raises(tn.errors.FileFormatError, match="be a safetensors file"):
        tn.load(path)
    save_file({"weight": W}, path)
    with pytest.raises(tn.errors.FileFormatError, match=r"tensornet\.save"):
        tn.load(path)


def rewritten(m, change, path):
    """Write a file whose record was changed by somebody who knows how to make a checksum."""
    record = {**record_of(m), **change}
    arrays = {f"core.{k}": core for k, core in enumerate(m.cores)}
    metadata = {files.RECORD: json.dumps(record)}
    metadata[files.CHECKSUM] = files.digest(save_bytes(arrays, metadata))
    path.write_bytes(save_bytes(arrays, metadata))


GOOD = {"norm": 1.0, "discarded_share": [0.0, 0.0], "storage_error": 0.0, "padding_share": None}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 3}, "version must be 1 or 2, got 3"),
        ({"kind": None}, "kind must have a possible value"),
        ({"n_sites": 4, "certificate": None}, "hold 4 cores, got 3"),
        ({"n_sites": "3"}, "n_sites must have"),
        ({"n_sites": True}, "n_sites must have"),
        ({"center": 3}, "center must have"),
        ({"center": -1}, "center must have"),
        ({"center": 1.0}, "center must have"),
        ({"shape": [100, 100]}, "at most 24"),
        ({"shape": None}, "shape must have"),
        ({"shape": [24]}, "shape must have"),
        ({"complex": True}, "whole network"),
        ({"library": "cupy"}, "library must have"),
        ({"certificate": [1.0]}, "certificate must have"),
        ({"certificate": {**GOOD, "discarded_share": [0.0]}}, "certificate must have"),
        ({"certificate": {**GOOD, "discarded_share": ["a", "b"]}}, "certificate must have"),
        ({"certificate": {**GOOD, "discarded_share": [-1.0, 0.0]}}, "certificate must have"),
        ({"certificate": {**GOOD, "norm": float("nan")}}, "certificate must have"),
    ],
)
def test_records_that_contradict_the_cores(change, text, tmp_path):
    rewritten(tn.mpo(W, SITES), change, tmp_path / "m.safetensors")
    with pytest.raises(tn.errors.FileFormatError) as caught:
        tn.load(tmp_path / "m.safetensors")
    assert text in str(caught.value)


@settings(max_examples=60)
@given(st.data())
def test_every_flipped_bit_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("io") / "m.safetensors"
    tn.save(tn.mpo(W[:4, :4], ((2, 2), (2, 2)), max_bond=2), path)
    blob = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(blob))
    with pytest.raises(tn.errors.FileFormatError):
        tn.load(path)


def test_bfloat16_has_no_numpy_form(tmp_path):
    tn.save(tn.mpo(torch.as_tensor(W).bfloat16(), SITES), tmp_path / "m.safetensors")
    with pytest.raises(tn.errors.OptionError, match="library='torch'"):
        tn.load(tmp_path / "m.safetensors", "numpy")


def test_deeply_nested_headers(tmp_path):
    header = b"[" * 100_000
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(tn.errors.FileFormatError, match="safetensors file"):
        tn.load(tmp_path / "m")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    tn.save(tn.mpo(W, SITES), path)
    before = path.read_bytes()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        tn.save(tn.mpo(2 * W, SITES), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
