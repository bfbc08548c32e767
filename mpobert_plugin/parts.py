"""The parts of a plain model that conversion replaces, by full name."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.host_matrix import MATRIX_CLASSES, HostMatrix
from mpobert_plugin.locate import base_of, family_of, layer_names, prefix_of
from mpobert_plugin.plain import check_plain, check_rms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel


def beside_of(model: PreTrainedModel, path: str) -> nn.Linear | None:
    """Return the linear layer at a path of the base model, or None where there is nothing.

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

    Raises
    ------
    ConversionError
        When there is something else than a plain linear layer.
    """
    module = module_beside(model, path)
    if module is None:
        return None
    check_plain(prefix_of(model) + path, module, (nn.Linear,))
    return cast("nn.Linear", module)


def module_beside(model: PreTrainedModel, path: str) -> nn.Module | None:
    """Return the module at a path of the base model, whatever it is, or None where there is none.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    path : str
        Path seen from the base model.

    Returns
    -------
    torch.nn.Module or None
        The module.
    """
    module: nn.Module | None = base_of(model)
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def layers_of_role(model: PreTrainedModel, role: str) -> tuple[int, ...]:
    """Return the numbers of the layers that have a role: all but in models with several lists.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        Role of a matrix or norm.

    Returns
    -------
    tuple of int
        In ascending order.
    """
    return family_of(model).numbers_of(role, layer_names(model))


def lists_of_layers(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the number of layers in each list of layers of a model that has several.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.

    Returns
    -------
    tuple of int
        In the order of the layers; empty where all layers have all roles.

    Raises
    ------
    ConversionError
        When roles are those of layers that do not stand in lists of their own.
    """
    family, names = family_of(model), layer_names(model)
    roles = (*family.matrices, *family.norms)
    lists = sorted({family.numbers_of(role, names) for role in roles})
    if len(lists) == 1 and len(lists[0]) == len(names):
        return ()
    if [layer for layers in lists for layer in layers] != list(range(len(names))):
        raise ConversionError(
            f"layers_of_role of family {family.name!r} must share the {len(names)} layers out to "
            f"lists, each a run of layers with the same roles, got the layers "
            f"{', '.join(map(str, map(list, lists)))}. Nothing was changed."
        )
    return tuple(map(len, lists))


def modules_of(model: PreTrainedModel, role: str) -> dict[str, nn.Module]:
    """Return the module of a role in each layer that has one, by its full name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        Role of a matrix or norm.

    Returns
    -------
    dict of str to torch.nn.Module
        In the order of the layers.

    Raises
    ------
    ConversionError
        When a layer lacks it.
    """
    family, names = family_of(model), layer_names(model)
    path = family.matrices.get(role) or family.norms[role]
    return _modules(model, [names[layer] for layer in family.numbers_of(role, names)], path)


def modules_at(model: PreTrainedModel, path: str) -> dict[str, nn.Module]:
    """Return the module at a path inside each layer that has a role there, by its full name.

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

    Raises
    ------
    ConversionError
        When a layer has none.
    """
    family, names = family_of(model), layer_names(model)
    roles = [role for role, own in {**family.matrices, **family.norms}.items() if own == path]
    layers = sorted({layer for role in roles for layer in family.numbers_of(role, names)})
    return _modules(model, [names[layer] for layer in layers], path)


def _modules(model: PreTrainedModel, names: Sequence[str], path: str) -> dict[str, nn.Module]:
    base, prefix = base_of(model), prefix_of(model)
    found: dict[str, nn.Module] = {}
    for name in names:
        module: nn.Module | None = base.get_submodule(name)
        for part in path.split("."):
            module = getattr(module, part, None)
        if not isinstance(module, nn.Module):
            raise ConversionError(
                f"{prefix}{name} must have a module at {path!r} as every layer must, got none. "
                "Leave it out of targets, or convert a model whose layers are alike. Nothing was "
                "changed."
            )
        found[f"{prefix}{name}.{path}"] = module
    return found


def linears_of(model: PreTrainedModel, role: str) -> dict[str, HostMatrix]:
    """Return the matrix of a role in each layer, by the full name of its module.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        Role of the matrix.

    Returns
    -------
    dict of str to HostMatrix
        In the order of the layers; W is (out x in), whatever the host stores.

    Raises
    ------
    ConversionError
        When one of them is neither a plain linear layer nor a plain ``Conv1D``.
    """
    modules = modules_of(model, role)
    for name, module in modules.items():
        check_plain(name, module, MATRIX_CLASSES)
    return {name: HostMatrix(module) for name, module in modules.items()}


def norms_of(model: PreTrainedModel, role: str) -> dict[str, nn.Module]:
    """Return the norm of a role in each layer, by its full name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        Role of the norm.

    Returns
    -------
    dict of str to torch.nn.Module
        In the order of the layers.

    Raises
    ------
    ConversionError
        When one of them is not a plain LayerNorm with weight and bias, or not a plain RMS norm in
        a family that has these.
    """
    family = family_of(model)
    modules = modules_of(model, role)
    for name, module in modules.items():
        if family.norm_kind == "rms":
            check_rms(name, module)
            continue
        check_plain(name, module, (nn.LayerNorm,))
        axes = len(cast("nn.LayerNorm", module).normalized_shape)
        if module._parameters["bias"] is None or axes != 1:
            raise ConversionError(
                f"{name} must be a LayerNorm with weight and bias over the last axis, got one over "
                f"{axes} axes with {' and '.join(n for n, _ in module.named_parameters())}."
            )
    return modules


def norm_sizes(norm: nn.Module) -> tuple[int, float]:
    """Return the number of features of a norm and what it adds to the variance.

    Parameters
    ----------
    norm : torch.nn.Module
        A LayerNorm or an RMS norm, as `norms_of` returns it.

    Returns
    -------
    tuple of (int, float)
        Size and eps.

    Examples
    --------
    >>> norm_sizes(nn.LayerNorm(8, eps=1e-6))
    (8, 1e-06)
    """
    eps = norm.eps if isinstance(norm, nn.LayerNorm) else norm.variance_epsilon
    weight = norm._parameters["weight"]
    return int(cast("Tensor", weight).numel()), float(cast("float", eps))
