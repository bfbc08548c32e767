"""Public docstrings name every argument, what comes back, and an example."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

docscrape = pytest.importorskip("numpydoc.docscrape")

PACKAGES = ("tensornet", "mpobert_plugin")


def public() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                yield f"{package}.{name}", thing


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*p, id=p[0]) for p in public()])
def test_every_argument_is_documented(name: str, thing: Any) -> None:
    is_class = inspect.isclass(thing)
    doc = docscrape.ClassDoc(thing) if is_class else docscrape.FunctionDoc(thing)
    entries = [*doc["Parameters"], *(doc["Attributes"] if is_class else [])]
    named = {n.strip(" *") for entry in entries for n in entry.name.split(",")}
    missing = [n for n in inspect.signature(thing).parameters if n not in named]
    assert not missing, f"{name} does not describe {missing}"


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*p, id=p[0]) for p in public()])
def test_every_public_name_has_an_example(name: str, thing: Any) -> None:
    assert ">>> " in (thing.__doc__ or ""), f"{name} has no example"
