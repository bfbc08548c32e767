"""The library's source files, parsed."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tensornet", "mpobert_plugin")


def library_files() -> list[Path]:
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def own_python_files() -> list[Path]:
    folders = (*PACKAGES, "tests", "docs", "benchmarks", "examples", "scripts")
    found = (path for name in folders for path in (ROOT / name).rglob("*.py"))
    return sorted(path for path in found if "_build" not in path.parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
