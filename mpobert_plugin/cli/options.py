"""Options of a conversion from the command line and from a JSON file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mpobert_plugin.config import MPOConfig
from mpobert_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
    return MPOConfig(**fields)


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
        shown = text if len(text) <= 80 else f"{text[:80]} ..."
        raise ConfigError(f"--{name} must be a word or JSON, got {shown!r}: {error}.") from error


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
