"""Look at the fields of a config.json before transformers makes a configuration of them."""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from mpobert_plugin.config import METHOD
from mpobert_plugin.errors import CheckpointError

# Configurations make a name for each label, and for each layer the type that it has.
MOST = 100_000
_MARK = "_looks_at_fields"
_LABELS = ("id2label", "label2id")
# What is no size may be negative, and mean "none" or a place from the end.
_SIZE = re.compile(
    r"(^|_)(hidden_size|vocab_size|embedding_size|intermediate_size|position_embeddings|heads?"
    r"|d_model|n_embd|n_positions|n_inner|hidden_dim|ffn_dim|head_dim)$|^dim$"
)
_LISTED = re.compile(r"(^|_)(layers?|blocks?|groups?|depths?|experts?|types)$")


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields of which a configuration would make lists that no file holds, or nothing.

    Later checks compare layers and tensors with the plan and with the files, but a configuration
    from a stranger may fill the memory before it is one.

    Parameters
    ----------
    fields : mapping of str to object
        What a config.json says; those of plain models pass.

    Raises
    ------
    CheckpointError
        When labels or layers are far more than any model has, and not listed one by one; when
        labels, sizes or the quantization are of a kind that no configuration takes.

    Examples
    --------
    >>> check_fields({"num_labels": 3, "quantization_config": {"quant_method": "mpo"}})
    """
    quantized = fields.get("quantization_config")
    _check_quantization(quantized)
    if not isinstance(quantized, Mapping) or quantized.get("quant_method") != METHOD:
        return
    for name, number, listed in _numbers(fields):
        if number > max(MOST, listed):
            raise CheckpointError(
                f"{name} of config.json must be at most {MOST:,}, or as many as are listed there, "
                f"got {number:,}. Use the config.json that save_pretrained wrote, which lists "
                "labels in id2label."
            )
    for name, value in _fields(fields):
        _check_kind(name, value)


def _check_quantization(quantized: object) -> None:
    """Refuse what is no quantization of any library; whose it is, nobody knows then."""
    where, given, wanted = "quantization_config", quantized, "an object of fields"
    if isinstance(quantized, Mapping):
        where, given = f"{where}.quant_method", quantized.get("quant_method", METHOD)
        wanted = f"a word, such as {METHOD!r}"
        wrong = isinstance(given, list | Mapping)
    else:
        wrong = isinstance(quantized, list | str | int | float)
    if wrong:
        raise _refused(where, wanted, given)


def _check_kind(name: str, value: object) -> None:
    """Refuse labels and sizes of which a configuration or a model would fail in other words."""
    own = name.rpartition(".")[2]
    if own == "num_labels" and (type(value) is not int or value < 0):
        raise _refused(name, "a whole number of at least 0", value)
    if own == "id2label" and value is not None:
        if not isinstance(value, Mapping):
            raise _refused(name, "an object that maps numbers to labels", value)
        wrong = [key for key in value if not _is_number(key)]
        if wrong:
            raise _refused(name, "an object that maps numbers to labels", wrong[0])
    if _SIZE.search(own) and type(value) in (int, float) and value < 0:  # type: ignore[operator]
        raise _refused(name, "at least 0", value)


def _is_number(key: object) -> bool:
    return type(key) is int or (isinstance(key, str) and re.fullmatch(r"\d{1,9}", key) is not None)


def _refused(name: str, wanted: str, given: object) -> CheckpointError:
    return CheckpointError(
        f"{name} of config.json must be {wanted}, got {reprlib.repr(given)}. Use the config.json"
        " that save_pretrained wrote."
    )


def _fields(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield fields of all parts by their full names; labels and plan may have any names inside."""
    for name, value in fields.items():
        yield prefix + name, value
        if isinstance(value, Mapping) and name not in ("quantization_config", *_LABELS):
            yield from _fields(value, f"{prefix}{name}.")


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield what lists are made by, with the number of their items that are there."""
    labels = fields.get("id2label")
    for name, value in fields.items():
        if isinstance(value, Mapping):
            # The plan has checks of its own.
            if name != "quantization_config":
                yield from _numbers(value, f"{prefix}{name}.")
        elif name == "num_labels" and type(value) is int:
            yield prefix + name, value, len(labels) if isinstance(labels, Mapping | list) else 0
        elif _LISTED.search(name):
            yield from ((prefix + name, number, 0) for number in _within(value))


def _within(value: object) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _within(item)


def look_before_configuring() -> None:
    """Let transformers show what a config.json says before it is used; twice does nothing."""
    if hasattr(PretrainedConfig.get_config_dict, _MARK):
        return
    read: Any = PretrainedConfig.get_config_dict.__func__  # type: ignore[attr-defined, unused-ignore]

    @functools.wraps(read)
    def looked(cls: type[PretrainedConfig], *args: Any, **kwargs: Any) -> Any:
        found = read(cls, *args, **kwargs)
        check_fields(found[0])
        return found

    setattr(looked, _MARK, True)
    PretrainedConfig.get_config_dict = classmethod(looked)  # type: ignore[method-assign, assignment, unused-ignore]
