"""Which packages may import which, and when heavy ones are loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

from tests.architecture.sources import ROOT

HEAVY = ("torch", "tensorly", "scipy", "opt_einsum", "transformers", "matplotlib")
HEAVY += ("hypothesis", "jax", "quimb", "cotengra", "numba", "safetensors")

BLOCK_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "mpobert_plugin"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_tensornet_loads_nothing_heavy() -> None:
    code = "import json, sys, tensornet; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run(code))}
    assert "tensornet" in loaded
    assert not loaded & set(HEAVY)


def test_tensornet_works_where_torch_cannot_be_imported() -> None:
    code = BLOCK_TORCH + (
        "import numpy as np, tensornet as tn\n"
        "W = np.random.default_rng(0).standard_normal((12, 30))\n"
        "m = tn.mpo(W, 2)\n"
        "print(bool(np.allclose(m.to_matrix(), W)), 'torch' in sys.modules)\n"
    )
    assert run(code).split() == ["True", "False"]


def test_every_public_name_of_tensornet_can_be_had() -> None:
    code = (
        "import tensornet as tn\n"
        "missing = [name for name in tn.__all__ if not hasattr(tn, name)]\n"
        "undocumented = [name for name in tn.__all__ if not getattr(tn, name).__doc__]\n"
        "unlisted = [name for name in tn.__all__ if name not in dir(tn)]\n"
        "print(missing, undocumented, unlisted)\n"
    )
    assert run(code).split() == ["[]", "[]", "[]"]


def test_every_module_of_the_plugin_stands_in_a_layer() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["id"] == "plugin-layers")
    placed = {name.strip("() ") for layer in layers for name in layer.split("|")}
    folder = ROOT / "mpobert_plugin"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")} - {"init"}
    missing = {f"mpobert_plugin.{name}" for name in modules} - placed
    assert not missing, f"place {sorted(missing)} in the layers of pyproject.toml"


def test_import_contracts_hold() -> None:
    pytest.importorskip("importlinter")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
            "--no-cache",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
