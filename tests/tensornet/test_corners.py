"""Refusals that are seldom met, and values at the corners of what is allowed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import backend as backends
from tensornet import files
from tensornet.backend import load_backend
from tensornet.errors import (
    ArrayTypeError,
    FileAccessError,
    FileFormatError,
    MissingLibraryError,
    RangeError,
    ShapeError,
    ToleranceError,
)
from tensornet.stack_bases import stack_basis
from tensornet.stack_storage import narrowed_stack
from tensornet.streaming import Options, decompose_file, inspect_file, reconstruct_file
from tensornet.streaming.element_type import check_kept
from tensornet.truncation import Truncation
from tensornet.whitening import _same_home
from tests.tensornet.weights import small_model

NUMPY = load_backend("numpy")
RNG = np.random.default_rng(0)
W = RNG.normal(size=(24, 24))
SHAPE = ((2, 3, 4), (4, 3, 2))


# Arrays that are none to work with.


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ma.masked_array(W, W > 2), r"W must have no mask, got a masked array. Fill"),
        (
            torch.eye(4).to_sparse(),
            r"W must be dense, got a tensor with layout torch.sparse_coo .*float32. Call .to_dense",
        ),
        (
            torch.nn.Linear(2, 2),
            r"W must be a numpy array.*got torch.nn.modules.linear.Linear. Pass its weight",
        ),
    ],
)
def test_arrays_that_are_no_plain_arrays(array, text):
    with pytest.raises(ArrayTypeError, match=text):
        tn.mpo(array, 2)


@pytest.mark.parametrize(("name", "library"), [("pytorch", "torch"), ("jax", "jax")])
def test_a_library_that_is_not_installed_is_named(name, library, monkeypatch):
    def missing(_):
        raise ImportError("no module")

    monkeypatch.setattr(backends, "_tensorly_backend", missing)
    text = rf"{library} is needed .* \(no module\). Install it: pip install {library}"
    with pytest.raises(MissingLibraryError, match=text):
        load_backend.__wrapped__(name)


def test_the_command_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "tensornet.cli", raising=False)
    with pytest.raises(SystemExit, match=r"needs typer and rich\. Install them: pip install"):
        importlib.import_module("tensornet.cli")


def test_a_metric_on_another_device_is_refused():
    metric = torch.empty(24, 24, dtype=torch.float64, device="meta")
    text = "metric must be on the device of W, got meta with W on cpu"
    with pytest.raises(ArrayTypeError, match=text):
        _same_home(metric, torch.from_numpy(W), "metric")


def test_what_is_no_network_has_no_inner_product():
    m = tn.mpo(W, SHAPE)
    with pytest.raises(ArrayTypeError, match=r"must have two networks, .*, got ndarray of"):
        tn.inner(W, m)
    with pytest.raises(ArrayTypeError, match=r"must have another MPO, got ndarray of"):
        tn.inner(m, W)


# Shapes.


@pytest.mark.parametrize("shape", [(4,), [[2, 2], [2, 2], [2, 2]], ((2, 3, 4), 24), [24, (24,)]])
def test_shapes_that_are_no_pairs(shape):
    with pytest.raises(ShapeError, match=r"shape must be a number of sites or a pair"):
        tn.mpo(W, shape)


def test_factors_that_are_too_small_for_a_prime():
    expected = "103 has no 2 balanced factors; shape=2 pads it to 105."
    with pytest.raises(ShapeError, match=r"row_dims must multiply to .* 103.*product 100") as said:
        tn.mpo(np.ones((103, 4)), ((10, 10), (2, 2)))
    assert str(said.value).endswith(expected.replace("105", str(_padded(103))))


def _padded(size):
    return tn.matrix_layout(size, 1, 2).padded_shape[0]


def test_tensors_of_too_many_sites_are_not_formed():
    with pytest.raises(ShapeError, match=r"cores must have at most 64 sites .*, got 65"):
        tn.contract_tensor([np.ones((1, 1, 1))] * 65)


# Networks.


def test_signs_and_centers():
    t = tn.tt(W.reshape(8, 9, 8))
    for target in range(3):
        moved = t.move_center(target)
        assert moved.center == target
        assert np.allclose(moved.to_tensor(), t.to_tensor())
        flat = np.asarray(moved.cores[(target + 1) % 3])
        rows = flat.reshape(len(flat), -1) if (target + 1) % 3 > target else None
        if rows is not None:
            assert np.allclose(rows @ rows.T, np.eye(len(rows)))
    assert +t is t
    assert np.allclose((-t).to_tensor(), -t.to_tensor())


def test_nothing_simpler_fits_where_no_chain_does():
    with pytest.warns(tn.errors.FormatWarning, match="is best; no MPO fits the limit"):
        found = tn.search_shape(np.array([[1.0, 2.0, 3.0]]), max_params=3, n=[2])
    assert "no MPO fits" in str(found)


# Stacks.


def test_tall_stacks_are_cut_one_by_one():
    stack = RNG.normal(size=(2, 9, 4))
    found = stack_basis(stack, [Truncation(3)] * 2, NUMPY, lossless=False, narrow=False)
    for k in range(2):
        s = np.linalg.svd(stack[k], compute_uv=False)
        assert found.discarded[k] == pytest.approx(s[3] ** 2)
        kept = found.vectors[k].T @ stack[k]
        assert (kept**2).sum() == pytest.approx((s[:3] ** 2).sum())


def test_stacks_beyond_the_range_are_refused_by_their_core():
    cores = (np.ones((2, 1, 3, 1)), np.full((2, 1, 3, 1), 1e5))
    with pytest.raises(RangeError, match="core 1 must fit the range of float16, got larger"):
        narrowed_stack(cores, "float16", NUMPY, [None, None])
    factor = np.array([1e-3, 1e-4])
    (_, small), errors = narrowed_stack(cores, "float16", NUMPY, [None, factor])
    assert small[:, 0, 0, 0].tolist() == [100.0, 10.0]
    assert errors.tolist() == [0.0, 0.0]


# Files.


def test_a_record_that_is_no_record():
    record = {files.RECORD: "[]", files.CHECKSUM: "0"}
    with pytest.raises(FileFormatError, match="must be a safetensors file"):
        files.record_in({"__metadata__": record})


def test_a_mapped_file_without_numbers_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    tn.save(tn.mpo(np.eye(4), 2), path)
    path.write_bytes(files.read_header(path))
    with pytest.raises(FileFormatError, match=r"path must hold (numbers|a whole tensor)"):
        tn.load(path, mmap=True)


def test_a_library_that_is_missing_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    tn.save(tn.mpo(torch.eye(4), 2), path)
    real = backends.load_backend

    def missing(name):
        if name == "pytorch":
            raise MissingLibraryError("torch is needed")
        return real(name)

    for module in ("tensornet.io", "tensornet.record", "tensornet.backend"):
        loaded = importlib.import_module(module)
        if hasattr(loaded, "load_backend"):
            monkeypatch.setattr(loaded, "load_backend", missing)
    with pytest.raises(MissingLibraryError, match="torch is needed"):
        tn.load(path)


def test_a_file_that_vanishes_while_it_is_opened(tmp_path, monkeypatch):
    path, _ = small_model(tmp_path)
    real = files.read_header

    def read_header(where):
        head = real(where)
        Path(where).unlink()
        return head

    monkeypatch.setattr(files, "read_header", read_header)
    with pytest.raises(FileAccessError, match="path must be an existing file"):
        inspect_file(path)


def test_parts_that_lost_their_cores_are_damaged(tmp_path, monkeypatch):
    from tensornet.streaming import work

    path, _ = small_model(tmp_path)
    real = work.open_source

    def emptied(where):
        found = real(where)
        if Path(where).parent.name.endswith(".parts"):
            found.shards[0].entries.clear()
        return found

    monkeypatch.setattr(work, "open_source", emptied)
    text = r"the parts must hold .*core_0, got a damaged folder"
    with pytest.raises(FileAccessError, match=text):
        decompose_file(path, tmp_path / "o.safetensors", Options(max_bond=4))
    assert not (tmp_path / "o.safetensors").exists()


def test_progress_of_rebuilding(tmp_path):
    path, _ = small_model(tmp_path)
    out = tmp_path / "o.safetensors"
    decompose_file(path, out, Options(max_bond=4))
    told = []
    reconstruct_file(out, tmp_path / "b.safetensors", progress=lambda *now: told.append(now))
    names = [row.name for row in inspect_file(out).chains]
    assert told == [(k, len(names), name) for k, name in enumerate(names)]


def test_options_are_written_as_they_are():
    options = Options(max_bond=4, include=("a*",), shapes=(((2, 2), (4, 1)),), dtype="float16")
    written = options.to_json()
    assert json.loads(json.dumps(written)) == written
    assert written["include"] == ["a*"]
    assert written["shapes"] == [[[2, 2], [4, 1]]]
    assert written["dtype"] == "float16"
    assert written["rtol"] is None


def test_promises_that_rounding_breaks():
    check_kept(0.1, 0.1, "BF16")
    check_kept(0.5, None, "BF16")
    text = r"rtol must be kept by the stored cores, got 0.1, with 0.11 after rounding to bfloat16"
    with pytest.raises(ToleranceError, match=text):
        check_kept(0.11, 0.1, "BF16")
