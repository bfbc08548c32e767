"""What pytest leaves out when optional packages are missing."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore += ["mpobert_plugin", "tests/mpobert_plugin", "tests/test_readme.py"]
if find_spec("hypothesis") is None:
    collect_ignore += ["tensornet/testing"]
