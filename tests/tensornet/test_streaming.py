"""Files of weights decomposed one matrix at a time: round trips, resuming, refusals."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensornet import errors
from tensornet.streaming import Options, decompose_file, inspect_file, load_chain, reconstruct_file
from tensornet.streaming.source import narrowed, open_source, widened
from tests.tensornet.weights import bf16_file, relative, sharded, small_model, smooth


@pytest.fixture
def model(tmp_path):
    return small_model(tmp_path)


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


def test_bfloat16_errors_are_those_of_the_stored_cores(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    rough = smooth(700, 600) + np.random.default_rng(0).normal(0, 0.1, (700, 600))
    stored = bf16_file(path, rough.astype(np.float32))
    (row,) = decompose_file(path, out, Options(max_bond=8)).chains
    error = relative(load_chain(out, "w").to_matrix(), stored)
    assert row.relative_error == pytest.approx(error, rel=1e-4)


def test_norms_beyond_half_precision(tmp_path):
    path, out, back = (tmp_path / f"{n}.safetensors" for n in "mob")
    tensors = {
        "large": (6e4 * smooth(64, 64, np.float64)).astype(np.float16),
        "small": (1e-4 * smooth(64, 64, np.float64)).astype(np.float16),
    }
    save_file(tensors, path)
    summary = decompose_file(path, out, Options(rtol=0.02))
    assert len(summary.chains) == 2
    reconstruct_file(out, back)
    for name, tensor in load_file(back).items():
        assert relative(tensor, tensors[name].astype(np.float64)) <= 0.021


def test_bfloat16_rounding_equals_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    theirs = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(widened(narrowed(values)), theirs)


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


def test_memory_of_padded_matrices(tmp_path):
    path = tmp_path / "m.safetensors"
    words = np.random.default_rng(0).standard_normal((30522, 64), np.float32)
    save_file({"words": words}, path)
    options = Options(max_bond=16)
    decompose_file(path, tmp_path / "warm.safetensors", options)
    tracemalloc.start()
    decompose_file(path, tmp_path / "o.safetensors", options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 30522 * 64 * 4


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
    ({}, errors.OptionError, "limits must name max_bond, rtol, ratio or max_params, got none"),
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


def test_padded_matrices_come_back_in_their_true_size(tmp_path):
    path, out, back = (tmp_path / f"{n}.safetensors" for n in "mob")
    tensors = {"prime": smooth(61, 127), "row": smooth(1, 97), "half": smooth(64, 50, np.float16)}
    save_file(tensors, path)
    summary = decompose_file(path, out, Options(rtol=0.05, min_size=1))
    assert {"prime", "half"} <= {row.name for row in summary.chains}
    reconstruct_file(out, back)
    for name, tensor in load_file(back).items():
        assert (tensor.shape, tensor.dtype) == (tensors[name].shape, tensors[name].dtype)
        assert relative(tensor, tensors[name].astype(np.float64)) <= 0.051


def test_a_second_call_keeps_the_chains_of_the_first(model, tmp_path):
    path, tensors = model
    one, two, back = (tmp_path / f"{n}.safetensors" for n in ("one", "two", "back"))
    decompose_file(path, one, Options(max_bond=3, include=("a.weight",)))
    decompose_file(one, two, Options(rtol=1e-3, include=("b.weight",)))
    assert {row.name for row in inspect_file(two).chains} == {"a.weight", "b.weight"}
    reconstruct_file(two, back)
    assert set(load_file(back)) == set(tensors)
    assert relative(load_file(back)["b.weight"], tensors["b.weight"]) <= 1e-3


@pytest.mark.parametrize("side", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_refused(model, tmp_path, side):
    wrong = Options(max_bond=2, **{side: ("a.wieght",)})
    with pytest.raises(
        errors.OptionError,
        match=rf"{side} must match at least one tensor of the source, got 'a\.wieght'\. "
        r"Names there: a\.weight",
    ):
        decompose_file(model[0], tmp_path / "o.safetensors", wrong)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_one_chain_of_a_file_is_a_network(model, tmp_path):
    path, tensors = model
    out = tmp_path / "o.safetensors"
    decompose_file(path, out, Options(rtol=1e-3))
    network = load_chain(out, "a.weight")
    assert relative(network.to_matrix(), tensors["a.weight"]) <= 1e-3
    with pytest.raises(errors.OptionError, match=r"got 'a\.bias'\. Close: a\.weight"):
        load_chain(out, "a.bias")


def test_a_source_that_vanishes_or_shrinks(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"w": smooth(32, 32)}, path)
    entry = open_source(path).entries["w"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(errors.FileAccessError, match=rf"reach byte {entry.stop}, got .*ends at"):
        entry.matrix()
    path.unlink()
    with pytest.raises(errors.FileAccessError, match="a file that can be read"):
        entry.matrix()
