"""Markers in saved files that stop plain transformers from loading them with random weights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def install_guard(base: nn.Module, keys: Sequence[str]) -> None:
    """Make state dicts of a base model hold empty tensors under the names of plain weights.

    Without this library, transformers skips an unknown quantization method with a log line and
    would fill every layer with random numbers. The empty tensor has another shape than the weight
    that the plain architecture expects under its name, and that is an error. Parts of a
    model that transformers loads by themselves, as the towers of CLIP, need one each.

    Parameters
    ----------
    base : torch.nn.Module
        Base model with banks.
    keys : sequence of str
        Names of weights that the plain architecture has, seen from the base model.
    """
    # torch leaves these two methods without types.
    base.register_state_dict_post_hook(partial(_add_markers, keys=tuple(keys)))  # type: ignore[no-untyped-call]
    base.register_load_state_dict_pre_hook(partial(_drop_markers, keys=tuple(keys)))  # type: ignore[no-untyped-call]


def remove_guard(base: nn.Module) -> None:
    """Take the marker out of what a base model saves; without one nothing happens.

    Parameters
    ----------
    base : torch.nn.Module
        A base model that has no banks any more.
    """
    for number, hook in list(base._state_dict_hooks.items()):
        if getattr(hook, "func", None) is _add_markers:
            del base._state_dict_hooks[number]
    for number, wrapped in list(base._load_state_dict_pre_hooks.items()):
        if getattr(getattr(wrapped, "hook", None), "func", None) is _drop_markers:
            del base._load_state_dict_pre_hooks[number]


def refuse_saving(base: nn.Module) -> None:
    """Make state dicts of a base model an error, while its adapters are merged.

    Parameters
    ----------
    base : torch.nn.Module
        Base model.
    """
    # torch leaves this method without types.
    base.register_state_dict_pre_hook(_refuse_saving)  # type: ignore[no-untyped-call]


def allow_saving(base: nn.Module) -> None:
    """Undo `refuse_saving`.

    Parameters
    ----------
    base : torch.nn.Module
        Base model.
    """
    hooks = base._state_dict_pre_hooks
    for number in [number for number, hook in hooks.items() if hook is _refuse_saving]:
        del hooks[number]


def check_saving(base: nn.Module) -> None:
    """Raise what a state dict would raise while `refuse_saving` holds, without making one.

    Parameters
    ----------
    base : torch.nn.Module
        Base model.

    Raises
    ------
    ConversionError
        While its adapters are merged.
    """
    if _refuse_saving in base._state_dict_pre_hooks.values():
        _refuse_saving(base, "", False)


def is_marker(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of a state dict is the empty marker.

    Parameters
    ----------
    tensor : Tensor
        Value of a state dict.

    Returns
    -------
    bool
        True for a tensor without elements.

    Examples
    --------
    >>> is_marker(torch.empty(0))
    True
    """
    return tensor.numel() == 0


def _add_markers(
    _module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    _metadata: Any,
    keys: tuple[str, ...],
) -> None:
    for key in keys:
        state_dict[prefix + key] = torch.empty(0)


def _drop_markers(
    _module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    *_rest: Any,
    keys: tuple[str, ...],
) -> None:
    for key in keys:
        marker = state_dict.get(prefix + key)
        if isinstance(marker, torch.Tensor) and is_marker(marker):
            del state_dict[prefix + key]


def _refuse_saving(_module: nn.Module, _prefix: str, _keep_vars: bool) -> None:
    raise ConversionError(
        "a model with merged adapters cannot be saved or loaded as a converted one, since its "
        "merged matrices have no cores. Call mpobert_plugin.unmerge_adapters(model) first, or "
        "save the plain model that mpobert_plugin.merge(model) returns."
    )
