"""What names roles: the role, a path inside a layer for all roles at it, and * for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def roles_at(paths: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the roles that each name means: a role itself, a path all roles that have it.

    Parameters
    ----------
    paths : mapping of str to str
        Path of each role inside a layer.

    Returns
    -------
    dict of str to list of str
        Roles by name.

    Examples
    --------
    >>> roles_at({"encoder__fc1": "fc1", "decoder__fc1": "fc1"})["fc1"]
    ['encoder__fc1', 'decoder__fc1']
    """
    # Layers of several lists may have different roles at one path.
    found: dict[str, list[str]] = {}
    for role, path in paths.items():
        found.setdefault(path, []).append(role)
    return found | {role: [role] for role in paths}


def keyed_by_role(
    given: Any,
    paths: Mapping[str, str],
    argument: str,
    error: type[Exception] = ConfigError,
) -> Any:
    """Return an option by role with roles as keys where it has paths.

    Parameters
    ----------
    given : object
        Value of the option; one that is no dict stays as it is.
    paths : mapping of str to str
        Roles that the option can be for, and their paths.
    argument : str
        Name of the option, for messages.
    error : type
        Class of the error.

    Returns
    -------
    object
        Other keys, such as ``"*"``, sizes and unknown names, stay as they are.

    Raises
    ------
    error
        When a role is named twice.

    Examples
    --------
    >>> keyed_by_role({"fc1": 2, "*": 4}, {"encoder__fc1": "fc1", "key": "k"}, "max_bond")
    {'encoder__fc1': 2, '*': 4}
    """
    if not isinstance(given, dict):
        return given
    roles, found = roles_at(paths), {}
    for name, value in given.items():
        for key in roles.get(name, [name]):
            if key in found:
                raise error(f"{argument} must name each role once, got {key!r} twice.")
            found[key] = value
    return found
