"""The command ``mpobert`` tells its version and its help without what takes seconds to import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = "mpobert_plugin"
_PROGRAMS = ("mpobert", "mpobert.exe", _PACKAGE, f"{_PACKAGE}.cli")
_WORDS = {"--help", "--version"}


def asks_for_words(
    argv: Sequence[str] | None = None, original: Sequence[str] | None = None
) -> bool:
    """Return whether this process is the command, asked for its version or for help.

    Whatever else imports the package gets the whole of it.

    Parameters
    ----------
    argv, original : sequence of str, optional
        ``sys.argv`` and ``sys.orig_argv`` by default.

    Returns
    -------
    bool
        True too for the command without any words, which shows its help.

    Examples
    --------
    >>> asks_for_words(["/bin/mpobert", "convert", "--help"], [])
    True
    >>> asks_for_words(["-m", "--version"], ["python", "-m", "mpobert_plugin", "--version"])
    True
    >>> asks_for_words(["/bin/mpobert", "convert", "folder"], [])
    False
    >>> asks_for_words(["train.py", "--help"], ["python", "train.py", "--help"])
    False
    """
    argv = sys.argv if argv is None else argv
    original = sys.orig_argv if original is None else original
    program = Path(argv[0]).name if argv else ""
    # While python -m looks for a module, the program has no other name.
    if program == "-m" and "-m" in original[:-1]:
        program = original[original.index("-m") + 1]
    if program not in _PROGRAMS:
        return False
    return not argv[1:] or not _WORDS.isdisjoint(argv[1:])


def load_package() -> None:
    """Import the rest of the package if a command runs although it was asked for words.

    So does one that is given ``--help`` as the value of an option.
    """
    package = sys.modules[_PACKAGE]
    if not vars(package)["_whole"]:
        vars(package)["_whole"] = True
        importlib.reload(package)
