"""What messages of the library say in Python's words, in those of a command's options."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

# Those of a conversion; reports of any command advise them.
CONVERSION = {
    "sharing": "--sharing",
    "n": "--n",
    "shapes": "--shapes",
    "max_bond": "--max-bond",
    "rtol": "--rtol",
    "ratio": "--ratio",
    "max_params": "--max-params",
    "targets": "--target",
    "adapter_rank": "--adapter-rank",
    "adapter_alpha": "--adapter-alpha",
    "adapter_targets": "--adapter-target",
    "share_bias": "--share-bias",
    "share_norm": "--share-norm",
    "gauge": "--gauge",
    "fit": "--fit",
    "adapter_fit": "--adapter-fit",
    "calibration": "--calibration",
}
# Functions that are commands too, and what a command cannot be given.
_PHRASES = {
    "mpobert_plugin.convert(model)": "mpobert convert",
    "mpobert_plugin.merge(model)": "mpobert merge",
    ", a list of blocks of layer numbers or a function of layer and role": (
        " or a list of blocks of layer numbers"
    ),
}
_VALUE = r"'[^']*'|\[[^\]]*\]|\{[^}]*\}|-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|True|False|None"
# No part of a path, of an attribute or of an option.
_WORD, _END = r"(?<![\w./-])", r"(?![\w/-]|\.\w)"
_VERBS = r"must|needs?|has|have|says?|gives?|weighs|chooses"


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message in which arguments of functions are options of a command.

    Parameters
    ----------
    text : str
        What an error, a warning or a report says.
    options : mapping of str to str
        Option of each argument, such as ``{"max_bond": "--max-bond"}``.

    Returns
    -------
    str
        Values behind an argument are written as a shell takes them.

    Examples
    --------
    >>> in_options("Pass fit='joint' or sharing=None, or cut with max_bond=.", CONVERSION)
    'Pass --fit joint or no --sharing, or cut with --max-bond.'
    >>> in_options("Leave rtol out; ratio and max_params are one budget.", CONVERSION)
    'Leave --rtol out; --ratio and --max-params are one budget.'
    """
    for phrase, own in _PHRASES.items():
        text = text.replace(phrase, own)
    if not options:
        return text
    names = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    text = re.sub(
        rf"{_WORD}({names})=({_VALUE})?(?![\w='\[{{(])",
        lambda found: _with_value(options[found[1]], found[2]),
        text,
    )
    text = re.sub(rf"{_WORD}({names})\['([^']*)'\]", lambda m: f"{options[m[1]]} {m[2]}=...", text)
    text = re.sub(
        rf"(?:(?<=^)|(?<=got )|(?<=and ))({names}) '(\w+)'",
        lambda m: f"{options[m[1]]} {m[2]}",
        text,
    )
    for pattern in _patterns(names):
        text = re.sub(pattern, lambda found: _each_bare(found[0], names, options), text)
    return text


def _patterns(names: str) -> tuple[str, ...]:
    """Return where a bare name is an argument, although it may be a word of the language too."""
    several = rf"(?:{names})(?:(?:, | and | or )(?:{names}))*"
    # A name with an underscore is no other word.
    coined = "|".join(name for name in names.split("|") if "_" in name)
    return (
        rf"(?:(?<=^)|(?<=[.:;] )){several}(?= (?:are|{_VERBS})\b)",
        rf"\b[Gg]ive {several}{_END}",
        rf"\b[Ll]eave {several}(?= out\b)",
        rf"\b[Ll]eave out {several}{_END}",
        rf"\b(?:among|in|name|of|out of|unless) (?:targets|fit){_END}",
        *([rf"{_WORD}(?:{coined}){_END}"] if coined else []),
    )


def _each_bare(text: str, names: str, options: Mapping[str, str]) -> str:
    return re.sub(rf"{_WORD}({names}){_END}", lambda found: options[found[1]], text)


def _with_value(option: str, text: str | None) -> str:
    if text is None or text == "True":
        return option
    if text in ("False", "None"):
        return f"no {option}"
    if text[0] not in "'[{":
        return f"{option} {text.replace(',', '')}"
    try:
        value: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # What a message has shortened is no value.
        return f"{option} {text}"
    return _given(option, value)


def _given(option: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{option} {shlex.quote(value)}"
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return " ".join(_given(option, entry) for entry in value)
    return f"{option} {shlex.quote(json.dumps(value))}"
