"""Saving and loading: round trips, damaged files, files of strangers, interrupted writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import tensornet as tn
from tensornet import io
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
    with pytest.raises(tn.errors.OptionError, match="'numpy', 'torch'"):
        tn.load(tmp_path / "m.safetensors", library="jax")


def test_tensor_train_round_trip(tmp_path):
    t = tn.tt(np.arange(24.0).reshape(2, 3, 4), gauge="symmetric")
    tn.save(t, str(tmp_path / "t.safetensors"))
    back = tn.load(str(tmp_path / "t.safetensors"))
    assert isinstance(back, tn.TensorTrain)
    assert back.center is None
    assert np.array_equal(back.to_tensor(), t.to_tensor())


def test_bad_paths(tmp_path):
    m = tn.mpo(W, SITES)
    with pytest.raises(tn.errors.FileFormatError, match="which is a folder"):
        tn.save(m, tmp_path)
    with pytest.raises(tn.errors.FileFormatError, match="existing folder"):
        tn.save(m, tmp_path / "none" / "m.safetensors")
    with pytest.raises(tn.errors.FileFormatError, match="existing file"):
        tn.load(tmp_path / "none.safetensors")
    with pytest.raises(tn.errors.FileFormatError, match="existing file"):
        tn.load(tmp_path)
    with pytest.raises(tn.errors.ArrayTypeError, match="MPO or a TensorTrain, got ndarray"):
        tn.save(W, tmp_path / "m.safetensors")


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


@pytest.mark.parametrize(
    "change",
    [
        {"n_sites": 4},
        {"n_sites": "many"},
        {"shape": [100, 100]},
        {"shape": None},
        {"certificate": [1.0]},
        {"kind": None},
    ],
)
def test_metadata_that_contradicts_the_cores(change, tmp_path):
    m = tn.mpo(W, SITES)
    record = {**io._metadata(m), **change}
    arrays = {f"core.{k}": core for k, core in enumerate(m.cores)}
    save_file(arrays, tmp_path / "m.safetensors", {io.FORMAT: json.dumps(record)})
    with pytest.raises(tn.errors.FileFormatError):
        tn.load(tmp_path / "m.safetensors")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    tn.save(tn.mpo(W, SITES), path)
    before = path.read_bytes()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        tn.save(tn.mpo(2 * W, SITES), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
