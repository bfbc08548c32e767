"""The check of the built pages sees what it should see, and the reference is complete."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("bs4")

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_html", DOCS / "check_html.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<p>the bond :math:`k`</p>", "unrendered ':math:'"),
        ("<p>:param x: a number</p>", "unrendered ':param'"),
        ("<p>a \\(x\\) formula</p>", r"unrendered '\\('"),
        ("<p>the DMRG algorithm</p>", "undefined abbreviation DMRG"),
    ],
)
def test_faults_of_a_page_are_found(
    check: ModuleType, tmp_path: Path, body: str, fault: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<article>{body}</article>", encoding="utf-8")
    assert check.faults(page) == [fault]


def test_code_may_hold_anything(check: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<article><p>An MPO</p><pre>:math: XYZ</pre></article>", encoding="utf-8")
    assert check.faults(page) == []


@pytest.mark.parametrize("package", ["tensornet", "mpobert_plugin"])
def test_every_public_name_is_in_the_reference_once(package: str) -> None:
    text = (DOCS / "reference" / f"{package}.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^(?:   |.. autoclass:: \w+\.)([\w.]+)$", text, flags=re.MULTILINE)
    module = importlib.import_module(package)
    assert sorted(listed) == sorted(set(listed))
    for name in module.__all__:
        member = getattr(module, name)
        # A public module has an entry of its own, or each of its members has one.
        if isinstance(member, ModuleType) and name not in listed:
            assert {f"{name}.{part}" for part in member.__all__} <= set(listed)
        else:
            assert name in listed
