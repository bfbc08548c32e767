"""Whether a module is plain: a torch layer that computes what its parameters say."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.host_matrix import HostMatrix, is_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# torch keeps every kind of hook of a module in a dictionary of its own.
_HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
    "_state_dict_pre_hooks": "state dict pre-hook",
    "_state_dict_hooks": "state dict hook",
    "_load_state_dict_pre_hooks": "state dict pre-hook",
    "_load_state_dict_post_hooks": "state dict hook",
}
_PLAIN = ("Conv1D", "Embedding", "LayerNorm", "Linear")
_REMEDY = "Convert the model before other code or another library changes its layers."


def check_plain(name: str, module: nn.Module, kinds: Sequence[type[nn.Module]]) -> None:
    """Refuse a module that a reader of a bank could not stand for.

    Hooks and a forward of its own would be lost with the module; a subclass, a parametrization or
    pruning computes something else than the parameters say.

    Parameters
    ----------
    name : str
        Full name, for the message.
    module : torch.nn.Module
        The module that is to be replaced.
    kinds : sequence of type
        Classes of which it must have one, such as ``nn.Linear``; the first is told in messages.

    Raises
    ------
    ConversionError
        When it is of another class, has hooks, a forward or parameters of its own kind.

    Examples
    --------
    >>> check_plain("pooler", nn.Linear(3, 2), (nn.Linear,))
    """
    if type(module) not in kinds:
        word = "linear layer" if kinds[0] is nn.Linear else kinds[0].__name__
        raise ConversionError(f"{name} must be a plain {word}, got {_kind(module)}. {_REMEDY}")
    check_forward(name, module)
    _check_parameters(name, module, ("bias", "weight"))
    _check_shape(name, module)
    _check_hooks(name, module)


def check_rms(name: str, module: nn.Module) -> None:
    """Refuse a module that is no RMS norm as Llama has it, or that a reader could not stand for.

    transformers writes the class anew for every model, so that it is known by what it has.

    Parameters
    ----------
    name : str
        Full name, for the message.
    module : torch.nn.Module
        The module that is to be replaced.

    Raises
    ------
    ConversionError
        When it is something else, has hooks, a forward or parameters of its own kind.

    Examples
    --------
    >>> from transformers.models.llama.modeling_llama import LlamaRMSNorm
    >>> check_rms("layers.0.input_layernorm", LlamaRMSNorm(4))
    """
    kind = type(module)
    own = kind.__module__.startswith("transformers.models.") and kind.__name__.endswith("RMSNorm")
    if not own or not hasattr(module, "variance_epsilon"):
        raise ConversionError(
            f"{name} must be a plain RMS norm of transformers, got {_kind(module)}. {_REMEDY}"
        )
    check_forward(name, module)
    _check_parameters(name, module, ("weight",))
    _check_hooks(name, module)


def check_embedding(name: str, module: nn.Module) -> None:
    """Refuse a module that does more than to look up the rows of its weight.

    Parameters
    ----------
    name : str
        Full name, for the message.
    module : torch.nn.Module
        The module that is to be replaced.

    Raises
    ------
    ConversionError
        When it is no ``torch.nn.Embedding``, has hooks, a forward or parameters of its own kind,
        or changes its weight or its gradient by itself.

    Examples
    --------
    >>> check_embedding("wte", nn.Embedding(3, 2))
    """
    if type(module) is not nn.Embedding:
        if type(module).__module__.startswith("transformers.models."):
            raise ConversionError(
                f"{name} must be a plain Embedding, which looks up rows and does no more, got the "
                f"{type(module).__name__} of transformers, which computes more. Leave 'embedding' "
                "out of targets. Nothing was changed."
            )
        raise ConversionError(f"{name} must be a plain Embedding, got {_kind(module)}. {_REMEDY}")
    check_forward(name, module)
    _check_parameters(name, module, ("weight",))
    _check_shape(name, module)
    _check_hooks(name, module)
    if module.max_norm is not None:
        raise ConversionError(
            f"{name} must have no max_norm, which rescales single rows of a weight, got "
            f"{module.max_norm:g}: the rows of an MPO share their cores. Rescale the weight once, "
            "set max_norm to None and convert then. Nothing was changed."
        )
    for option in ("sparse", "scale_grad_by_freq"):
        if getattr(module, option):
            raise ConversionError(
                f"{name} must have {option}=False, got True: its gradient goes to the cores, "
                f"which all words share. Set {option} to False. Nothing was changed."
            )


def _kind(module: nn.Module) -> str:
    """Return the name of a class; with its module where another one is plain by that name."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__name__}" if kind.__name__ in _PLAIN else kind.__name__


def _check_hooks(name: str, module: nn.Module) -> None:
    for store, what in _HOOKS.items():
        if vars(module).get(store):
            raise ConversionError(f"{name} must have no hooks, got a {what}. {_REMEDY}")


def check_forward(name: str, module: nn.Module) -> None:
    """Refuse a module whose forward was replaced on the object.

    Parameters
    ----------
    name : str
        Full name, for the message.
    module : torch.nn.Module
        Any module.

    Raises
    ------
    ConversionError
        When it has a forward of its own; a remedy is told when accelerate put it there.

    Examples
    --------
    >>> check_forward("pooler", nn.Linear(3, 2))
    """
    if "forward" not in vars(module):
        return
    if "_hf_hook" in vars(module):
        raise ConversionError(
            f"{name} must run its class's forward, got one with a hook of accelerate, which moves "
            "tensors between devices. Load the model without device_map, convert and save it, and "
            "load the saved folder with device_map."
        )
    raise ConversionError(
        f"{name} must run its class's forward, got an object with a forward of its own. {_REMEDY}"
    )


def _check_parameters(name: str, module: nn.Module, expected: Sequence[str]) -> None:
    names = sorted({**module._parameters, **module._buffers, **module._modules})
    if names != list(expected) or not isinstance(module._parameters.get("weight"), torch.Tensor):
        raise ConversionError(
            f"{name} must have the parameters {' and '.join(reversed(expected))} alone, got "
            f"{', '.join(names)}, as pruning and weight norms leave them. {_REMEDY}"
        )
    for kind, parameter in module.named_parameters(recurse=False):
        if type(parameter) is not nn.Parameter:
            raise ConversionError(
                f"{name}.{kind} must be a plain parameter, got {type(parameter).__name__}. "
                f"{_REMEDY}"
            )
        if _has_hooks(parameter):
            raise ConversionError(
                f"{name}.{kind} must have no hooks on its gradient, got one. Convert the model "
                "first and register it on the tensor of the bank."
            )


def _check_shape(name: str, module: nn.Module) -> None:
    if is_matrix(module):
        matrix = HostMatrix(module)
        expected: tuple[int, ...] = (matrix.out_features, matrix.in_features)
        expected = expected[::-1] if matrix.transposed else expected
    elif isinstance(module, nn.Embedding):
        expected = (module.num_embeddings, module.embedding_dim)
    else:
        expected = tuple(cast("nn.LayerNorm", module).normalized_shape)
    shape = tuple(cast("Tensor", module.weight).shape)
    if shape != expected:
        raise ConversionError(
            f"{name}.weight must have the shape {expected} that its layer states, got "
            f"{shape}. A weight that is sharded over processes must be gathered first."
        )


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks) or bool(
        getattr(parameter, "_post_accumulate_grad_hooks", None)
    )
