"""Parameters that a conversion would take apart from other places of the model that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.parts import modules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel


def check_ties(model: PreTrainedModel, replaced: Sequence[str]) -> None:
    """Refuse a parameter that is used both by one role and elsewhere.

    Layers that use one parameter in one role go on sharing it, as slices of one tensor of a bank.
    Between roles, or between a layer and a head, nothing could: they would be two tensors from
    then on, which training and saving take apart.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    replaced : sequence of str
        Roles of the parts that are replaced.

    Raises
    ------
    ConversionError
        When there is such a parameter; both of its full names are told.
    """
    users: dict[tuple[object, ...], dict[str, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(_place(parameter), {})[name] = ""
    for role in replaced:
        for module_name, module in modules_of(model, role).items():
            for kind, parameter in module.named_parameters(recurse=False):
                users[_place(parameter)][f"{module_name}.{kind}"] = f"{role}.{kind}"
    for names in users.values():
        first, *others = names
        for other in others:
            if names[other] != names[first]:
                raise ConversionError(
                    f"{first} and {other} must be two parameters, got one that both use: only "
                    "layers of one role can share in a bank. Leave both out of targets, or give "
                    "one of them a copy: nn.Parameter(weight.detach().clone()). Nothing was "
                    "changed."
                )


def _place(parameter: Tensor) -> tuple[object, ...]:
    """Return the same value for all parameters that are one, or that have one memory."""
    if parameter.is_meta or parameter.numel() == 0:
        return (id(parameter),)
    return (parameter.device, parameter.data_ptr(), tuple(parameter.shape))
