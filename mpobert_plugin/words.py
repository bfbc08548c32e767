"""The command ``mpobert`` tells its version and its help without what takes seconds to import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = "mpobert_plugin"
_MODULES = (_PACKAGE, f"{_PACKAGE}.cli")
_WORDS = {"--help", "-h", "--version"}
# What installers write into the script of the command, and nothing else that imports the package.
_IMPORT, _CALL, _LONGEST = f"from {_PACKAGE}.cli import app", "sys.exit(app())", 2000


def asks_for_words(
    argv: Sequence[str] | None = None, original: Sequence[str] | None = None
) -> bool:
    """Return whether this process is the command, asked for its version or for help.

    Whatever else imports the package gets the whole of it, other programs of the same name too.

    Parameters
    ----------
    argv, original : sequence of str, optional
        ``sys.argv`` and ``sys.orig_argv`` by default; a program that embeds Python may have none.

    Returns
    -------
    bool
        True too for the command without any words, which shows its help.

    Examples
    --------
    >>> asks_for_words(["-m", "convert", "-h"], ["python", "-m", "mpobert_plugin", "convert", "-h"])
    True
    >>> asks_for_words(["-m", "convert"], ["python", "-m", "mpobert_plugin", "convert"])
    False
    >>> asks_for_words(["train.py", "--help"], ["python", "train.py", "--help"])
    False
    """
    argv = getattr(sys, "argv", None) if argv is None else argv
    original = getattr(sys, "orig_argv", None) if original is None else original
    if not argv or (argv[1:] and _WORDS.isdisjoint(argv[1:])):
        return False
    # While python -m looks for a module, the program has no other name.
    if argv[0] == "-m":
        return _module_of(original or ()) in _MODULES
    return _is_script(Path(argv[0]))


def _module_of(original: Sequence[str]) -> str:
    return original[original.index("-m") + 1] if "-m" in original[:-1] else ""


def _is_script(program: Path) -> bool:
    """Return whether a program is the one that installers write: others may have its name."""
    # A program of Windows is no text, but lies where the interpreter does.
    if program.name == "mpobert.exe":
        return program.parent == Path(sys.executable).parent
    if program.name != "mpobert":
        return False
    try:
        with program.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
    except (OSError, ValueError):
        return False
    short = len(text) <= _LONGEST and text.count(_PACKAGE) == 1
    return short and _IMPORT in text and _CALL in text


def load_package() -> None:
    """Import the rest of the package if a command runs although it was asked for words.

    So does one that is given ``--help`` as the value of an option.
    """
    package = sys.modules[_PACKAGE]
    if not vars(package)["_whole"]:
        vars(package)["_whole"] = True
        importlib.reload(package)
