"""The command line: what it prints, its exit codes, and that errors are one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from tensornet import __version__
from tensornet.cli import app

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


@pytest.fixture
def model(tmp_path):
    x = np.linspace(0, 1, 64)
    path = tmp_path / "m.safetensors"
    tensors = {"w": np.exp(-x[:, None] * x).astype(np.float32), "b": np.ones(3, np.float32)}
    save_file(tensors, path)
    return path


def test_decompose_inspect_reconstruct(model, tmp_path):
    out, back = tmp_path / "o.safetensors", tmp_path / "b.safetensors"
    done = run("decompose", model, "-o", out, "--rtol", "1e-3")
    assert done.exit_code == 0, done.output
    assert "1 of 2 tensors are chains" in done.output
    assert "1-dimensional" in done.output
    seen = json.loads(run("inspect", out, "--json").output)
    assert {row["name"] for row in seen["tensors"]} == {"w", "b"}
    assert run("reconstruct", out, "-o", back).exit_code == 0
    error = np.linalg.norm(load_file(back)["w"] - load_file(model)["w"])
    assert error < 1e-3 * np.linalg.norm(load_file(model)["w"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "limits must name --max-bond, --rtol, --ratio or --max-params, got none"),
        (["--ratio", "7"], "--ratio must be a number in (0, 1], got 7.0"),
        (["--max-bond", "0"], "--max-bond must be an integer of at least 1, got 0"),
        (
            ["--max-params", "90", "--rtol", "0.1"],
            "limits must not name --max-params with another one, got --rtol and --max-params",
        ),
        (["--max-params", "0"], "--max-params must be an integer of at least 1, got 0"),
        (
            ["--max-params", "20"],
            "--max-params must be at least 35, got 20, where tensors that stay as they are take 3",
        ),
        (
            ["--ratio", "0.5", "--shape", "8x4x2"],
            "--shape must be a number of sites, or look like 4,4,3x4,4,3, got '8x4x2'",
        ),
        (
            ["--ratio", "0.5", "--shape", "8,4x8,8"],
            "shapes must multiply to the size of a selected matrix, got 32x64. Sizes there: 64x64.",
        ),
        (
            ["--ratio", "0.5", "--shape", "8,8x8,8", "--shape", "4,16x8,8"],
            "shapes must have one for each size, got two of 64 x 64",
        ),
        (
            ["--max-bond", "1", "--rtol", "0.001"],
            "under these bonds, got 0.001. Raise the bonds (--rtol 0.001 needs",
        ),
        (["--max-bond", "1", "--rtol", "0.001"], "w: --rtol must be at least 0.0529"),
        (["--ratio", "0.5", "--dtype", "int8"], "--dtype must be one of 'float64', 'float32'"),
    ],
)
def test_errors_are_one_line(model, tmp_path, options, text):
    done = run("decompose", model, "-o", tmp_path / "o.safetensors", *options)
    assert done.exit_code == 2
    assert text in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_a_shape_of_ones_own_and_a_number_of_sites(model, tmp_path):
    own, two = tmp_path / "own.safetensors", tmp_path / "two.safetensors"
    done = run("decompose", model, "-o", own, "--rtol", "1e-3", "--shape", "2,32x32,2", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["tensors"]}
    assert (rows["w"]["row_dims"], rows["w"]["col_dims"]) == ([2, 32], [32, 2])
    assert load_file(own)["w.core_1"].shape[1:3] == (32, 2)
    assert run("decompose", model, "-o", two, "--rtol", "1e-3", "--shape", "2").exit_code == 0
    assert load_file(two)["w.core_0"].shape[1:3] == (8, 8)


def test_cores_in_an_element_type_of_ones_own(model, tmp_path):
    out = tmp_path / "o.safetensors"
    done = run(
        "decompose", model, "-o", out, "--rtol", "0.01", "--dtype", "float16", "--sites", "2"
    )
    assert done.exit_code == 0, done.output
    assert load_file(out)["w.core_0"].dtype == np.float16


def test_one_budget_for_the_whole_file(model, tmp_path):
    out = tmp_path / "o.safetensors"
    done = run("decompose", model, "-o", out, "--max-params", "400", "--json")
    assert json.loads(done.stdout)["stored"] <= 400
    assert sum(a.size for a in load_file(out).values()) <= 400


def test_search_as_json(model):
    found = json.loads(run("search", model, "--name", "w", "--ratio", "0.2", "--json").stdout)
    assert found["limit"] == {"max_params": 819}
    assert found["matrix_shape"] == [64, 64]
    best = found["candidates"][0]
    assert best["n_params"] <= 819
    assert set(best) >= {"kind", "row_dims", "col_dims", "bonds", "relative_error"}


def test_a_missing_file(tmp_path):
    done = run("inspect", tmp_path / "none.safetensors")
    assert done.exit_code == 2
    assert "existing file" in done.stderr


def test_plan_prints_and_writes_json():
    done = run("plan", "ij,jk,k->i", "2x3", "3x4", "4")
    assert done.exit_code == 0, done.output
    assert json.loads(run("plan", "ij,jk,k->i", "2x3", "3x4", "4", "--json").output)["shapes"]
    wrong = run("plan", "ij,jk->ik", "2x3", "4x4")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("Error: ")
    shape = run("plan", "ij->i", "2by3")
    assert "shapes must look like 2x3, or 'scalar', got '2by3'" in shape.stderr


def test_plan_of_a_matrix_in_a_file(model, tmp_path):
    out = tmp_path / "o.safetensors"
    assert run("decompose", model, "-o", out, "--max-bond", "3").exit_code == 0
    done = run("plan", out, "--name", "w", "--batch", "32", "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.output)
    assert made["shapes"][-1][-1] == 32
    assert run("plan", out, "--name", "w", "--minimize", "time").exit_code == 0
    wrong = run("plan", out, "--name", "b")
    assert "name must be that of a chain in the file, got 'b'" in wrong.stderr
    wrong = run("plan", out, "2x3", "--name", "w")
    assert "shapes must be left out with --name, got 2x3" in wrong.stderr
    wrong = run("plan", out, "--name", "w", "--batch", "0")
    assert "batch must be an integer of at least 1, got 0" in wrong.stderr
    wrong = run("plan", "ij,jk->ik")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


def test_a_misspelt_pattern(model, tmp_path):
    done = run("decompose", model, "-o", tmp_path / "o", "--max-bond", "2", "--include", "*.wt")
    assert done.exit_code == 2
    assert "include must match at least one tensor of the source, got '*.wt'" in done.stderr


COMMAND = [sys.executable, "-c", "from tensornet.cli import app; app()"]


def test_progress_on_a_terminal_and_none_in_the_result(model, tmp_path):
    pty = pytest.importorskip("pty", reason="terminals are those of POSIX systems")
    ours, theirs = pty.openpty()
    arguments = ["decompose", str(model), "-o", str(tmp_path / "o.safetensors"), "--max-bond", "2"]
    done = subprocess.run(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 100_000)
    os.close(ours)
    assert b"decomposing" in shown
    assert "1 of 2 tensors are chains" in done.stdout
    assert "decomposing" not in done.stdout


def test_a_real_interrupt_and_the_same_command_again(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    rng = np.random.default_rng(0)
    save_file({f"w{k:03d}": rng.standard_normal((256, 256)) for k in range(60)}, path)
    command = [*COMMAND, "decompose", str(path), "-o", str(out), "--max-bond", "4"]
    parts = tmp_path / "o.safetensors.parts"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        limit = time.monotonic() + 60
        while len(list(parts.glob("*.safetensors"))) < 2 and time.monotonic() < limit:
            time.sleep(0.002)
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
    assert run.returncode == 130
    assert said.count("\n") == 1
    assert said.startswith("Interrupted. Run the same command again to go on")
    assert not out.exists()
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert "60 of 60 tensors are chains" in again.stdout


def test_search_ranks_one_matrix(model):
    done = run("search", model, "--name", "w", "--ratio", "0.5")
    assert done.exit_code == 0, done.output
    assert "svd" in done.output.lower()
    assert "dense" in done.output.lower()
    close = run("search", model, "--name", "ww", "--ratio", "0.5")
    assert "got 'ww'. Close: w" in close.stderr
    text = "--name must be that of a matrix, got F32 of shape (3,). Names there: w."
    assert text in run("search", model, "--name", "b", "--ratio", "0.5").stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["w"], "limits must be one of --max-params, --ratio and --rtol, got none."),
        (
            ["w", "--ratio", "0.5", "--max-params", "9"],
            "limits must be one of --max-params, --ratio and --rtol, got --max-params and --ratio.",
        ),
        (["w", "--ratio", "2"], "--ratio must be a number in (0, 1], got 2.0."),
        (["w", "--ratio", "0.001"], "--ratio must be at least 0.00586, the 24 parameters of"),
        (["c", "--ratio", "0.5"], "be that of a tensor in the file, got 'c'. Names there: w."),
    ],
)
def test_a_search_names_its_own_options(model, options, text):
    done = run("search", model, "--name", *options)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr


def test_names_there_are_the_first_few(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({f"layer{k}": np.ones((2, 2)) for k in range(8)}, path)
    said = run("search", path, "--name", "xyz", "--rtol", "0.5").stderr
    assert "Names there: layer0, layer1, layer2, layer3, layer4 and 3 more." in said
    save_file({"ids": np.ones(2, np.int64)}, path)
    assert "got 'ids2'. There is none." in run("search", path, "--name", "ids2").stderr


def test_an_existing_result_names_the_flag(model, tmp_path):
    out = tmp_path / "o.safetensors"
    command = ["decompose", model, "-o", out, "--max-bond", "2"]
    assert run(*command).exit_code == 0
    again = run(*command)
    assert again.exit_code == 2
    text = "--out must not exist yet, got o.safetensors. Pass --overwrite to replace it."
    assert text in again.stderr
    assert run(*command, "--overwrite").exit_code == 0
    assert "Pass --overwrite to replace it." in run("reconstruct", out, "-o", model).stderr


def test_inspect_gives_the_reasons_that_it_knows(model, tmp_path):
    rows = {r["name"]: r for r in json.loads(run("inspect", model, "--json").output)["tensors"]}
    assert (rows["w"]["reason"], rows["b"]["reason"]) == ("", "1-dimensional")
    assert "left as it was because" in run("inspect", model).output
    path = tmp_path / "plain.safetensors"
    save_file({"w": np.ones((4, 4)), "v": np.ones((2, 2))}, path)
    assert "left as it was because" not in run("inspect", path).output


def test_interrupted_by_the_keyboard(model, tmp_path, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensornet.streaming.decompose_file", stop)
    done = run("decompose", model, "-o", tmp_path / "o.safetensors", "--max-bond", "2")
    assert done.exit_code == 130
    assert "Run the same command again to go on" in done.stderr


def test_version_and_help_need_no_heavy_library():
    code = (
        "import sys\nfrom tensornet.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'tensorly', 'jax', 'scipy') if m in sys.modules])"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert time.monotonic() - start < 20
    assert run("--version").output.strip()


@pytest.mark.parametrize("module", ["tensornet", "tensornet.cli"])
def test_the_module_is_the_command(module):
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == __version__
