"""A family for a model of any type, read off its layers: the modules of a numbered list."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from torch import nn

from mpobert_plugin.errors import ConversionError, did_you_mean
from mpobert_plugin.families.family import Family
from mpobert_plugin.host_matrix import is_matrix, sizes_of
from mpobert_plugin.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Between the type of a model and the lists of its layers in the name of such a family.
MARK = ":"
# Between the names of several lists.
AND = "+"


def derived_family(base: nn.Module, model_type: str, layers: str | None = None) -> Family:
    """Return the family that a model's own layers tell, for a model type that nobody described.

    Its layers are the modules of its numbered lists that hold linear layers, of which an encoder
    with a decoder has two. Every linear layer inside them is a matrix, whose role is its path
    with ``__`` for dots; with several lists the name of the list comes before, since only layers
    of one list share. Norms stay as they are.

    Parameters
    ----------
    base : torch.nn.Module
        Base model, without its head, plain or converted.
    model_type : str
        ``config.model_type`` of the model.
    layers : str, optional
        Name of a list, seen from the base model, when not all lists are meant: the encoder of a
        model that has a decoder too, say. Several names have a ``+`` between.

    Returns
    -------
    Family
        Not registered; its name holds the type and the lists. It can be changed with
        ``dataclasses.replace`` and given to `register_family`.

    Raises
    ------
    ConversionError
        When there is no such list.

    Examples
    --------
    >>> from transformers import OPTConfig, OPTModel
    >>> sizes = dict(hidden_size=8, ffn_dim=16, num_attention_heads=2, word_embed_proj_dim=8)
    >>> model = OPTModel(OPTConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> family = derived_family(model, "opt")
    >>> family.name, family.matrices["self_attn__q_proj"]
    ('opt:decoder.layers', 'self_attn.q_proj')
    """
    found = [name for name in matrix_lists(base) if _paths(base.get_submodule(name))]
    lists = found if layers is None else layers.split(AND)
    unknown = [name for name in lists if name not in found]
    if not lists or unknown:
        hint = did_you_mean(unknown[0], sorted(found)) if found and unknown else ""
        raise ConversionError(
            f"model must have its layers in a numbered ModuleList with linear layers inside, got "
            f"{f'none at {unknown[0]!r}' if unknown else 'none'} in a {type(base).__name__}. "
            f"{hint}".rstrip()
        )
    matrices: dict[str, str] = {}
    layers_of_role: dict[str, str] = {}
    for name in lists:
        for path in _paths(base.get_submodule(name)):
            role = _role(path if len(lists) == 1 else f"{name}.{path}", matrices)
            matrices[role] = path
            if len(lists) > 1:
                layers_of_role[role] = _pattern([name])
    return Family(
        name=f"{model_type}{MARK}{AND.join(lists)}",
        model_types=(model_type,),
        layer_pattern=_pattern(lists),
        matrices=matrices,
        norms={},
        needs_targets=True,
        embedding=_embedding(base),
        layers_of_role=layers_of_role,
    )


def _pattern(lists: Sequence[str]) -> str:
    names = "|".join(map(re.escape, lists))
    return rf"({names})\.\d+" if len(lists) > 1 else rf"{names}\.\d+"


def _paths(layers: nn.Module) -> list[str]:
    """Return the paths of the matrices inside the layers of a list."""
    paths: dict[str, None] = {}
    for layer in layers.children():
        named = layer.named_modules()
        # A layer that is itself a matrix has no path, and no layers to share with inside.
        paths |= dict.fromkeys(name for name, module in named if name and _sizes(module))
    return list(paths)


def matrix_lists(base: nn.Module) -> Mapping[str, int]:
    """Return the outermost numbered lists of a model that hold matrices, and how much they hold.

    Parameters
    ----------
    base : torch.nn.Module
        Any module.

    Returns
    -------
    mapping of str to int
        Name of each list to the number of entries of its matrices; converted layers count as
        their plain ones.

    Examples
    --------
    >>> dict(matrix_lists(nn.Sequential(nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)]))))
    {'0': 12}
    """
    found: dict[str, int] = {}
    for name, module in base.named_modules():
        if not isinstance(module, nn.ModuleList) or not name:
            continue
        if any(name.startswith(f"{outer}.") for outer in found):
            continue
        sizes = [_sizes(inner) for inner in module.modules()]
        total = sum(size[0] * size[1] for size in sizes if size)
        if total:
            found[name] = total
    return found


def _embedding(base: nn.Module) -> str:
    """Return the name of the word embedding, or nothing when the host does not say which it is."""
    find = getattr(base, "get_input_embeddings", None)
    found = None
    # The host's way to say that it does not know.
    with suppress(RuntimeError):
        found = None if find is None else find()
    named = base.named_modules() if found is not None else ()
    return next((name for name, module in named if module is found), "")


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Return rows and columns of a matrix, plain or read from a bank, and None for the rest."""
    if is_matrix(module):
        return sizes_of(module)
    if isinstance(module, Reader) and "in_features" in vars(module):
        return int(vars(module)["out_features"]), int(vars(module)["in_features"])
    return None


def _role(path: str, taken: Mapping[str, str]) -> str:
    # Two lines under: transformers stores some models under other names, by patterns in which a
    # dot is any character, and these must not take the name of a bank for one of theirs.
    role = path.replace(".", "__")
    # A bank cannot have the name of a method of the dictionary that holds all banks.
    while role in taken or hasattr(nn.ModuleDict, role):
        role += "_"
    return role
