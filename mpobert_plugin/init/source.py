"""Read the tensors that a conversion replaces, checked, without changing the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.locate import family_of
from mpobert_plugin.parts import linears_of, modules_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

    from mpobert_plugin.plan import ConversionPlan

Named = dict[str, Tensor]


def source_tensors(model: PreTrainedModel, plan: ConversionPlan) -> dict[str, dict[str, Named]]:
    """Return the parameters that the plan stacks: by role, by kind, then by full name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        The plan made for it.

    Returns
    -------
    dict
        ``result[role]["weight"]`` maps full names to parameters, one for each layer of the model
        in order; ``"bias"`` likewise where there are biases.

    Raises
    ------
    ConversionError
        When a parameter is on meta or not finite, or when parameters that are to be stacked have
        different element types, devices or ``requires_grad``.
    """
    found: dict[str, dict[str, Named]] = {}
    for spec in plan.banks:
        found[spec.role] = _by_kind(dict(linears_of(model, spec.role)))
    for norm in plan.norms:
        found[norm.role] = _by_kind(modules_at(model, family_of(model).norms[norm.role]))
    for kinds in found.values():
        for tensors in kinds.values():
            for name, tensor in tensors.items():
                _check_values(name, tensor)
            _check_alike(tensors)
    return found


def _by_kind(modules: Mapping[str, nn.Module]) -> dict[str, Named]:
    kinds: dict[str, Named] = {}
    for name, module in modules.items():
        for kind, parameter in module.named_parameters(recurse=False):
            kinds.setdefault(kind, {})[f"{name}.{kind}"] = parameter
    return kinds


def _check_values(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ConversionError(
            f"{name} must have values, got a tensor on the meta device. Load the model first, or "
            "make a fresh one with mpobert_plugin.build(..., device='meta')."
        )
    bad = ~torch.isfinite(tensor.detach())
    count = int(bad.sum())
    if count:
        first = tuple(int(index) for index in bad.nonzero()[0])
        raise ConversionError(
            f"{name} must be finite, got {count} non-finite entries, the first at index {first}. "
            "Nothing was changed."
        )


def _check_alike(tensors: Named) -> None:
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        for what in ("dtype", "device", "requires_grad"):
            given, expected = getattr(tensor, what), getattr(first, what)
            if given != expected:
                raise ConversionError(
                    f"{name} must have the same {what} as {first_name}, since both become slices "
                    f"of one tensor: got {given} and {expected}. Make them alike, or leave these "
                    "matrices out of targets."
                )
