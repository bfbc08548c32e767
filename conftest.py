"""What doctests may assume, and what pytest leaves out when optional packages are missing."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from importlib.util import find_spec

import numpy as np
import pytest

# Shells start what they put into the background with Ctrl-C ignored, and Python then sets no
# handler of its own: neither here nor in the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore: list[str] = []
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore += ["mpobert_plugin", "tests/mpobert_plugin", "tests/test_readme.py"]
if find_spec("peft") is None:
    collect_ignore += ["mpobert_plugin/peft"]
if find_spec("triton") is None:
    # Imported on a GPU alone, where torch brings it.
    collect_ignore += [
        "mpobert_plugin/add_kernel.py",
        "mpobert_plugin/half_kernel.py",
        "mpobert_plugin/merge_kernel.py",
        "mpobert_plugin/unfold_kernel.py",
        "mpobert_plugin/train/attention_kernel.py",
    ]
if find_spec("hypothesis") is None:
    collect_ignore += ["tensornet/testing"]
if find_spec("quimb") is None:
    collect_ignore += ["tensornet/interop.py"]


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over the million objects that importing has made."""
    gc.collect()
    gc.freeze()


def _seed(more: int = 0) -> None:
    """Give every global generator one state; that of torch starts with another each time."""
    seed = int(os.environ.get("TEST_SEED") or 0) + more
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the global one, which libraries draw from
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed before each test, so that none depends on which ran before it."""
    if (
        "mpobert_plugin" in item.path.relative_to(item.config.rootpath).parts
        and "torch" not in sys.modules
    ):
        __import__("torch")
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Seed once more, for fixtures have drawn: more of them where the test is the first to ask."""
    _seed(1)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Seed before what several tests share, for the first of them to ask is not always the same."""
    if fixturedef.scope != "function":
        _seed()


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace: dict[str, object]) -> None:
    """Give the examples of docstrings ``np``, as numpydoc does."""
    doctest_namespace["np"] = np
