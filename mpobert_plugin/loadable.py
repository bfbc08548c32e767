"""The tensors that a model is about to save, compared with those that its own folder asks for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.attach import attach, make_banks
from mpobert_plugin.checkpoint import Comparison, compare
from mpobert_plugin.errors import CheckpointError, SharingError, shorten
from mpobert_plugin.noted import note
from mpobert_plugin.plan import ConversionPlan
from mpobert_plugin.runtime import Banks, banks_of
from mpobert_plugin.skeleton import plain_skeleton
from mpobert_plugin.stored_depth import check_depth
from mpobert_plugin.stored_plan import check_plan

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_REMEDY = (
    "Take out of the model what has tensors of its own, such as a wrapper around a layer, a "
    "parametrization or LoRA, and keep these apart; LoRA of PEFT is saved by the PeftModel. Put "
    "back what is missing. Nothing was written."
)


def check_tensors_to_save(
    model: PreTrainedModel, state_dict: Mapping[str, Tensor] | None = None
) -> Mapping[str, Tensor]:
    """Return what is to be saved, if its tensors are those that loading will look for.

    A model as it was converted or loaded is known by the names and shapes of its tensors. For
    any other one, its architecture is made again from its configuration, without memory, as
    loading would make it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    state_dict : mapping of str to Tensor, optional
        What is to be saved in place of the model's own tensors.

    Returns
    -------
    mapping of str to Tensor
        `state_dict`, or that of the model.

    Raises
    ------
    SharingError
        When the model has tensors that loading has no place for, lacks some, or has some of
        another shape; their names and shapes are told. A head in the place of another is none of
        these, since loading begins a new one then. When its configuration has lost its plan,
        or asks for another architecture. When what is to be saved is no mapping of names to
        tensors, or an empty one.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> len(check_tensors_to_save(mp.build("mpobert-12", head="none", device="meta")))
    50
    """
    plan = getattr(getattr(model.config, "quantization_config", None), "plan", None)
    if not isinstance(plan, ConversionPlan):
        raise SharingError(
            "the configuration of a converted model must hold the plan of its conversion in "
            f"quantization_config, got {plan!r}. Put it back, or save the plain model that "
            "mpobert_plugin.merge(model) returns. Nothing was written."
        )
    # The very checks of loading, which would build layers on the way.
    try:
        check_depth(model.config, plan)
    except CheckpointError as error:
        raise _not_loadable(error) from error
    tensors = model.state_dict() if state_dict is None else state_dict
    whole = _shapes(tensors)
    known = banks_of(model).as_attached
    if known is not None and note(model, whole).same(known):
        return tensors
    skeleton = None
    # A class of the user's own may ask for more than a configuration.
    with suppress(TypeError):
        skeleton = plain_skeleton(model)
    if skeleton is None:
        return tensors
    try:
        check_plan(skeleton, plan)
    except CheckpointError as error:
        raise _not_loadable(error) from error
    attach(skeleton, plan, Banks(dict(make_banks(plan, device="meta")), plan))
    if state_dict is None:
        _check_ties(model, skeleton)
    _refuse(model, compare(skeleton, whole))
    return tensors


def _shapes(state_dict: object) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of what is to be saved, if it is all tensors."""
    if not isinstance(state_dict, Mapping):
        raise SharingError(
            f"state_dict must map names to tensors, got {type(state_dict).__name__}. Pass what "
            "model.state_dict() returns, or leave it out. Nothing was written."
        )
    if not state_dict:
        raise SharingError(
            "state_dict must hold the tensors of the model, got none, so that all are missing. "
            "Pass what model.state_dict() returns, or leave it out. Nothing was written."
        )
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise SharingError(
                f"what is saved must map names to tensors, got {type(tensor).__name__} for "
                f"{name!r}. Leave it out; a model that torch has quantized is saved before that, "
                "and quantized again once it is loaded. Nothing was written."
            )
    return {name: tuple(tensor.shape) for name, tensor in state_dict.items()}


def _not_loadable(error: CheckpointError) -> SharingError:
    return SharingError(f"a folder of this model could not be loaded: {error} Nothing was written.")


def _check_ties(model: PreTrainedModel, skeleton: PreTrainedModel) -> None:
    """Refuse one tensor under two names where loading would look for two tensors."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tied = skeleton.all_tied_weights_keys
    for name, source in model.all_tied_weights_keys.items():
        if tensors.get(name) is None or tensors[name] is not tensors.get(source) or name in tied:
            continue
        raise SharingError(
            f"the configuration must tie {name} to {source}, as the model does and a folder "
            "stores it, got one that ties them no longer. Set its tie_word_embeddings back to "
            f"True, or give {name} a tensor of its own. Nothing was written."
        )


def _refuse(model: PreTrainedModel, found: Comparison) -> None:
    other = [
        f"{name} ({shape} in place of {expected})" for name, shape, expected in found.mismatched
    ]
    parts = [
        f"{len(names)} {words}: {shorten(names)}"
        for names, words in (
            (found.unexpected, "that loading has no place for"),
            (found.missing, "missing"),
            (other, "of another shape"),
        )
        if names
    ]
    if parts:
        raise SharingError(
            f"the model must have the tensors of a {type(model).__name__} as it was converted, "
            f"got {'; '.join(parts)}. {_REMEDY}"
        )
