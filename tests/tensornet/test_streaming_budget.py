"""One budget for a whole file, shapes for some sizes, and cores in another element type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tensornet as tn
from tensornet.streaming import Options, decompose_file, load_chain, reconstruct_file

TORCH = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def smooth(rows, cols, width):
    x, y = torch.linspace(0, 1, rows)[:, None], torch.linspace(0, 1, cols)
    return torch.exp(-width * (x - y) ** 2)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    torch.manual_seed(0)
    tensors = {
        "easy": smooth(64, 64, 5.0),
        "hard": smooth(64, 96, 900.0),
        "noise": torch.randn(64, 64),
        "bias": torch.ones(7),
    }
    save_file(tensors, path)
    return path, tensors


def relative(a, b):
    return float(torch.linalg.norm(a.double() - b.double()) / torch.linalg.norm(b.double()))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 1.0])
def test_a_budget_for_all_is_met_and_beats_equal_ratios(model, tmp_path, share):
    path, tensors = model
    total = sum(t.numel() for t in tensors.values())
    out, even = tmp_path / "o.safetensors", tmp_path / "e.safetensors"
    made = decompose_file(path, out, Options(max_params=int(share * total)))
    assert sum(t.numel() for t in load_file(out).values()) == made.stored <= share * total
    rest = decompose_file(path, even, Options(ratio=(share * total - 7) / (total - 7)))
    squares = [sum(row.relative_error**2 for row in s.rows) for s in (made, rest)]
    assert squares[0] <= squares[1] * 1.001 + 1e-12


def test_the_bonds_are_those_of_allocate(model, tmp_path):
    path, tensors = model
    total = sum(t.numel() for t in tensors.values())
    made = decompose_file(path, tmp_path / "o.safetensors", Options(max_params=total // 3))
    names = ("easy", "hard", "noise")
    order = [row.name for row in made.rows if row.name in names]
    found = tn.allocate(
        {name: tensors[name].numpy() for name in order},
        max_params=total // 3 - 7,
        shape={name: tn.matrix_layout(*tensors[name].shape, 5) for name in order},
    )
    rows = {row.name: row for row in made.rows}
    for a in found:
        assert rows[a.name].bonds[1:-1] == (() if a.dense else a.bonds)
    left = [row.reason for row in made.rows if row.name in names and not row.row_dims]
    assert set(left) <= {"the budget serves better elsewhere"}


def test_a_bad_matrix_is_named_before_anything_is_written(model, tmp_path):
    path, tensors = model
    tensors["noise"][3, 4] = float("nan")
    save_file(tensors, path)
    out = tmp_path / "o.safetensors"
    with pytest.raises(tn.errors.NonFiniteError, match=r"^noise .*Exclude it to leave it as it is"):
        decompose_file(path, out, Options(max_params=5000))
    assert list(tmp_path.iterdir()) == [path]
    made = decompose_file(path, out, Options(max_params=9000, exclude=("noise",)))
    assert made.stored <= 9000


def test_a_budget_below_the_least_leaves_no_trace(model, tmp_path):
    path, _ = model
    with pytest.raises(tn.errors.OptionError, match=r"max_params must be at least \d+, got 9"):
        decompose_file(path, tmp_path / "o.safetensors", Options(max_params=9))
    assert list(tmp_path.iterdir()) == [path]


def test_a_resumed_budget_is_for_the_same_choice_of_matrices(model, tmp_path):
    path, _ = model

    def stop(done, _total, name):
        if done > 2 and not name.startswith("spectra"):
            raise KeyboardInterrupt

    out, options = tmp_path / "o.safetensors", Options(max_params=5000)
    with pytest.raises(KeyboardInterrupt):
        decompose_file(path, out, options, progress=stop)
    with pytest.raises(tn.errors.OptionError, match="exclude"):
        decompose_file(path, out, Options(max_params=5000, exclude=("noise",)))
    assert decompose_file(path, out, options).stored <= 5000


@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_cores_of_every_type_from_every_type(tmp_path, source, dtype):
    path, out, back = (tmp_path / f"{name}.safetensors" for name in "mob")
    matrix = smooth(64, 64, 5.0).to(TORCH[source])
    save_file({"w": matrix}, path)
    rtol = 0.05 if dtype == "bfloat16" else 0.01
    (row,) = decompose_file(path, out, Options(rtol=rtol, dtype=dtype)).rows
    cores = load_file(out)
    assert {core.dtype for core in cores.values()} == {TORCH[dtype]}
    reconstruct_file(out, back)
    plain = load_file(back)["w"]
    assert plain.dtype == TORCH[dtype]
    assert relative(torch.from_numpy(load_chain(out, "w").to_matrix()), matrix) <= rtol
    assert row.relative_error == pytest.approx(
        relative(torch.from_numpy(load_chain(out, "w").to_matrix()), matrix), rel=0.05, abs=2e-4
    )


def test_a_type_that_cannot_hold_the_cores_or_the_tolerance(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    save_file({"w": smooth(64, 64, 5.0) * 1e30}, path)
    with pytest.raises(tn.errors.RangeError, match="fit the range of float16"):
        decompose_file(path, out, Options(rtol=0.1, dtype="float16"))
    save_file({"w": smooth(64, 64, 5.0)}, path)
    with pytest.raises(tn.errors.ToleranceError, match="Cores in float16 come no closer"):
        decompose_file(path, out, Options(rtol=1e-4, dtype="float16"), overwrite=True)


def test_shapes_for_some_sizes_and_balanced_sites_for_others(model, tmp_path):
    path, _ = model
    shape = ((4, 16), (8, 12))
    options = Options(ratio=0.5, sites=3, shapes=(shape,), keep_larger=True)
    rows = {r.name: r for r in decompose_file(path, tmp_path / "o.safetensors", options).rows}
    assert (rows["hard"].row_dims, rows["hard"].col_dims) == shape
    assert rows["easy"].row_dims == (4, 4, 4)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"shapes": [((2,), (2,))]}, "shapes must be a tuple of"),
        ({"shapes": (((2, 2), (2,)),)}, "got 2 row factors and 1 column factors"),
        ({"shapes": ((4, 4),)}, r"shapes must hold pairs \(row_dims, col_dims\), got \(4, 4\)"),
        ({"shapes": (((4, 0), (4, 4)),)}, "row_dims must be an integer of at least 1, got 0"),
    ],
)
def test_shapes_are_checked(given, text):
    with pytest.raises(tn.errors.ShapeError, match=text):
        Options(ratio=0.5, **given)


def test_nothing_to_spend_a_budget_on(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"b": torch.ones(5)}, path)
    with pytest.raises(tn.errors.OptionError, match="max_params must be at least 5, got 9"):
        decompose_file(path, tmp_path / "o.safetensors", Options(max_params=9))


def test_numpy_numbers_are_no_shapes():
    assert Options(ratio=0.5, shapes=(((8, 8), (8, 8)),)).layout((64, 64)).row_dims == (8, 8)
    assert np.prod(Options(ratio=0.5).layout((64, 64)).row_dims) == 64
