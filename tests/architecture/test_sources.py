"""Rules that every source file keeps."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import library_files, own_python_files, parse, relative

LONGEST = 400
UNPICKLERS = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
UNFINISHED = ("TODO", "FIXME", "XXX", "NotImplementedError", "pragma: no cover")
# tokenizers raises bare exceptions; one file gives them a name and lets others pass. What keeps
# Triton from running can be anything, and there is another way, which a line of the log tells.
BARE_EXCEPTIONS = {"mpobert_plugin/train/data/foreign.py", "mpobert_plugin/kernels.py"}


def long(path: Path) -> Iterator[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > LONGEST:
        yield f"{lines} lines; split it by idea"


def without_a_first_line(path: Path) -> Iterator[str]:
    docstring = ast.get_docstring(parse(path))
    if not docstring:
        yield "does not say what it is for"
        return
    first, *rest = docstring.splitlines()
    if not first.endswith("."):
        yield "the first line is no sentence"
    if rest and rest[0]:
        yield "no empty line follows the first"


def asserting(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Assert):
            yield f"line {node.lineno} asserts; raise an error of errors.py"


def catching_everything(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        broad = isinstance(node, ast.ExceptHandler) and _is_broad(node.type)
        if broad and str(relative(path)) not in BARE_EXCEPTIONS:
            yield f"line {node.lineno} catches everything"


def _is_broad(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"} for n in names)


def unpickling(path: Path) -> Iterator[str]:
    tree = parse(path)
    yield from {name.partition(".")[0] for name in _imported(tree)} & UNPICKLERS
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "torch.load":
            safe = [ast.unparse(k.value) for k in call.keywords if k.arg == "weights_only"]
            if safe != ["True"]:
                yield f"line {call.lineno} loads what can run code"


def _imported(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return names | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}


def unfinished(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    yield from (word for word in UNFINISHED if word in text)


RULES = [without_a_first_line, asserting, catching_everything, unpickling, unfinished]


def found(rule: Callable[[Path], Iterator[str]], paths: list[Path]) -> list[str]:
    return [f"{relative(path)}: {fault}" for path in paths for fault in rule(path)]


def test_files_stay_short() -> None:
    assert not found(long, own_python_files())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_of_the_library_is(rule: Callable[[Path], Iterator[str]]) -> None:
    assert not found(rule, library_files())


FAULTS = {
    without_a_first_line: '"""No sentence"""',
    asserting: '"""A."""\nassert True',
    catching_everything: '"""A."""\ntry:\n    pass\nexcept (ValueError, Exception):\n    pass',
    unpickling: '"""A."""\nimport torch\ntorch.load("x")',
    unfinished: '"""A."""\n# TODO',
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_finds_its_fault(rule, tmp_path, monkeypatch) -> None:
    path = tmp_path / "module.py"
    path.write_text(FAULTS[rule], encoding="utf-8")
    monkeypatch.setattr("tests.architecture.test_sources.relative", lambda path: path.name)
    assert len(found(rule, [path])) == 1
    path.write_text('"""A."""\n', encoding="utf-8")
    parse.cache_clear()
    assert not found(rule, [path])
