"""Limits that are one number for all matrices, or one for each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, close_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OTHERS = "*"


def of_roles(given: Any, own: Callable[[Any], Any]) -> Any:
    """Return a limit with Python's own numbers, for all matrices or by role.

    Parameters
    ----------
    given : object
        Whatever the user gave.
    own : callable
        Makes a number of another library one of Python's.

    Returns
    -------
    object
        A number, a dict, or the value itself.

    Examples
    --------
    >>> of_roles({"embedding": 4}, int)
    {'embedding': 4}
    """
    if isinstance(given, Mapping):
        return {role: own(value) for role, value in given.items()}
    return own(given)


def named_limits(argument: str, limit: Any) -> dict[str, Any]:
    """Return every number of a limit, with the words that name it in a message.

    Parameters
    ----------
    argument : str
        Name of the option.
    limit : number, dict or None
        Its value.

    Returns
    -------
    dict of str to object
        None without a limit.

    Raises
    ------
    ConfigError
        When a mapping is empty or has a key that is no text.

    Examples
    --------
    >>> named_limits("max_bond", {"embedding": 4}), named_limits("rtol", 0.5)
    ({"max_bond['embedding']": 4}, {'rtol': 0.5})
    """
    if limit is None:
        return {}
    if not isinstance(limit, dict):
        return {argument: limit}
    if not limit or not all(isinstance(role, str) for role in limit):
        raise ConfigError(f"{argument} must name roles and their limits, got {limit!r}.")
    return {f"{argument}[{role!r}]": value for role, value in limit.items()}


def limit_of(limit: Any, role: str) -> Any:
    """Return the limit for one role.

    Parameters
    ----------
    limit : number, dict or None
        Value of the option.
    role : str
        Name of the role.

    Returns
    -------
    number or None
        None without a limit.

    Examples
    --------
    >>> limit_of({"embedding": 4, "*": 8}, "query"), limit_of(3, "query")
    (8, 3)
    """
    return limit.get(role, limit.get(OTHERS)) if isinstance(limit, dict) else limit


def check_limits(
    argument: str, limit: Any, roles: Sequence[str], paths: Iterable[str] = ()
) -> None:
    """Refuse a limit for a role that a conversion does not have.

    Parameters
    ----------
    argument : str
        Name of the option.
    limit : number, dict or None
        Its value.
    roles : sequence of str
        Roles of the matrices that are converted.
    paths : iterable of str
        Their paths inside a layer, which may have been meant.

    Raises
    ------
    ConfigError
        When a role is named that is none of these; close names are told.

    Examples
    --------
    >>> check_limits("max_bond", {"query": 4, "*": 8}, ["query", "key"])
    """
    for role in limit if isinstance(limit, dict) else ():
        if role not in (*roles, OTHERS):
            raise ConfigError(
                f"{argument} must name roles that are converted ({', '.join(roles)}) or "
                f"{OTHERS!r}, got {role!r}.{close_to(role, [*roles, *paths])} Nothing was changed."
            )
