"""Layers that run again in backward do so in the way that loses no gradient."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpobert_plugin.recompute import CarryingCheckpoint

if TYPE_CHECKING:
    from torch import nn

_FUNCTION = "_gradient_checkpointing_func"


def use_nonreentrant(model: nn.Module) -> list[str]:
    """Return what to tell people, after making activation checkpointing non-reentrant in place.

    The reentrant form hides the parameters of a layer from the graph of the loss, and gives them
    no gradient at all when nothing before the layer is trained.

    Parameters
    ----------
    model : torch.nn.Module
        Checkpointed by transformers, or not.

    Returns
    -------
    list of str
        A sentence, when something was changed.

    Examples
    --------
    >>> from torch import nn
    >>> use_nonreentrant(nn.Linear(2, 2))
    []
    """
    changed = 0
    for module in model.modules():
        own = vars(module)
        carrying = own.get(_FUNCTION)
        inner = carrying.checkpoint if isinstance(carrying, CarryingCheckpoint) else carrying
        if not isinstance(inner, partial) or not inner.keywords.get("use_reentrant"):
            continue
        safe = partial(inner.func, *inner.args, **{**inner.keywords, "use_reentrant": False})
        wrapped = isinstance(carrying, CarryingCheckpoint)
        own[_FUNCTION] = CarryingCheckpoint(safe, module) if wrapped else safe
        changed += 1
    if not changed:
        return []
    text = f"{changed} modules run again in backward without reentering autograd, which would hide"
    return [f"{text} their parameters from it."]
