"""The code blocks of the README run and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    section: int
    line: int
    code: str
    output: str | None


def examples() -> list[Example]:
    """Return each python block with the text block that follows it directly, if one does."""
    text = README.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    found = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] != "python":
            continue
        follows = (
            after is not None
            and after[1] == "text"
            and not text[block.end() : after.start()].strip()
        )
        line = text[: block.start()].count("\n") + 2
        section = text[: block.start()].count("\n## ")
        output = after[2] if after is not None and follows else None
        found.append(Example(section, line, block[2], output))
    return found


def test_the_readme_has_examples_of_both_packages() -> None:
    code = "".join(example.code for example in examples())
    assert "import tensornet as tn" in code
    assert "import mpobert_plugin as mp" in code


def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = None
    names: dict[str, object] = {}
    for example in examples():
        if example.section != section:
            # Who begins here has none of the names of the sections before.
            section, names = example.section, {"__name__": "readme"}
        printed = io.StringIO()
        source = "\n" * (example.line - 1) + example.code
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(source, str(README), "exec"), names)
        if example.output is not None:
            assert printed.getvalue() == example.output, f"{README.name}, line {example.line}"
