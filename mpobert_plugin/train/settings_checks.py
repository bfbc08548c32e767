"""What each pre-training setting must be; the messages say what it was."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from typing import Any

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.options import check_integer, own_integer, own_number

OPTIMIZERS = ("lamb", "adamw")
RECONSTRUCTIONS = ("auto", "per_step", "per_micro_batch")
GUARDS = ("stop", "rollback")
NETWORKS = ("auto", "half", "autocast")
COMPILES = ("none", "layers")
ATTENTIONS = ("auto", "torch")
GRAPHS = ("auto", "none", "steps")
RECOMPUTES = ("none", "layers", "selective", "every_2", "every_3", "every_4")

# The reference of the documentation is made from these three.
WORDS = {
    "optimizer": OPTIMIZERS,
    "reconstruction": RECONSTRUCTIONS,
    "network": NETWORKS,
    "compile": COMPILES,
    "attention": ATTENTIONS,
    "graphs": GRAPHS,
    "recompute": RECOMPUTES,
    "guard": GUARDS,
}
LEAST = {"eval_every": 0, "save_every": 0, "keep": 1, "workers": 0, "seed": 0}
MOST = {"steps": 10_000_000, "seed": 2**63 - 1}
USUAL_MOST = 10**9
LIMITS = {
    "lr": (0.0, 1e6),
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "eps": (0.0, 1.0),
    "weight_decay": (0.0, 1e3),
    "clip": (0.0, 1e9),
    "warmup_ratio": (0.0, 1.0),
    "guard_factor": (1.0, 1e9),
    "loss_scale": (2.0**-14, 2.0**24),
    **{f"lr_{kind}": (0.0, 1e6) for kind in ("central", "auxiliary", "adapter", "head")},
}
OPEN_ABOVE = ("beta1", "beta2")


def own_value(entry: dataclasses.Field[Any], value: Any) -> Any:
    """Return a value as the type of its field; YAML takes 1e-3 for a word.

    Parameters
    ----------
    entry : dataclasses.Field
        Of the settings.
    value : object
        As it was given.

    Returns
    -------
    object
        A plain number where one is meant, else the value itself.
    """
    if entry.type == "float":
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return value
        value = own_number(value)
        return float(value) if type(value) is int else value
    return own_integer(value) if entry.type == "int" else value


def check_counts(config: Any) -> None:
    """Refuse whole numbers that are too small or too large, or none.

    Parameters
    ----------
    config : PretrainConfig
        Settings that are being made.

    Raises
    ------
    ConfigError
        With the name, what it must be and what was given.
    """
    for entry in fields(config):
        if entry.type == "int":
            value = getattr(config, entry.name)
            check_integer(entry.name, value, least=LEAST.get(entry.name, 1))
            most = MOST.get(entry.name, USUAL_MOST)
            if value > most:
                raise ConfigError(f"{entry.name} must be at most {most}, got {value}.")


def check_words(config: Any) -> None:
    """Refuse words that no setting knows, and what is no word.

    Parameters
    ----------
    config : PretrainConfig
        Settings that are being made.

    Raises
    ------
    ConfigError
        With the name, what it must be and what was given.
    """
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.type == "str" and not isinstance(value, str):
            known = ", ".join(map(repr, WORDS.get(entry.name, ())))
            hint = " YAML reads on, off, yes and no so; quote a word." * isinstance(value, bool)
            raise ConfigError(f"{entry.name} must be {known or 'a word'}, got {value!r}.{hint}")
    for name, words in WORDS.items():
        value = getattr(config, name)
        if value not in words:
            raise ConfigError(
                f"{name} must be {', '.join(map(repr, words))}, got {value!r}."
                f"{close_to(str(value), words)}"
            )
    _check_together(config)


def _check_together(config: Any) -> None:
    if config.network == "half" and config.precision in ("fp32", "tf32"):
        raise ConfigError(
            f"network='half' needs precision='fp16' or 'bf16', got {config.precision!r}. "
            "Use network='auto', which leaves float32 alone."
        )
    if config.recompute != "none" and config.graphs == "steps":
        raise ConfigError(
            f"graphs='steps' needs recompute='none', got {config.recompute!r}. Layers that run "
            "again read the state of the random numbers, which a recording cannot: use "
            "graphs='auto'."
        )
    if config.recompute == "selective" and config.compile != "none":
        raise ConfigError(
            f"recompute='selective' needs compile='none', got {config.compile!r}. A compiled layer "
            "chooses by itself what it computes again: use recompute='none', or 'layers'."
        )


def check_ranges(config: Any) -> None:
    """Refuse numbers outside their range.

    Parameters
    ----------
    config : PretrainConfig
        Settings that are being made.

    Raises
    ------
    ConfigError
        With the name, what it must be and what was given.
    """
    for name, (low, high) in LIMITS.items():
        value = getattr(config, name)
        inside = type(value) is float and low <= value <= high
        if not inside or (name in OPEN_ABOVE and value == high):
            word = "below" if name in OPEN_ABOVE else "at most"
            raise ConfigError(
                f"{name} must be a number of at least {low:g} and {word} {high:g}, got {value!r}."
            )
