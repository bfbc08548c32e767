"""What a user without torch, or without this package, is told."""

from __future__ import annotations

import json
import subprocess
import sys

import mpobert_plugin as mp
from tests.mpobert_plugin.models import tiny_albert

WITHOUT_TORCH = """
import importlib.util as util
import sys


find = util.find_spec
util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
import mpobert_plugin
"""


def test_a_missing_package_is_named_with_the_command():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "needs torch, which cannot be found" in run.stderr
    assert 'pip install "tensornet-mpo[mpobert]"' in run.stderr


def test_a_saved_folder_says_what_loads_it(tmp_path):
    mp.convert(tiny_albert()).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert stored["loaded_by"].startswith("import mpobert_plugin")
    assert mp.MPOConfig.from_dict(stored).plan is not None
