"""Options of a conversion from the command line and from a JSON file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mpobert_plugin.config import MPOConfig


def read_config(path: Path | None) -> MPOConfig | None:
    """Return the options of a JSON file.

    Parameters
    ----------
    path : pathlib.Path or None
        A file with one object: options of `MPOConfig` by name.

    Returns
    -------
    MPOConfig or None
        None without a file.

    Raises
    ------
    ConfigError
        When the file is no such object, or an option is unknown or impossible.
    OSError
        When it cannot be read.
    """
    if path is None:
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} must be JSON, got a file that is none: {error}.") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} must hold one object of options, got {fields!r}.")
    from mpobert_plugin.config import MPOConfig

    try:
        return MPOConfig(**fields)
    except ConfigError as error:
        raise ConfigError(f"in {path}: {error}") from error


def structured(name: str, text: str | None) -> Any:
    """Return the value of an option that may be a word or a JSON value.

    Parameters
    ----------
    name : str
        Name of the option, for the message.
    text : str or None
        A word such as ``all`` and ``groups:3``, ``true``, ``false``, or JSON such as
        ``[[0, 1], [2, 3]]`` and ``{"768": [4, 4, 4, 4, 3]}``.

    Returns
    -------
    object
        The value; None for None.

    Raises
    ------
    ConfigError
        When it begins like JSON and is none.

    Examples
    --------
    >>> structured("sharing", "groups:3"), structured("sharing", "[[0], [1]]")
    ('groups:3', [[0], [1]])
    """
    if text is None or not (text[:1] in "[{" or text in ("true", "false")):
        return text
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--{name} must be a word or JSON, got {_shown(text)}: {error}."
        ) from error


def integer(name: str, text: str) -> Any:
    """Return the integer that a text says, or the object of JSON that it holds.

    Parameters
    ----------
    name : str
        Name of the option, for the message.
    text : str
        Such as ``8`` or ``{"query": 4}``.

    Returns
    -------
    object
        The integer; whether it is in range is for others to say.

    Raises
    ------
    ConfigError
        When it is neither.

    Examples
    --------
    >>> integer("max-bond", "8"), integer("max-bond", '{"query": 4}')
    (8, {'query': 4})
    """
    return _number(name, text, int, "integer")


def number(name: str, text: str) -> Any:
    """Return the number that a text says, or the object of JSON that it holds.

    Parameters
    ----------
    name : str
        Name of the option, for the message.
    text : str
        Such as ``1e-2`` or ``{"query": 0.1}``.

    Returns
    -------
    object
        The number; whether it is in range is for others to say.

    Raises
    ------
    ConfigError
        When it is neither.

    Examples
    --------
    >>> number("rtol", "1e-2")
    0.01
    """
    return _number(name, text, float, "number")


def _number(name: str, text: str, kind: Callable[[str], Any], wanted: str) -> Any:
    if text.startswith("{"):
        return structured(name, text)
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"--{name} must be one {wanted}, or role={wanted} for each role "
            f"(--{name} query=... --{name} key=...), got {_shown(text)}."
        ) from None


def per_role(name: str, given: Sequence[str], read: Callable[[str, str], Any]) -> Any:
    """Return the value of an option that is one for all matrices or one for each role.

    Parameters
    ----------
    name : str
        Name of the option, for messages.
    given : sequence of str
        What was given each time: one value, ``role=value`` for each role, or one text of JSON.
    read : callable
        Takes the name of the option and the text of a value.

    Returns
    -------
    object
        The value, a dict of them by role, or None when nothing was given.

    Raises
    ------
    ConfigError
        When the option was given several times without roles, or a role twice.

    Examples
    --------
    >>> per_role("max-bond", ["8"], integer), per_role("max-bond", ["query=4", "*=8"], integer)
    (8, {'query': 4, '*': 8})
    """
    if not given:
        return None
    if len(given) == 1 and ("=" not in given[0] or given[0][:1] in "[{"):
        return read(name, given[0])
    found: dict[str, Any] = {}
    for text in given:
        role, mark, value = text.partition("=")
        if not mark or not role:
            raise ConfigError(
                f"--{name} must be one value, or role=value each time that it is given, got "
                f"{_shown(text)}{' beside others' if len(given) > 1 else ''}. Name the role: "
                f"--{name} query=..."
            )
        if role in found:
            raise ConfigError(
                f"--{name} must name each role once, got {role!r} twice. Leave one of them out."
            )
        found[role] = read(name, value)
    return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]} ...")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given.

    Parameters
    ----------
    options : mapping of str to object
        Options by name; None stands for not given.

    Returns
    -------
    dict of str to object
        The others.

    Examples
    --------
    >>> given_options({"n": 3, "rtol": None, "sharing": []})
    {'n': 3, 'sharing': []}
    """
    return {name: value for name, value in options.items() if value is not None}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; of a name that comes twice, one would be lost."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} comes twice in one object")
    return fields
