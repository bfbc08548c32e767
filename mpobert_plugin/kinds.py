"""Of which kind a parameter is: central, auxiliary, adapter, bias, norm, embedding, head, dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import EmbeddingBank
from mpobert_plugin.hosts import Hosts
from mpobert_plugin.stacked import StackedBank

if TYPE_CHECKING:
    from torch import nn

KINDS = ("central", "auxiliary", "adapter", "bias", "norm", "embedding", "head", "dense")


def kinds_of(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Return every stored parameter of a model once, by its kind and its full name.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; 'head' is what lies outside the base model of a known family.

    Returns
    -------
    dict of str to dict of str to torch.nn.Parameter
        Kinds in the order of `KINDS`, without those that the model does not have. A tied
        parameter is of the kind of its first name.

    Examples
    --------
    >>> from torch import nn
    >>> kinds_of(nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 3)))["dense"].keys()
    dict_keys(['1.weight'])
    """
    hosts, seen = Hosts(model), set()
    found: dict[str, dict[str, nn.Parameter]] = {kind: {} for kind in KINDS}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if hosts.is_repeated(prefix):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            key = hosts.key_of(full, parameter)
            if key not in seen:
                seen.add(key)
                found[kind_in(hosts, full, module)][full] = parameter
    return {kind: parameters for kind, parameters in found.items() if parameters}


def kind_in(hosts: Hosts, full: str, module: nn.Module) -> str:
    """Return the kind of a parameter inside a whole model.

    Parameters
    ----------
    hosts : Hosts
        Of the whole model.
    full : str
        Full name of the parameter.
    module : torch.nn.Module
        The module that owns it.

    Returns
    -------
    str
        One of `KINDS`; the matrices of LoRA are adapters, as those of the banks are.

    Examples
    --------
    >>> from torch import nn
    >>> layer = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False)})
    >>> kind_in(Hosts(layer), "lora_A.weight", layer["lora_A"])
    'adapter'
    """
    if any(part.startswith("lora_") for part in full.split(".")):
        return "adapter"
    return kind_of(module, full.rpartition(".")[2], hosts.in_head(full))


def kind_of(module: nn.Module, name: str, in_head: bool = False) -> str:
    """Return the kind of a parameter.

    Parameters
    ----------
    module : torch.nn.Module
        The module that owns it.
    name : str
        Its name there.
    in_head : bool
        Whether the module lies outside the base model.

    Returns
    -------
    str
        One of `KINDS`.

    Examples
    --------
    >>> from torch import nn
    >>> kind_of(nn.LayerNorm(3), "bias"), kind_of(nn.Linear(2, 3), "bias")
    ('norm', 'bias')
    """
    if isinstance(module, StackedBank):
        kind = name.partition("_")[0] if isinstance(module, MPOBank) else "norm"
        return "embedding" if isinstance(module, EmbeddingBank) else kind
    if isinstance(module, AdaptedLinear) and name.startswith("adapter"):
        return "adapter"
    if in_head:
        return "head"
    kind = type(module).__name__
    if "Embedding" in kind:
        return "embedding"
    if "LayerNorm" in kind or "RMSNorm" in kind:
        return "norm"
    return "bias" if name.endswith("bias") else "dense"
