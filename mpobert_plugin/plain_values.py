"""Options in the plain form in which JSON gives them back: lists, tuples and Python's integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, SharingError
from mpobert_plugin.options import own_integer

if TYPE_CHECKING:
    from mpobert_plugin.sharing import Policies, Policy


def plain_policies(policies: Policies, argument: str) -> Policies:
    """Return sharing policies whose blocks are lists of Python's own integers.

    Parameters
    ----------
    policies : policy or mapping of str to policy
        What the user gave.
    argument : str
        Name of the option, for messages.

    Returns
    -------
    policy or dict of str to policy
        Whatever is no block stays as it is.

    Raises
    ------
    SharingError
        When a key of a mapping is no name.

    Examples
    --------
    >>> plain_policies({"query": [range(2), (2,)]}, "sharing")
    {'query': [[0, 1], [2]]}
    """
    if not isinstance(policies, Mapping):
        return _plain(policies)
    for role in policies:
        if not isinstance(role, str):
            raise SharingError(f"{argument} must name roles and their policies, got {role!r}.")
    return {role: _plain(policy) for role, policy in policies.items()}


def _plain(policy: Policy) -> Policy:
    if policy is None or isinstance(policy, str | bool) or not isinstance(policy, Sequence):
        return policy
    # Ranges and tuples become lists, as which JSON gives them back.
    blocks: list[Any] = list(policy)
    return [
        [own_integer(layer) for layer in block]
        if isinstance(block, Sequence) and not isinstance(block, str)
        else block
        for block in blocks
    ]


def plain_shapes(given: Any) -> Any:
    """Return factors as tuples of Python's own integers, and sizes among the keys as integers.

    Parameters
    ----------
    given : mapping, pair or None
        What the user gave, or what JSON gave back.

    Returns
    -------
    dict, tuple or None
        The same factors.

    Raises
    ------
    ConfigError
        When a key is neither a role nor a size, or a size has no tuple.

    Examples
    --------
    >>> plain_shapes({"768": [4, 4, 4, 4, 3]})
    {768: (4, 4, 4, 4, 3)}
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        shapes = {_key(key): _tuples(dims) for key, dims in given.items()}
        for key, dims in shapes.items():
            if isinstance(key, int) and not isinstance(dims, tuple):
                raise ConfigError(
                    f"shapes must give a tuple of factors for the size {key}, got {dims!r}."
                )
        return shapes
    return _tuples(given)


def _key(given: object) -> str | int:
    key = own_integer(given)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigError(f"shapes must have roles or sizes as keys, got {given!r}.")
    # JSON has only text as keys, so that a size comes back as text.
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _tuples(dims: Any) -> Any:
    if isinstance(dims, Sequence) and not isinstance(dims, str):
        return tuple(_tuples(entry) for entry in dims)
    return own_integer(dims)


def listed(dims: Any) -> Any:
    """Return tuples within tuples as lists, which JSON can hold.

    Parameters
    ----------
    dims : object
        Factors.

    Returns
    -------
    object
        What `plain_shapes` reads.

    Examples
    --------
    >>> listed(((2, 3), (4,)))
    [[2, 3], [4]]
    """
    return [listed(entry) for entry in dims] if isinstance(dims, tuple) else dims
