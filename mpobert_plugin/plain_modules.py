"""Plain modules with merged matrices, for what reads a bank or has an adapter beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.exact import exact_adapted, exact_values
from mpobert_plugin.heap import give_back
from mpobert_plugin.reader import Reader
from mpobert_plugin.rounding import MergeReport, common_dtype, rounded
from mpobert_plugin.skeleton import fill, host_at, plain_skeleton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from transformers import PreTrainedModel


# Where torch keeps what others have registered on a module, to see what goes in and out.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


@dataclass(frozen=True)
class Exact:
    """What a module computes with, before it is rounded.

    Parameters
    ----------
    weight : Tensor
        W (out x in) in float64, or the weight of a norm as it is stored.
    bias : Tensor or None
        The bias as it is stored.
    dtype : torch.dtype
        Element type in which the weight is to be stored.
    device : torch.device
        Where the weight is to be.
    trained, bias_trained : bool
        Whether a tensor that the weight comes from is trained, and whether the bias is.
    adapters : int
        Number of adapters in the weight.
    is_matrix : bool
        Whether the weight was computed, so that rounding changes it.
    """

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    device: torch.device
    trained: bool
    bias_trained: bool = False
    adapters: int = 0
    is_matrix: bool = True


@dataclass
class PlainModules:
    """Plain modules by the identity of the modules that they stand for.

    Parameters
    ----------
    modules : dict of int to torch.nn.Module
        ``id`` of a module of the converted model to its plain one.
    names : dict of int to str
        Full name of each.
    errors : dict of str to float
        Relative rounding error of each matrix by full name.
    dtypes : set of torch.dtype
        Element types of the matrices.
    adapters : int
        Number of adapters that were added.
    """

    modules: dict[int, nn.Module] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)
    adapters: int = 0

    def report(self, before: int, after: int) -> MergeReport:
        """Return the report of a merge.

        Parameters
        ----------
        before, after : int
            Stored parameters of the model before and after.

        Returns
        -------
        MergeReport
            A frozen value.
        """
        return MergeReport(self.errors, common_dtype(self.dtypes), self.adapters, before, after)


# Modules after which freed memory is given back: asking after each would take a third of the time.
_GIVEN_BACK = 6


def plain_modules(
    model: PreTrainedModel,
    dtype: torch.dtype | None = None,
    wanted: Callable[[nn.Module], bool] = lambda _: True,
) -> PlainModules:
    """Return plain modules for all that a conversion put into a model; the model is only read.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    dtype : torch.dtype, optional
        Element type of the matrices; that of their bank by default.
    wanted : callable, optional
        Says which modules are asked for.

    Returns
    -------
    PlainModules
        In the training mode and on the device of what they stand for.

    Raises
    ------
    ConversionError
        When a module has no place in the plain class, or no values, or weight and bias of two
        types, or a shared matrix would get the adapter of one of its users; the full name is told.
    ConfigError
        When an entry is too large for `dtype`.
    """
    skeleton, result, done = plain_skeleton(model), PlainModules(), ""
    for name, module in model.named_modules():
        # What is inside a module that was handled is handled with it.
        if (done and name.startswith(done)) or not wanted(module):
            continue
        exact = _exact(model, module, name)
        if exact is None:
            continue
        done = f"{name}."
        weight = exact.weight
        if exact.is_matrix:
            weight, result.errors[name] = rounded(weight, dtype or exact.dtype, name)
            result.dtypes.add(weight.dtype)
            result.adapters += exact.adapters
        if dtype is None:
            _check_type(name, weight, exact.bias)
        host = host_at(skeleton, name)
        values = {"weight": (weight.to(exact.device), exact.trained)}
        if exact.bias is not None:
            values["bias"] = (exact.bias.clone(), exact.bias_trained)
        fill(host, name, values)
        for store in HOOKS:
            getattr(host, store).update(getattr(module, store))
        result.modules[id(module)], result.names[id(module)] = host.train(module.training), name
        # Between matrices that stay, what was needed to make them would stay in pieces.
        del exact, weight, values
        if len(result.modules) % _GIVEN_BACK == 0:
            give_back()
    _add_heads(model, skeleton, result)
    return result


def _check_type(name: str, weight: Tensor, bias: Tensor | None) -> None:
    """Refuse a plain module that torch could not apply."""
    if bias is not None and bias.dtype != weight.dtype:
        raise ConversionError(
            f"weight and bias of {name} must have one element type, got {weight.dtype} and "
            f"{bias.dtype}. Give the whole model one, as model.float() does, or merge with dtype=. "
            "Nothing was changed."
        )


def _add_heads(model: PreTrainedModel, skeleton: PreTrainedModel, result: PlainModules) -> None:
    """Give heads that read the matrix of the embedding its plain parameter."""
    for name, head in model.named_modules():
        plain = _plain_embedding(head, result) if isinstance(head, MPOHead) else None
        if plain is None:
            continue
        host, bias = host_at(skeleton, name), head._parameters["bias"]
        values = {"weight": (plain, plain.requires_grad)}
        if bias is not None:
            values["bias"] = (bias.detach().clone(), bias.requires_grad)
        fill(host, name, values)
        host.weight = plain
        result.modules[id(head)], result.names[id(head)] = host.train(head.training), name


def _plain_embedding(head: MPOHead, result: PlainModules) -> nn.Parameter | None:
    for reader in head.bank.readers:
        if id(reader) in result.modules:
            return result.modules[id(reader)]._parameters["weight"]
    return None


def check_undispatched(root: nn.Module) -> None:
    """Refuse a model whose modules accelerate moves between devices.

    Parameters
    ----------
    root : torch.nn.Module
        Any module.

    Raises
    ------
    ConversionError
        When a module has a hook of accelerate; its full name is told.
    """
    for name, module in root.named_modules():
        if "_hf_hook" in vars(module):
            raise ConversionError(
                f"the model must be whole on its device, got {name or 'a model'} with a hook of "
                "accelerate, which moves tensors. Load it without device_map and merge it then."
            )


def check_unwrapped(model: PreTrainedModel) -> None:
    """Refuse a model into whose layers PEFT has put adapters of its own.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Raises
    ------
    ConversionError
        When it has some.
    """
    if getattr(model, "peft_config", None):
        raise ConversionError(
            "model must have no adapters of PEFT in its layers, got some. Call "
            "mpobert_plugin.peft.merge with the peft.PeftModel, or with a model that got them from "
            "add_adapter, which merges them too; or take them out first, by unload of a PeftModel "
            "or model.delete_adapter(names). Nothing was changed."
        )


def exact_reader(reader: Reader, name: str) -> Exact:
    """Return what a reader of a bank computes with.

    Parameters
    ----------
    reader : Reader
        The reader.
    name : str
        Its full name, for messages.

    Returns
    -------
    Exact
        Matrix in float64, or the values of a norm.
    """
    bank = reader.bank
    weight, bias = exact_values(bank, reader.slot, name)
    tensors = bank.tensors()
    trained = any(tensor.requires_grad for kind, tensor in tensors.items() if kind != "bias")
    bias_trained = bias is not None and tensors["bias"].requires_grad
    if not isinstance(bank, MPOBank):
        kept = weight.clone()
        return Exact(kept, bias, kept.dtype, kept.device, trained, bias_trained, is_matrix=False)
    stored, adapters = tensors["central"], int(bank.spec.adapter_rank > 0)
    return Exact(weight, bias, stored.dtype, stored.device, trained, bias_trained, adapters)


def _exact(model: PreTrainedModel, module: nn.Module, name: str) -> Exact | None:
    if isinstance(module, Reader):
        return exact_reader(module, name)
    if isinstance(module, AdaptedLinear):
        _check_alone(model, module, name)
        stored = module.weight
        bias: Tensor | None = module.bias
        trained = stored.requires_grad or module.adapter_up.requires_grad
        bias_trained = bias is not None and bias.requires_grad
        exact = exact_adapted(module, name)
        return Exact(exact, bias, stored.dtype, stored.device, trained, bias_trained, 1)
    # What the plugin put around a reader for another library knows by itself.
    of_wrapper: Callable[[str], Exact] | None = getattr(module, "exact_values", None)
    return None if of_wrapper is None else of_wrapper(name)


def _check_alone(model: PreTrainedModel, layer: AdaptedLinear, name: str) -> None:
    """Refuse to add an adapter to a matrix that another place of the model uses as well."""
    users = [
        other
        for other, parameter in model.named_parameters(remove_duplicate=False)
        if parameter is layer.weight and other.rpartition(".")[0] != name
    ]
    if users and bool(layer.adapter_up.any()):
        raise ConversionError(
            f"the adapter of {name} cannot be added to its matrix, which {users[0]} uses as well "
            "and would change with it. Give the layer a copy of its own first: "
            "layer.weight = nn.Parameter(layer.weight.detach().clone()). Nothing was changed."
        )
