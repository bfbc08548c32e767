"""The parts of a plain model that conversion replaces, by full name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.locate import base_of, family_of, layer_names, prefix_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def beside_of(model: PreTrainedModel, path: str) -> nn.Linear | None:
    """Return the plain linear layer at a path of the base model, or None where there is none.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    path : str
        Path seen from the base model.

    Returns
    -------
    torch.nn.Linear or None
        The layer; None when this model has none, such as a model without a pooler.
    """
    module: nn.Module | None = base_of(model)
    for part in path.split("."):
        module = getattr(module, part, None)
    return module if isinstance(module, nn.Linear) else None


def modules_at(model: PreTrainedModel, path: str) -> dict[str, nn.Module]:
    """Return the module at a path inside each layer, by its full name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    path : str
        Path inside a layer.

    Returns
    -------
    dict of str to torch.nn.Module
        In the order of the layers.
    """
    base, prefix = base_of(model), prefix_of(model)
    return {
        f"{prefix}{name}.{path}": base.get_submodule(f"{name}.{path}")
        for name in layer_names(model)
    }


def linears_of(model: PreTrainedModel, role: str) -> dict[str, nn.Linear]:
    """Return the linear layer of a role in each layer, by its full name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        Role of the matrix.

    Returns
    -------
    dict of str to torch.nn.Linear
        In the order of the layers.

    Raises
    ------
    ConversionError
        When one of them is not a plain linear layer.
    """
    found: dict[str, nn.Linear] = {}
    for name, module in modules_at(model, family_of(model).matrices[role]).items():
        # A subclass may compute something else than its weight says: a quantized or LoRA layer.
        if type(module) is not nn.Linear:
            raise ConversionError(
                f"{name} must be a plain linear layer, got {type(module).__name__}. Convert the "
                "model before other libraries change its layers."
            )
        found[name] = module
    return found
