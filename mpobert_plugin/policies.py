"""Policies of several roles: one for all, one for each, or a function; resolved to blocks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import SharingError, TargetError, close_to
from mpobert_plugin.limits import OTHERS
from mpobert_plugin.role_keys import keyed_by_role
from mpobert_plugin.sharing import LayerMap, members

if TYPE_CHECKING:
    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.sharing import Policies, Policy

OPTIONS = ("sharing", "share_bias", "share_norm")


def by_role(policies: Policies, roles: Mapping[str, str], argument: str) -> dict[str, Policy]:
    """Return the policy of each role.

    Parameters
    ----------
    policies : policy or mapping of str to policy
        One policy for all roles, or one for each that is named; others have that of ``"*"``, or
        None.
    roles : mapping of str to str
        Roles that can have one, and their paths inside a layer, which name them too.
    argument : str
        Name of the option, for messages.

    Returns
    -------
    dict of str to policy
        An entry for each role.

    Raises
    ------
    SharingError
        When a mapping names nothing, or a role twice.
    TargetError
        When it names a role that is not there; close names are told.

    Examples
    --------
    >>> by_role({"query": "all"}, {"query": "self.query", "key": "self.key"}, "sharing")
    {'query': 'all', 'key': None}
    """
    if not isinstance(policies, Mapping):
        return dict.fromkeys(roles, policies)
    if not policies:
        raise SharingError(f"{argument} must name the policy of at least one role, got {{}}.")
    named = keyed_by_role(dict(policies), roles, argument, SharingError)
    for name in named:
        if name not in (*roles, OTHERS):
            raise TargetError(
                f"{argument} must name roles that this conversion has ({', '.join(roles)}) or "
                f"{OTHERS!r}, got {name!r}.{close_to(str(name), [*roles, *roles.values()])}"
            )
    return {role: named.get(role, named.get(OTHERS)) for role in roles}


def shares_anything(policies: Policies) -> bool:
    """Return whether a policy was given for any role.

    Parameters
    ----------
    policies : policy or mapping of str to policy
        Value of an option.

    Returns
    -------
    bool
        False for None and for mappings to None.

    Examples
    --------
    >>> shares_anything({"query": None}), shares_anything("none")
    (False, True)
    """
    if isinstance(policies, Mapping):
        return any(policy is not None for policy in policies.values())
    return policies is not None


def settled(config: MPOConfig, plan: ConversionPlan, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that hold functions, with the blocks of a plan in their place.

    Parameters
    ----------
    config : MPOConfig
        What was asked for.
    plan : ConversionPlan
        What came of it.
    paths : mapping of str to str
        Path of each role inside a layer.

    Returns
    -------
    dict
        Options for ``config.replace``, as values that JSON can hold.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> even = mp.MPOConfig(sharing=lambda layer, role: layer % 2)
    >>> model = mp.build("mpobert-12", head="none", device="meta", num_layers=4)
    >>> plan = model.base_model.mpo.plan
    >>> settled(even, plan, mp.families.ALBERT.matrices)
    {'sharing': [[0, 1, 2, 3]]}
    """
    found: dict[str, Any] = {}
    for option in OPTIONS:
        policies = getattr(config, option)
        given = policies if isinstance(policies, Mapping) else {None: policies}
        if not any(callable(policy) for policy in given.values()):
            continue
        blocks = {role: members(slices) for role, slices in _maps(plan, option).items()}
        if isinstance(policies, Mapping):
            own = by_role(policies, {role: paths[role] for role in blocks}, option)
            found[option] = {
                role: blocks[role] if callable(policy) else policy for role, policy in own.items()
            }
        else:
            same = all(value == next(iter(blocks.values())) for value in blocks.values())
            found[option] = next(iter(blocks.values())) if blocks and same else blocks
    return found


def _maps(plan: ConversionPlan, option: str) -> dict[str, LayerMap]:
    """Return the slices that the layers use, by role."""
    if option == "share_norm":
        return {spec.role: spec.slices for spec in plan.norms}
    if option == "sharing":
        return _of_banks(plan, {spec.name: spec.central for spec in plan.banks})
    biases = {spec.name: spec.bias for spec in plan.banks if spec.bias is not None}
    return _of_banks(plan, biases)


def _of_banks(plan: ConversionPlan, maps: Mapping[str, LayerMap]) -> dict[str, LayerMap]:
    """Join the maps of the banks of each role; a layer without a bank shares with none."""
    joined: dict[str, LayerMap] = {}
    # Policies count the layers of a list of layers from 0.
    for role in dict.fromkeys(spec.role for spec in plan.banks if spec.name in maps):
        banks = plan.banks_of_role(role)
        numbers = plan.numbers_beside(banks[0].layer_numbers[0])
        keys: dict[int, Hashable] = {layer: layer for layer in numbers}
        for spec in banks:
            slices = zip(spec.layer_numbers, maps[spec.name], strict=True)
            keys |= {layer: (spec.name, piece) for layer, piece in slices}
        number_of: dict[Hashable, int] = {}
        joined[role] = tuple(number_of.setdefault(keys[layer], len(number_of)) for layer in numbers)
    return joined
