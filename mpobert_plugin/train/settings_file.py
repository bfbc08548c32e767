"""Settings from a YAML file and words like ``lr=1e-3``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.presets import SETTINGS, preset_settings
from mpobert_plugin.train.settings import PretrainConfig, check_names

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

PRESET = "preset"


def read_settings(path: str | os.PathLike[str] | None, words: Sequence[str] = ()) -> PretrainConfig:
    """Return settings from a YAML file and words that replace some of them.

    The name ``preset`` stands for the settings of a model, which all others override.

    Parameters
    ----------
    path : path, optional
        A YAML file of names and values; the defaults without one.
    words : sequence of str
        Such as ``lr=1e-3`` or ``preset=mpobert-tiny``.

    Returns
    -------
    PretrainConfig
        Checked.

    Raises
    ------
    ConfigError
        When the file cannot be read, or a name or value is impossible.

    Examples
    --------
    >>> read_settings(None, ["steps=20", "precision=bf16"]).steps
    20
    """
    return _settings(_with_words({} if path is None else _read(Path(path)), words))


def _with_words(options: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    found = dict(options)
    for word in words:
        name, mark, value = word.partition("=")
        if not mark or not name:
            raise ConfigError(f"settings must be given as name=value, got {word!r}.")
        found[name] = _parsed(value, word)
    return found


def _settings(options: dict[str, Any], names: Sequence[str] = ()) -> PretrainConfig:
    own = {name: value for name, value in options.items() if name != PRESET}
    check_names(own, (PRESET, *names))
    base = preset_settings(options[PRESET]) if PRESET in options else {}
    return PretrainConfig.from_dict({**base, **own})


def split_settings(
    path: str | os.PathLike[str] | None, words: Sequence[str], names: Sequence[str]
) -> tuple[PretrainConfig, dict[str, Any]]:
    """Return settings, and what the file and the words say under other names.

    A preset of settings gives the model too, unless there is another one.

    Parameters
    ----------
    path : path, optional
        A YAML file.
    words : sequence of str
        Such as ``lr=1e-3`` or ``model.num_layers=4``.
    names : sequence of str
        Names that are no settings.

    Returns
    -------
    tuple of (PretrainConfig, dict)
        Checked settings; values by name.

    Raises
    ------
    ConfigError
        As `read_settings` says.

    Examples
    --------
    >>> split_settings(None, ["steps=20", "model.preset=mpobert-12"], ["model"])[1]
    {'model': {'preset': 'mpobert-12'}}
    >>> split_settings(None, ["preset=mpobert-tiny"], ["model"])[1]
    {'model': 'mpobert-tiny'}
    >>> split_settings(None, ["preset=mpobert-tiny", "model.num_layers=3"], ["model"])[1]
    {'model': {'preset': 'mpobert-tiny', 'num_layers': 3}}
    """
    options = {} if path is None else _read(Path(path))
    found = {name: options.pop(name) for name in names if name in options}
    left = []
    for word in words:
        name, mark, value = word.partition("=")
        first, dot, inner = name.partition(".")
        if not mark or first not in names:
            left.append(word)
        elif dot:
            found[first] = {**_options_of(found.get(first), word), inner: _parsed(value, word)}
        else:
            found[first] = _parsed(value, word)
    options = _with_words(options, left)
    if PRESET in options and "model" in names:
        found["model"] = _of_preset(options[PRESET], found.get("model"))
    return _settings(options, names), found


def _of_preset(preset: Any, model: Any) -> Any:
    """Return the model of a preset of settings, or another one that was named."""
    if model is None:
        return preset
    # Options alone, such as model.num_layers=3, are those of the preset's model.
    own = isinstance(model, dict) and not set(model) & {"preset", "folder", "from_albert"}
    return {"preset": preset, **model} if own else model


def _options_of(model: Any, word: str) -> dict[str, Any]:
    """Return the options that a word adds one to."""
    if model is None or isinstance(model, dict):
        return dict(model or {})
    if isinstance(model, str) and model in SETTINGS:
        return {"preset": model}
    raise ConfigError(f"{word!r} needs a preset or options beside it, got {model!r}.")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(f"config must be a YAML file, got {path}, which does not exist.")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"config must be a YAML file, got {path}: {error}.") from error
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold names and values, got a {type(found).__name__}.")
    return found


def _parsed(value: str, word: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"settings must be given as name=value, got {word!r}.") from error
