"""Layers that are copied, or that are one module under several names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.locate import base_of, family_of, layer_names, prefix_of
from mpobert_plugin.plain import check_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.sharing import LayerMap


def check_copies(model: PreTrainedModel) -> None:
    """Refuse to copy layers whose forward belongs to the object that it was put on.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model whose layers are to be copied.

    Raises
    ------
    ConversionError
        When a module of a layer has a forward of its own; its full name is told.
    """
    for name in layer_names(model):
        for inner, module in base_of(model).get_submodule(name).named_modules():
            check_forward(f"{prefix_of(model)}{name}.{inner}".rstrip("."), module)


def check_repeated(model: PreTrainedModel, plan: ConversionPlan) -> None:
    """Refuse what a module that stands for several layers cannot do: differ between them.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        A plan that leaves its layers where they are.

    Raises
    ------
    ConversionError
        When such layers were to read different slices; both names are told.
    """
    base, family, prefix = base_of(model), family_of(model), prefix_of(model)
    names = layer_names(model)
    for role in plan.roles():
        path = family.matrices.get(role) or family.norms[role]
        maps = _maps(plan, role)
        first: dict[int, int] = {}
        for layer in family.numbers_of(role, names):
            name = names[layer]
            parent = base.get_submodule(f"{name}.{path}".rpartition(".")[0])
            other = first.setdefault(id(parent), layer)
            if any(slices[layer] != slices[other] for slices in maps):
                raise ConversionError(
                    f"{prefix}{name} and {prefix}{names[other]} are one module in {role!r} and "
                    "must share all its tensors, got sharing options or adapters that keep them "
                    "apart. Put a copy.deepcopy of the module in one place; copies share without "
                    "a fit, since they are equal. Nothing was changed."
                )


def _maps(plan: ConversionPlan, role: str) -> list[LayerMap]:
    for norm in plan.norms:
        if norm.role == role:
            return [norm.slices]
    maps: list[LayerMap] = []
    for number, bank in enumerate(plan.banks_of_role(role)):
        own = [bank.central, bank.auxiliary, *([] if bank.bias is None else [bank.bias])]
        own += [tuple(range(bank.n_layers))] if bank.adapter_rank else []
        # Layers of other banks, and those that stay plain, are kept apart from these.
        placed = [-1 - number] * plan.n_layers
        for slices in own:
            for layer, piece in zip(bank.layer_numbers, slices, strict=True):
                placed[layer] = piece
            maps.append(tuple(placed))
    return maps
