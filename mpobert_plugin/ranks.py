"""Ranks of adapters: one for all adapted matrices, or one for each role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.limits import OTHERS, limit_of, named_limits
from mpobert_plugin.options import check_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def check_adapters(fields: Mapping[str, Any]) -> None:
    """Refuse impossible ranks, and options of adapters where there are none.

    Parameters
    ----------
    fields : mapping
        Options by name.

    Raises
    ------
    ConfigError
        When a rank is no integer >= 0, or an option needs adapters that are not asked for.

    Examples
    --------
    >>> check_adapters({"adapter_rank": {"query": 8, "ffn_in": 2}, "adapter_alpha": 4.0})
    """
    rank = fields["adapter_rank"]
    for name, value in named_limits("adapter_rank", rank).items():
        check_integer(name, value, least=0)
    if rank is None:
        check_integer("adapter_rank", rank, least=0)
    if has_adapters(rank):
        return
    alpha, fit = fields.get("adapter_alpha"), fields.get("adapter_fit")
    if fit is not None:
        raise ConfigError(
            f"adapter_fit needs adapter_rank >= 1, got adapter_fit {fit!r} and adapter_rank 0."
        )
    if fields.get("adapter_targets") is not None:
        raise ConfigError("adapter_targets needs adapter_rank >= 1, got adapter_rank 0.")
    if alpha is not None:
        raise ConfigError(
            f"adapter_alpha needs adapter_rank >= 1, got adapter_alpha {alpha!r} and "
            "adapter_rank 0."
        )


def has_adapters(rank: Any) -> bool:
    """Return whether a rank, or one of several, is above 0.

    Parameters
    ----------
    rank : int or dict
        Value of the option ``adapter_rank``.

    Returns
    -------
    bool
        False for 0 alone.

    Examples
    --------
    >>> has_adapters(0), has_adapters({"query": 0, "key": 2})
    (False, True)
    """
    return any(rank.values()) if isinstance(rank, dict) else bool(rank)


def rank_of(rank: Any, role: str) -> int:
    """Return the rank of the adapters of one role.

    Parameters
    ----------
    rank : int or dict
        Value of the option ``adapter_rank``.
    role : str
        Name of the role.

    Returns
    -------
    int
        0 without an adapter.

    Examples
    --------
    >>> rank_of({"query": 8, "*": 2}, "key"), rank_of({"query": 8}, "key"), rank_of(4, "key")
    (2, 0, 4)
    """
    return int(limit_of(rank, role) or 0)


def named_roles(rank: Any, defaults: Sequence[str]) -> list[str]:
    """Return the roles that get an adapter where no targets are named.

    Parameters
    ----------
    rank : int or dict
        Value of the option ``adapter_rank``; a dict names the roles itself.
    defaults : sequence of str
        Roles that get one otherwise.

    Returns
    -------
    list of str
        Roles with a rank above 0.

    Examples
    --------
    >>> named_roles({"ffn_in": 4}, ["query"]), named_roles({"ffn_in": 4, "*": 2}, ["query"])
    (['ffn_in'], ['query', 'ffn_in'])
    """
    if not isinstance(rank, dict):
        return list(defaults)
    others = defaults if OTHERS in rank else ()
    roles = dict.fromkeys([*others, *(role for role in rank if role != OTHERS)])
    return [role for role in roles if rank_of(rank, role)]
