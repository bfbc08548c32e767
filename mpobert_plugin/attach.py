"""Give a model the banks of a plan and readers in its layers, and its config the plan."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.attach_outside import attach_outside, outside_banks, outside_path
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.checkpointing import allow_checkpointing
from mpobert_plugin.guard import install_guard
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.locate import BANKS, base_of, family_of, layer_names, owners_of
from mpobert_plugin.norm import MPOLayerNorm, MPONormBank, MPORMSNorm
from mpobert_plugin.noted import note
from mpobert_plugin.parts import beside_of
from mpobert_plugin.placement import keep_banks_whole
from mpobert_plugin.runtime import Banks, install_hooks
from mpobert_plugin.stacked import StackedBank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.families import Family
    from mpobert_plugin.norm_spec import NormSpec
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.spec import BankSpec


def make_banks(
    plan: ConversionPlan,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, StackedBank]:
    """Return uninitialized banks of a plan by name.

    Parameters
    ----------
    plan : ConversionPlan
        Sizes and layer maps.
    device, dtype : optional
        Where and in which element type the tensors are made.

    Returns
    -------
    dict of str to StackedBank
        In the order of the plan: matrices, then norms, then matrices outside the layers.
    """
    banks: dict[str, StackedBank] = {s.name: MPOBank(s, device, dtype) for s in plan.banks}
    banks |= {s.name: MPONormBank(s, device, dtype) for s in plan.norms}
    return {**banks, **outside_banks(plan, device, dtype)}


def attach(model: PreTrainedModel, plan: ConversionPlan, banks: Banks) -> None:
    """Replace what the plan names by readers of the banks; the model is changed in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model that has the layers of the plan.
    plan : ConversionPlan
        A plan made for this model or for its configuration.
    banks : Banks
        Banks of the plan.
    """
    base, family = base_of(model), family_of(model)
    names = layer_names(model)
    banks.family = family
    for layer, name in enumerate(names):
        for role, reader in _readers(banks, plan, layer).items():
            path = f"{name}.{family.matrices.get(role) or family.norms[role]}"
            reader.train(base.get_submodule(path).training)
            _put(base, path, reader)
    for spec in plan.beside:
        path = family.beside[spec.role]
        plain = beside_of(model, path)
        if plain is not None:
            _put(base, path, AdaptedLinear.beside(plain, spec.rank, spec.alpha))
    attach_outside(model, plan, banks)
    banks.train(base.training)
    base.add_module(BANKS, banks)
    install_hooks(base)
    keep_banks_whole(model)
    allow_checkpointing(owners_of(model), [base.get_submodule(name) for name in names])


def finish(model: PreTrainedModel, plan: ConversionPlan) -> None:
    """Add what must not be there while tensors are loaded: the guard against plain loading.

    Tensors and configuration are noted, so that saving knows a model that is as it was.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model with banks.
    plan : ConversionPlan
        Its plan.
    """
    banks = base_of(model)._modules[BANKS]
    if isinstance(banks, Banks):
        banks.as_attached = note(model)
    install_guard(base_of(model), guard_keys(model, plan))


def guard_keys(model: PreTrainedModel, plan: ConversionPlan) -> tuple[str, ...]:
    """Return the names under which the guard puts its markers, seen from the base model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model with banks.
    plan : ConversionPlan
        Its plan.

    Returns
    -------
    tuple of str
        Names of weights that the plain architecture has and the converted one has not: one for
        each list of layers with a bank, so that no tower can be loaded without this library.
    """
    if plan.outside and not plan.banks:
        return (f"{outside_path(model, plan.outside[0].role)}.weight",)
    # With no bank at all, such as under a budget for the whole model, the norms have moved.
    of_list: dict[range, BankSpec | NormSpec] = {}
    for spec in plan.banks or plan.norms:
        of_list.setdefault(plan.numbers_beside(spec.layer_numbers[0]), spec)
    names, family = layer_names(model), family_of(model)
    paths = {**family.matrices, **family.norms}
    first = of_list.values()
    return tuple(f"{names[spec.layer_numbers[0]]}.{paths[spec.role]}.weight" for spec in first)


def _readers(banks: Banks, plan: ConversionPlan, layer: int) -> dict[str, nn.Module]:
    readers: dict[str, nn.Module] = {}
    for spec in plan.of_layer(layer):
        bank = banks[spec.name]
        if isinstance(bank, MPOBank):
            readers[spec.role] = MPOLinear(bank, layer)
        elif isinstance(bank, MPONormBank):
            kind = MPORMSNorm if bank.spec.kind == "rms" else MPOLayerNorm
            readers[spec.role] = kind(bank, layer)
    return readers


def _put(base: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(base.get_submodule(parent), name, module)


def own_config(model: PreTrainedModel) -> None:
    """Give a model a configuration of its own, since conversion changes it.

    Other models made from the same configuration object would otherwise change with it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model, changed in place.
    """
    # Parts of a model may have parts of its configuration, which are copied with it.
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = vars(module).get("config")
        if config is not None and id(config) in copies:
            module.config = copies[id(config)]


def expand_layers(model: PreTrainedModel, plan: ConversionPlan) -> None:
    """Give a model that repeats its layers one module for each layer of the plan, in place.

    The copies refer to the original parameters of what the plan replaces, so that no matrix is
    copied only to be thrown away.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        An ALBERT.
    plan : ConversionPlan
        Its `sources` say which layer each one is copied from.
    """
    if plan.sources is None:
        return
    base, family, config = base_of(model), family_of(model), model.config
    names = layer_names(model)
    groups = [
        _single_group(base, names[source], family, [spec.role for spec in plan.of_layer(layer)])
        for layer, source in enumerate(plan.sources)
    ]
    container = names[0].rsplit(".", 3)[0]
    config.num_hidden_layers = config.num_hidden_groups = plan.n_layers
    config.inner_group_num = 1
    encoder = base.get_submodule(container.rpartition(".")[0]) if "." in container else base
    setattr(encoder, container.rpartition(".")[2], nn.ModuleList(groups))


def _single_group(base: nn.Module, name: str, family: Family, roles: Sequence[str]) -> nn.Module:
    group_name, inner_name, _ = name.rsplit(".", 2)
    group, layer = base.get_submodule(group_name), base.get_submodule(name)
    # The configuration stays one object, so that settings made on the model reach every layer.
    memo: dict[int, object] = {id(base.config): base.config}
    for role in roles:
        path = family.matrices.get(role) or family.norms[role]
        memo |= {id(tensor): tensor for tensor in layer.get_submodule(path).parameters()}
    own = copy.deepcopy(layer, memo)
    inner = group.get_submodule(inner_name)
    return copy.deepcopy(group, {id(base.config): base.config, id(inner): nn.ModuleList([own])})
