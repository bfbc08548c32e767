"""Read the tensors that a conversion replaces, checked, without changing the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.errors import ConversionError, shorten
from mpobert_plugin.outside import outside_matrix
from mpobert_plugin.parts import linears_of, norms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.host_matrix import HostMatrix
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
        ``result[role]["weight"]`` maps full names to W (out x in), or the weight of a norm, one
        for each layer of the model in order; ``"bias"`` likewise where there are biases.

    Raises
    ------
    ConversionError
        When a parameter is on meta or not finite, or when parameters that are to be stacked have
        different element types, devices or ``requires_grad``.
    """
    found: dict[str, dict[str, Named]] = {}
    for spec in plan.banks:
        found[spec.role] = _matrices(linears_of(model, spec.role))
    for outside in plan.outside:
        found[outside.role] = _matrices(dict([outside_matrix(model, outside.role)]))
    for norm in plan.norms:
        found[norm.role] = _by_kind(norms_of(model, norm.role))
    norms = {norm.role for norm in plan.norms}
    for role, kinds in found.items():
        for tensors in kinds.values():
            for name, tensor in tensors.items():
                _check_values(name, tensor)
            _check_alike(tensors, role not in norms)
            _check_frozen(tensors, role not in norms)
    return found


def _matrices(matrices: Mapping[str, HostMatrix]) -> dict[str, Named]:
    kinds: dict[str, Named] = {}
    for name, matrix in matrices.items():
        kinds.setdefault("weight", {})[f"{name}.weight"] = matrix.weight
        if matrix.bias is not None:
            kinds.setdefault("bias", {})[f"{name}.bias"] = matrix.bias
    return kinds


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
    # One pass: whatever is not finite makes the sum not finite either.
    if bool(torch.isfinite(tensor.detach().sum())):
        return
    bad = ~torch.isfinite(tensor.detach())
    count = int(bad.sum())
    if count:
        first = tuple(int(index) for index in bad.nonzero()[0])
        raise ConversionError(
            f"{name} must be finite, got {count} non-finite entries, the first at index {first}. "
            "Nothing was changed."
        )


def _check_alike(tensors: Named, optional: bool) -> None:
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        for what in ("dtype", "device"):
            given, expected = getattr(tensor, what), getattr(first, what)
            if given != expected:
                raise ConversionError(
                    f"{name} must have the same {what} as {first_name}, since both become slices "
                    f"of one tensor: got {given} and {expected}. Make them alike{_or(optional)}. "
                    "Nothing was changed."
                )


def _check_frozen(tensors: Named, optional: bool) -> None:
    frozen = [name for name, tensor in tensors.items() if not tensor.requires_grad]
    trained = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if frozen and trained:
        raise ConversionError(
            f"requires_grad must be the same in all layers, since they become slices of one "
            f"tensor, which is trained or frozen whole: {shorten(frozen, 4)} have False and "
            f"{shorten(trained, 4)} have True. Give all layers the same before converting"
            f"{_or(optional)}. To hold some layers fixed, register a hook on the bank's tensor "
            "that puts the gradients of their slices to zero, and leave it out of weight decay. "
            "Nothing was changed."
        )


def _or(optional: bool) -> str:
    """Return the way out that matrices have and norms have not."""
    return ", or leave these matrices out of targets" if optional else ""
