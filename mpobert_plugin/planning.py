"""Build the conversion plan of a model from its shapes and the configuration alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpobert_plugin.config import MPOConfig
from mpobert_plugin.errors import ConfigError, ConversionError, shorten
from mpobert_plugin.layouts import check_shape_keys, choose_layout
from mpobert_plugin.limits import check_limits
from mpobert_plugin.locate import (
    check_model,
    family_of,
    is_converted,
    layer_names,
    prefix_of,
    uses_of_layers,
)
from mpobert_plugin.norm_spec import BesideSpec, NormSpec
from mpobert_plugin.of_peft import CONVERT_BEFORE
from mpobert_plugin.outside import outside_paths
from mpobert_plugin.outside_specs import outside_matrices, outside_roles, outside_specs
from mpobert_plugin.parts import (
    beside_of,
    layers_of_role,
    linears_of,
    lists_of_layers,
    module_beside,
    norm_sizes,
    norms_of,
)
from mpobert_plugin.patterns import expand_targets
from mpobert_plugin.plan import MOST_LAYERS, ConversionPlan
from mpobert_plugin.policies import by_role, shares_anything
from mpobert_plugin.ranks import has_adapters, named_roles, rank_of
from mpobert_plugin.repeated import check_copies, check_repeated
from mpobert_plugin.role_keys import keyed_by_role
from mpobert_plugin.sharing import LayerMap, layer_map
from mpobert_plugin.spec import BankSpec
from mpobert_plugin.targets import named_targets, target_roles
from mpobert_plugin.ties import check_ties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.host_matrix import HostMatrix
    from mpobert_plugin.sharing import Policy


def make_plan(
    model: PreTrainedModel, config: MPOConfig, sources: LayerMap | None = None
) -> ConversionPlan:
    """Return the plan of a conversion; nothing of the model is read but names and shapes.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model of a known family.
    config : MPOConfig
        What is asked for.
    sources : tuple of int, optional
        Layer of the model that each layer of the result is copied from. By default layers stay
        where they are, and a model that repeats layers gets a module for each step as soon as
        `sharing` is given.

    Returns
    -------
    ConversionPlan
        Complete and validated.

    Raises
    ------
    ModelTypeError
        When the model is of no known family.
    ConfigError
        When `config` is no `MPOConfig`, or an option cannot be followed in this model.
    ConversionError
        When the model is converted already, or a layer cannot be replaced; its full name is told.
    TargetError
        When a target does not exist.
    SharingError
        When a policy does not fit the number of layers.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> make_plan(plain, mp.MPOConfig(n=3, sharing="all")).banks[0].central
    (0, 0)
    """
    check_model(model, CONVERT_BEFORE)
    if not isinstance(config, MPOConfig):
        raise ConfigError(
            f"config must be an MPOConfig, got {type(config).__name__}. Options such as "
            "sharing= and max_bond= are given by name."
        )
    if is_converted(model):
        raise ConversionError(
            f"model must be plain, got a {type(model).__name__} that is converted already. "
            "Convert the original model with all options at once."
        )
    names = layer_names(model)
    config = config.replace(
        targets=expand_targets(model, config.targets, "targets"),
        adapter_targets=expand_targets(model, config.adapter_targets, "adapter_targets"),
    )
    config = config.replace(**options_by_role(model, config))
    if sources is None and shares_anything(config.sharing) and family_of(model).repeats_layers:
        sources = uses_of_layers(model)
    n_layers = len(names) if sources is None else len(sources)
    if n_layers > MOST_LAYERS:
        raise ConversionError(
            f"model must have at most {MOST_LAYERS:,} layers, which is what a saved plan may "
            f"name, got {n_layers:,}. Nothing was changed."
        )
    if sources is not None:
        check_copies(model)
    lists = lists_of_layers(model) if sources is None else ()
    adapted = _adapted_roles(model, config)
    outside = _outside_specs(model, config, adapted)
    plan = ConversionPlan(
        family=family_of(model).name,
        n_layers=n_layers,
        banks=_bank_specs(model, config, sources, adapted),
        norms=_norm_specs(model, config, n_layers),
        beside=_beside_specs(model, config, adapted),
        sources=sources,
        gauge=config.gauge,
        fit=config.fit,
        outside=outside,
        lists=lists,
    )
    converted = [spec.role for spec in (*plan.banks, *plan.outside)]
    paths = _converted(model, config)
    check_limits("max_bond", config.max_bond, converted, paths.values())
    check_limits("rtol", config.rtol, converted, paths.values())
    check_ties(model, plan.roles())
    if sources is None:
        check_repeated(model, plan)
    return plan


def options_by_role(model: PreTrainedModel, config: MPOConfig) -> dict[str, Any]:
    """Return the limits, shapes and ranks of a configuration with roles as keys, not paths.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    config : MPOConfig
        What is asked for.

    Returns
    -------
    dict of str to object
        Options for ``config.replace``; what is not by role stays as it is.

    Raises
    ------
    ConfigError
        When an option names a role twice.
    TargetError
        When a target does not exist.
    """
    config = config.replace(targets=expand_targets(model, config.targets, "targets"))
    converted, ranked = _converted(model, config), _adaptable(model, config)
    options = {"max_bond": converted, "rtol": converted, "shapes": converted}
    return {
        name: keyed_by_role(getattr(config, name), paths, name)
        for name, paths in {**options, "adapter_rank": ranked}.items()
    }


def _converted(model: PreTrainedModel, config: MPOConfig) -> dict[str, str]:
    """Return the paths of the roles that are converted."""
    outside, family = outside_paths(model), family_of(model)
    roles = target_roles(family, config.targets, outside)
    named = outside_roles(model, config.targets)
    return {r: family.matrices[r] for r in roles} | {r: outside[r] for r in named}


def _adaptable(model: PreTrainedModel, config: MPOConfig) -> dict[str, str]:
    """Return the paths of the roles that can have an adapter."""
    family = family_of(model)
    roles = target_roles(family, config.targets, outside_paths(model))
    present = {r: path for r, path in family.beside.items() if module_beside(model, path)}
    return {**{role: family.matrices[role] for role in roles}, **present}


def _bank_specs(
    model: PreTrainedModel, config: MPOConfig, sources: LayerMap | None, adapted: Sequence[str]
) -> tuple[BankSpec, ...]:
    specs, total = [], len(layer_names(model))
    roles = target_roles(family_of(model), config.targets, outside_paths(model))
    targets = {role: linears_of(model, role) for role in roles}
    outside = outside_matrices(model, config.targets)
    check_shape_keys(config, {**targets, **{k: dict([named]) for k, named in outside.items()}})
    paths = {role: family_of(model).matrices[role] for role in targets}
    policies = by_role(config.sharing, paths, "sharing")
    biased = {role: paths[role] for role, linears in targets.items() if _has_bias(linears)}
    bias_policies = by_role(config.share_bias, biased, "share_bias")
    for role, linears in targets.items():
        layout = choose_layout(role, linears, config)
        numbers = layers_of_role(model, role)
        n_layers = len(numbers) if sources is None else len(sources)
        weights = [linear.parameter for linear in linears.values()]
        biases = [linear.bias for linear in linears.values()]
        policy = policies[role]
        central = _slices(policy, weights, n_layers, "sharing", role)
        own = tuple(range(n_layers))
        rank = _rank(next(iter(linears.items())), config, role) if role in adapted else 0
        specs.append(
            BankSpec(
                role=role,
                rows=layout.rows,
                cols=layout.cols,
                row_dims=layout.row_dims,
                col_dims=layout.col_dims,
                bond_dims=layout.structural_bonds(config.bond_of(role)),
                central=central,
                auxiliary=central if policy in (None, "albert") else own,
                bias=_slices(bias_policies[role], biases, n_layers, "share_bias", role)
                if role in biased
                else None,
                adapter_rank=rank,
                adapter_alpha=float(config.adapter_alpha or rank) if rank else 0.0,
                layers=None if len(numbers) == total else numbers,
            )
        )
    return tuple(specs)


def _outside_specs(
    model: PreTrainedModel, config: MPOConfig, adapted: Sequence[str]
) -> tuple[BankSpec, ...]:
    matrices = outside_matrices(model, config.targets)
    specs = []
    for spec in outside_specs(model, config, matrices):
        rank = _rank(matrices[spec.role], config, spec.role) if spec.role in adapted else 0
        alpha = float(config.adapter_alpha or rank)
        specs.append(replace(spec, adapter_rank=rank, adapter_alpha=alpha) if rank else spec)
    return tuple(specs)


def _beside_specs(
    model: PreTrainedModel, config: MPOConfig, adapted: Sequence[str]
) -> tuple[BesideSpec, ...]:
    specs = []
    # An adapter of a matrix that is converted lies in its bank.
    plain_roles = set(adapted) - set(outside_roles(model, config.targets))
    for role, path in family_of(model).beside.items():
        plain = beside_of(model, path) if role in plain_roles else None
        if plain is not None:
            rank = _rank((prefix_of(model) + path, plain), config, role)
            specs.append(BesideSpec(role, rank, float(config.adapter_alpha or rank)))
    return tuple(specs)


def _rank(named: tuple[str, nn.Linear | HostMatrix], config: MPOConfig, role: str) -> int:
    """Return the rank of an adapter after comparing it with the matrix that it adds to."""
    name, linear = named
    rank = rank_of(config.adapter_rank, role)
    full = min(linear.out_features, linear.in_features)
    if rank > full:
        raise ConfigError(
            f"adapter_rank must be at most {full} for {name} ({linear.out_features} x "
            f"{linear.in_features}), where that is a full matrix, got {rank}. Name "
            "larger matrices in adapter_targets, or lower the rank. Nothing was changed."
        )
    return rank


def _norm_specs(model: PreTrainedModel, config: MPOConfig, n_layers: int) -> tuple[NormSpec, ...]:
    specs = []
    family = family_of(model)
    if not family.norms and config.share_norm not in (None, False):
        raise ConfigError(
            f"share_norm needs norms that a bank can hold, got {config.share_norm!r} for the "
            f"family {family.name!r}, whose norms stay as they are. Leave it out, or describe the "
            "norms with mpobert_plugin.families.register_family. Nothing was changed."
        )
    policies = by_role(config.share_norm, family.norms, "share_norm")
    for role in family.norms:
        norms = norms_of(model, role)
        sizes = {name: norm_sizes(norm) for name, norm in norms.items()}
        _same(sizes, "size and eps of its norm")
        size, eps = next(iter(sizes.values()))
        weights = [norm._parameters["weight"] for norm in norms.values()]
        slices = _slices(policies[role], weights, n_layers, "share_norm", role)
        specs.append(NormSpec(role, size, eps, slices, family.norm_kind))
    return tuple(specs)


def _slices(
    policy: Policy, parameters: Sequence[object], n_layers: int, argument: str, role: str
) -> LayerMap:
    """Return the map of a policy; without one, layers that have one parameter keep sharing it."""
    if policy is not None or len(parameters) != n_layers:
        return layer_map(policy, n_layers, argument, role)
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(id(parameter), len(seen)) for parameter in parameters)


def _adapted_roles(model: PreTrainedModel, config: MPOConfig) -> list[str]:
    if not has_adapters(config.adapter_rank):
        return []
    family, available = family_of(model), _adaptable(model, config)
    check_limits("adapter_rank", config.adapter_rank, list(available), available.values())
    if config.adapter_targets is not None:
        return _ranked(named_targets(config.adapter_targets, available, "adapter_targets"), config)
    defaults = [role for role in family.adapter_defaults if role in available]
    asked = named_roles(config.adapter_rank, defaults)
    adapted = [role for role in available if role in asked]
    if not adapted:
        usual = f"the family {family.name!r} has none by default"
        if family.adapter_defaults:
            usual = f"by default these are {', '.join(family.adapter_defaults)}"
        raise ConfigError(
            f"adapter_rank={config.adapter_rank} needs a matrix that gets an adapter; {usual}, and "
            f"the model has and converts {shorten(available, 20)}. Name one: "
            f"adapter_targets={[next(iter(available))]}."
        )
    return adapted


def _ranked(roles: list[str], config: MPOConfig) -> list[str]:
    """Refuse targets of adapters to which ranks by role give none."""
    for role in roles:
        if not rank_of(config.adapter_rank, role):
            raise ConfigError(
                f"adapter_rank must give a rank >= 1 for every role of adapter_targets, got "
                f"{config.adapter_rank!r} and {role!r}. Nothing was changed."
            )
    return roles


def _has_bias(linears: Mapping[str, HostMatrix]) -> bool:
    _same({name: linear.bias is not None for name, linear in linears.items()}, "bias")
    return next(iter(linears.values())).bias is not None


def _same(values: Mapping[str, object], what: str) -> None:
    first_name, first = next(iter(values.items()))
    for name, value in values.items():
        if value != first:
            raise ConversionError(
                f"every layer must have the same {what}, got {first} for {first_name} and "
                f"{value} for {name}."
            )
