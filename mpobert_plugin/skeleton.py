"""The plain architecture of a converted model, on the meta device, and filling its modules."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.host_matrix import HostMatrix, is_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PretrainedConfig, PreTrainedModel


def plain_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return a copy of a configuration that says nothing of a conversion.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Configuration of a converted model.

    Returns
    -------
    transformers.PretrainedConfig
        The same without ``quantization_config``.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> hasattr(plain_config(model.config), "quantization_config")
    False
    """
    plain = copy.deepcopy(config)
    forget_conversion(plain)
    return plain


def forget_conversion(config: object) -> None:
    """Take out of a configuration, in place, what a conversion or its loading put there.

    Parameters
    ----------
    config : object
        A configuration, or anything else, which is left alone.

    Examples
    --------
    >>> forget_conversion(None)
    """
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if name in getattr(config, "__dict__", {}):
            delattr(config, name)


def plain_skeleton(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the same class without banks; its tensors take no memory.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    transformers.PreTrainedModel
        On the meta device.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> group = plain_skeleton(model).encoder.albert_layer_groups[11]
    >>> group.albert_layers[0].ffn
    Linear(in_features=768, out_features=3072, bias=True)
    """
    with torch.device("meta"):
        return type(model)(plain_config(model.config))


def host_at(skeleton: PreTrainedModel, name: str) -> nn.Module:
    """Return what the plain architecture has in the place of a module of a converted model.

    Parameters
    ----------
    skeleton : transformers.PreTrainedModel
        Output of `plain_skeleton`.
    name : str
        Full name in the converted model; ``base_layer``, by which wrappers name the module
        inside, is left out.

    Returns
    -------
    torch.nn.Module
        The module of the skeleton.

    Raises
    ------
    ConversionError
        When it has none there.
    """
    path = ".".join(part for part in name.split(".") if part != "base_layer")
    module: nn.Module | None = skeleton
    for part in path.split("."):
        module = getattr(module, part, None)
    if not isinstance(module, nn.Module):
        raise ConversionError(
            f"{name} must have its place in a plain {type(skeleton).__name__}, got none. The "
            "model was changed after it was converted, or its config.json was: merge it as it "
            "was converted."
        )
    return module


def fill(host: nn.Module, name: str, values: Mapping[str, tuple[Tensor, bool]]) -> None:
    """Give a module of the skeleton its values, in place.

    Parameters
    ----------
    host : torch.nn.Module
        A linear layer, a ``Conv1D``, an embedding or a norm on the meta device.
    name : str
        Its full name, for the message.
    values : mapping of str to (Tensor, bool)
        'weight' (a matrix is out x in) and 'bias', each with whether it is trained.

    Raises
    ------
    ConversionError
        When the module has other parameters or sizes.

    Examples
    --------
    >>> host = nn.Linear(3, 2, bias=False, device="meta")
    >>> fill(host, "query", {"weight": (torch.ones(2, 3), False)})
    >>> host(torch.ones(3))
    tensor([3., 3.])
    """
    given = dict(values)
    if is_matrix(host) and HostMatrix(host).transposed:
        matrix, trained = given["weight"]
        given["weight"] = (matrix.t().contiguous(), trained)
    expected = {k: tuple(t.shape) for k, t in host._parameters.items() if t is not None}
    found = {kind: tuple(tensor.shape) for kind, (tensor, _) in given.items()}
    if expected != found:
        raise ConversionError(
            f"{name} must have the parameters {expected} of a plain model, got {found}. The "
            "configuration of the model was changed after it was converted."
        )
    for kind, (tensor, trained) in given.items():
        setattr(host, kind, nn.Parameter(tensor.detach(), trained))
