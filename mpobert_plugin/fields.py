"""Read the fields of a stored plan; a file may be damaged or made to harm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mpobert_plugin.errors import CheckpointError, SharingError
from mpobert_plugin.sharing import LayerMap, decode, decode_some

Fields: TypeAlias = Mapping[str, Any]
# No size of a model comes near it, and torch cannot make a tensor beyond 2**63 elements.
LARGEST = 2**31 - 1


def words(sizes: tuple[int, ...]) -> str:
    """Return sizes as a text that stays on one line of a JSON file.

    Parameters
    ----------
    sizes : tuple of int
        Sizes.

    Returns
    -------
    str
        What `counts` reads.

    Examples
    --------
    >>> words((4, 4, 3))
    '4 4 3'
    """
    return " ".join(str(size) for size in sizes)


def check_names(fields: Fields, needed: Sequence[str], optional: Sequence[str], where: str) -> None:
    """Refuse fields that are missing or that nobody reads.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    needed, optional : sequence of str
        Names that must be there, and names that may be.
    where : str
        What the fields describe, for the message.

    Raises
    ------
    CheckpointError
        When a name is missing or unknown.

    Examples
    --------
    >>> check_names({"size": 3}, ["size"], ["eps"], "norm")
    """
    missing = [name for name in needed if name not in fields]
    if missing:
        raise CheckpointError(f"{where} must have the field {missing[0]!r}, got {sorted(fields)}.")
    unknown = [name for name in fields if name not in (*needed, *optional)]
    if unknown:
        raise CheckpointError(
            f"{where} must have no other fields than {', '.join((*needed, *optional))}, got "
            f"{unknown[0]!r}."
        )


def word(fields: Fields, name: str, where: str, known: Sequence[str] | None = None) -> str:
    """Return a field that must be a text.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.
    known : sequence of str, optional
        Texts that are allowed; any when None.

    Returns
    -------
    str
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing, no text or unknown.
    """
    value = field(fields, name, where)
    if not isinstance(value, str):
        raise CheckpointError(f"{name} of {where} must be a text, got {value!r}.")
    if known is not None and value not in known:
        raise CheckpointError(
            f"{name} of {where} must be one of {', '.join(known)}, got {value!r}."
        )
    return value


def layer_slices(
    fields: Fields, name: str, where: str, n_layers: int, gaps: bool = False
) -> LayerMap:
    """Return a field that must be a layer map in the words of `sharing.encode`.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.
    n_layers : int
        Number of layers that the map must have.
    gaps : bool
        Whether slices may be missing.

    Returns
    -------
    tuple of int
        Slice of each layer.

    Raises
    ------
    CheckpointError
        When it is missing or no such map.
    """
    text = word(fields, name, where)
    try:
        return decode(text, n_layers, gaps)
    except SharingError as error:
        raise CheckpointError(f"{name} of {where} is damaged: {error}") from error


def some_layers(fields: Fields, name: str, where: str, n_layers: int) -> LayerMap | None:
    """Return a field that may name some of the layers, in the words of `sharing.encode`.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.
    n_layers : int
        Number of layers of the model.

    Returns
    -------
    tuple of int or None
        Layer numbers in ascending order; None for all of them.

    Raises
    ------
    CheckpointError
        When it is there and no such text.

    Examples
    --------
    >>> some_layers({"layers": "1-2"}, "layers", "bank", 4)
    (1, 2)
    """
    if name not in fields:
        return None
    try:
        layers = decode_some(word(fields, name, where), n_layers)
    except SharingError as error:
        raise CheckpointError(f"{name} of {where} is damaged: {error}") from error
    return None if len(layers) == n_layers else layers


def field(fields: Fields, name: str, where: str) -> object:
    """Return a field that must be there.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.

    Returns
    -------
    object
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing.
    """
    if name not in fields:
        raise CheckpointError(f"{where} must have the field {name!r}, got {sorted(fields)}.")
    value: object = fields[name]
    return value


def count(fields: Fields, name: str, where: str, least: int = 1, most: int = LARGEST) -> int:
    """Return a field that must be an integer.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.
    least, most : int
        Smallest and largest value allowed.

    Returns
    -------
    int
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing, no integer, too small or too large.
    """
    value = field(fields, name, where)
    if type(value) is not int or not least <= value <= most:
        raise CheckpointError(
            f"{name} of {where} must be an integer from {least} to {most}, got {value!r}."
        )
    return value


def number(fields: Fields, name: str, where: str) -> float:
    """Return a field that must be a finite number and not negative.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.

    Returns
    -------
    float
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing or something else.
    """
    value = field(fields, name, where)
    if not _is_size(value):
        raise CheckpointError(f"{name} of {where} must be a finite number >= 0, got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def positive(fields: Fields, name: str, where: str) -> float:
    """Return a field that must be a finite number above 0.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.

    Returns
    -------
    float
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing or something else.
    """
    value = number(fields, name, where)
    if value == 0:
        raise CheckpointError(f"{name} of {where} must be a number above 0, got {value!r}.")
    return value


def _is_size(value: object) -> bool:
    right = isinstance(value, int | float) and not isinstance(value, bool)
    return right and 0 <= value <= LARGEST and math.isfinite(value)  # type: ignore[operator, arg-type]


def counts(fields: Fields, name: str, where: str) -> tuple[int, ...]:
    """Return a field of positive integers that `words` wrote.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.

    Returns
    -------
    tuple of int
        At least one.

    Raises
    ------
    CheckpointError
        When it is missing or holds something else.
    """
    text = field(fields, name, where)
    parts = text.split() if isinstance(text, str) else []
    # Longer ones are out of bounds, and Python may refuse to read them.
    right = all(part.isdecimal() and len(part) <= len(str(LARGEST)) for part in parts)
    sizes = tuple(int(part) for part in parts) if right else ()
    if not sizes or not all(1 <= size <= LARGEST for size in sizes):
        raise CheckpointError(
            f"{name} of {where} must be integers from 1 to {LARGEST} in one text, got {text!r}."
        )
    return sizes


def measures(fields: Fields, name: str, where: str, n_layers: int) -> tuple[float, ...]:
    """Return a field that must be one number for all layers, or a list with one for each.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field, such as 'errors'.
    where : str
        What the fields describe, for the message.
    n_layers : int
        Number of layers.

    Returns
    -------
    tuple of float
        One for each layer, or none when the field is missing.

    Raises
    ------
    CheckpointError
        When there are too many or too few, or one is no number.

    Examples
    --------
    >>> measures({"errors": 0.5}, "errors", "bank", 3)
    (0.5, 0.5, 0.5)
    """
    given = fields.get(name, ())
    values = [given] * n_layers if _is_size(given) else given
    if not isinstance(values, list | tuple) or len(values) not in (0, n_layers):
        raise CheckpointError(f"{name} of {where} must be {n_layers} numbers, got {given!r}.")
    if not all(_is_size(value) for value in values):
        raise CheckpointError(f"{name} of {where} must be finite numbers >= 0, got {given!r}.")
    return tuple(float(value) for value in values)
