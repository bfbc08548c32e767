"""Functions that have the name of their submodule stay functions, however it is imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import pytest

from mpobert_plugin.submodules import keep_public_names as plugin_keep
from tensornet.submodules import keep_public_names as tensornet_keep

PACKAGES = ("tensornet", "mpobert_plugin", "mpobert_plugin.cli")


def twofold() -> Iterator[tuple[str, str]]:
    """Return the public names that are names of submodules too, with their packages."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if find_spec(f"{package}.{name}") and not isinstance(getattr(module, name), ModuleType):
                yield package, name


LISTED = ("", ".families", ".peft", ".stability", ".train")


@pytest.mark.parametrize("package", ["tensornet", *(f"mpobert_plugin{part}" for part in LISTED)])
def test_dir_lists_the_public_names_alone(package: str) -> None:
    # Completion would hide them among a hundred submodules.
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in dir(module))


def test_there_are_such_names() -> None:
    assert {("tensornet", "contract"), ("mpobert_plugin", "report")} <= set(twofold())
    assert ("mpobert_plugin.cli", "app") in set(twofold())


@pytest.mark.parametrize(("package", "name"), sorted(twofold()))
def test_a_submodule_that_was_executed_does_not_hide_the_name(package: str, name: str) -> None:
    # Python and pytest hang a submodule into its package so, once it was executed.
    module = sys.modules[package]
    public, spec = getattr(module, name), find_spec(f"{package}.{name}")
    assert spec is not None
    setattr(module, name, module_from_spec(spec))
    assert getattr(module, name) is public


def test_attributes_can_be_set_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    package = sys.modules["mpobert_plugin"]
    public = package.report
    monkeypatch.setattr(package, "report", len)
    assert package.report is len
    monkeypatch.undo()
    assert package.report is public
    other = ModuleType("mpobert_plugin.other")
    monkeypatch.setattr(package, "other", other, raising=False)
    assert package.other is other


PROBE = """
import importlib
import sys
from types import ModuleType

names = [text.rpartition(".") for text in sys.argv[1:]]
packages = {package: importlib.import_module(package) for package, _, _ in names}
public = [getattr(packages[package], name) for package, _, name in names]
for _ in range(2):
    for package, _, name in names:
        importlib.import_module(f"{package}.{name}")
        assert not isinstance(getattr(packages[package], name), ModuleType), name
    assert [getattr(packages[package], name) for package, _, name in names] == public
    for package, _, name in names:
        del sys.modules[f"{package}.{name}"]
for package in ("tensornet", "mpobert_plugin"):
    importlib.reload(packages[package])
for package, _, name in names:
    assert not isinstance(getattr(packages[package], name), ModuleType), name
"""


@pytest.mark.slow
def test_names_stay_in_a_process_that_imports_submodules_again() -> None:
    names = [f"{package}.{name}" for package, name in twofold()]
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE, *names], check=True, timeout=120)


@pytest.mark.parametrize("keep", [tensornet_keep, plugin_keep])
def test_free_names_and_submodules_that_are_made_anew_are_set(keep: Any, monkeypatch: Any) -> None:
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    keep("shop")
    first, second = ModuleType("shop.door"), ModuleType("shop.door")
    shop.door = first
    assert shop.door is first
    shop.door = second
    assert shop.door is second
    shop.door = len
    shop.door = first
    assert shop.door is len
