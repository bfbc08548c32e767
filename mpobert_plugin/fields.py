"""Read the fields of a stored plan; a file may be damaged or made to harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mpobert_plugin.errors import CheckpointError

Fields: TypeAlias = Mapping[str, Any]


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


def count(fields: Fields, name: str, where: str, least: int = 1) -> int:
    """Return a field that must be an integer.

    Parameters
    ----------
    fields : mapping
        Fields by name.
    name : str
        Name of the field.
    where : str
        What the fields describe, for the message.
    least : int
        Smallest value allowed.

    Returns
    -------
    int
        Its value.

    Raises
    ------
    CheckpointError
        When it is missing, no integer or too small.
    """
    value = field(fields, name, where)
    if type(value) is not int or value < least:
        raise CheckpointError(f"{name} of {where} must be an integer >= {least}, got {value!r}.")
    return value


def number(fields: Fields, name: str, where: str) -> float:
    """Return a field that must be a number.

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
        When it is missing or no number.
    """
    value = field(fields, name, where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{name} of {where} must be a number, got {value!r}.")
    return float(value)


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
    parts = str(field(fields, name, where)).split()
    if not parts or not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise CheckpointError(
            f"{name} of {where} must be positive integers, got {' '.join(parts)!r}."
        )
    return tuple(int(part) for part in parts)


def errors_of(given: object, n_layers: int, where: str) -> tuple[float, ...]:
    """Return the error of each layer from one number for all or a list.

    Parameters
    ----------
    given : float, sequence of float
        What the file has.
    n_layers : int
        Number of layers.
    where : str
        What the errors belong to, for the message.

    Returns
    -------
    tuple of float
        One for each layer, or none.

    Raises
    ------
    CheckpointError
        When there are too many or too few, or one is no number.
    """
    values = [given] * n_layers if isinstance(given, int | float) else given
    if not isinstance(values, list | tuple) or len(values) not in (0, n_layers):
        raise CheckpointError(f"errors of {where} must be {n_layers} numbers, got {given!r}.")
    if not all(isinstance(value, int | float) for value in values):
        raise CheckpointError(f"errors of {where} must be numbers, got {given!r}.")
    return tuple(float(value) for value in values)
