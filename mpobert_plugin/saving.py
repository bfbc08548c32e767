"""A converted model is looked at before transformers writes the first file of it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from mpobert_plugin.errors import SharingError, shorten
from mpobert_plugin.guard import check_saving
from mpobert_plugin.loadable import check_tensors_to_save
from mpobert_plugin.locate import BANKS, base_of
from mpobert_plugin.places import WRAPPED, misplaced
from mpobert_plugin.plan import ConversionPlan
from mpobert_plugin.runtime import Banks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

_MARK = "_looks_at_places"
# How PEFT names the tensors of a model in files of its own.
_IN_PEFT = "base_model.model."


def check_places(
    model: PreTrainedModel, state_dict: Mapping[str, Tensor] | None = None, whole: bool = True
) -> None:
    """Refuse to save a model that its own configuration could not load again.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model; plain ones pass.
    state_dict : mapping of str to Tensor, optional
        What is to be saved in place of the model's own tensors.
    whole : bool
        Whether all tensors are to be saved, and not those of an adapter of PEFT alone.

    Raises
    ------
    SharingError
        When a place does not hold what the plan says, or tensors are not those that loading
        would look for, or are sharded, or have no values, or would be renamed; full names are
        told.
    ConversionError
        When adapters are merged.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> check_places(BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)))
    """
    base: nn.Module = base_of(model)
    # Of all models of transformers, some may have no module there.
    if not isinstance(getattr(base, "_modules", {}).get(BANKS), Banks):
        _check_banks_are_gone(model)
        return
    check_saving(base)
    for place in misplaced(model):
        raise SharingError(f"{place} Nothing was written.")
    if whole:
        _check_names(model)
        tensors = check_tensors_to_save(model, state_dict)
        _check_whole(model, tensors)
        _check_values(model, tensors)


def _check_whole(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Refuse parts of tensors, unless transformers has cut them itself and gathers them again."""
    wanted = getattr(model.config, "distributed_config", None)
    sizes = [getattr(wanted, name, None) or 1 for name in ("dp_size", "tp_size")]
    sizes.append(getattr(model, "_tp_size", None) or 1)
    cut = [name for name, tensor in tensors.items() if hasattr(tensor, "full_tensor")]
    if cut and max(sizes) == 1:
        raise SharingError(
            f"what is saved must be whole, got {len(cut)} of {len(tensors)} sharded over "
            f"processes: {shorten(cut)}. Gather them first, in every process: "
            "whole = torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True, cpu_offload=True)), or get_state_dict "
            "of accelerate; then call save_pretrained(folder, state_dict=whole). Nothing was "
            "written."
        )


def _check_values(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors without values, but for those that transformers brings back from a disk."""
    away = set(getattr(model, "hf_device_map", {}).values()) & {"cpu", "disk"}
    empty = [name for name, tensor in tensors.items() if tensor.is_meta and tensor.numel()]
    if empty and not away:
        raise SharingError(
            f"what is saved must have values, got tensors on the meta device: {shorten(empty)}. "
            "Give the model values first, with mpobert_plugin.load_state_dict(model, state_dict, "
            "assign=True), or pass them as state_dict. Nothing was written."
        )


def _check_names(model: PreTrainedModel) -> None:
    """Refuse the names of PEFT's files for all tensors, under which loading would find none."""
    renamings = getattr(model, "_weight_conversions", None) or ()
    sources = [name for entry in renamings for name in getattr(entry, "source_patterns", ())]
    if any(name.startswith(_IN_PEFT) for name in sources):
        raise SharingError(
            "tensors of a converted model must keep their names in saving, got model."
            f"_weight_conversions that put {_IN_PEFT!r} before each, which loading an adapter has "
            "left. Take it away: del model._weight_conversions. Nothing was written."
        )


def _check_banks_are_gone(model: PreTrainedModel) -> None:
    """Refuse a model with the plan of a conversion and no banks in its base model."""
    plan = getattr(getattr(model.config, "quantization_config", None), "plan", None)
    if not isinstance(plan, ConversionPlan):
        return
    base, name = base_of(model), model.base_model_prefix
    found, remedy = base._modules.get(BANKS), "Put them back, or load the model again."
    # Of what torch.compile and other wrappers return, the banks are an attribute and no module.
    kind = type(base).__name__ if found is None else type(found).__name__
    inner = next((key for key in WRAPPED if key in base._modules), None)
    if inner is not None:
        remedy = f"Save the model without the wrapper: model.{name} = model.{name}.{inner}."
        kind = f"the wrapper {type(base).__name__} around it"
    raise SharingError(
        f"the base model must have the banks of its plan in {BANKS!r}, got {kind}. {remedy} "
        "Nothing was written."
    )


def look_before_saving() -> None:
    """Let ``save_pretrained`` of transformers look at converted models; twice does nothing.

    It writes the configuration before it asks the model for its tensors, so that what refuses
    then has spoiled a folder already. Plain models are saved as ever.
    """
    save: Any = PreTrainedModel.save_pretrained
    if hasattr(save, _MARK):
        return
    signature = inspect.signature(save)

    @functools.wraps(save)
    def looked(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        # Other processes of a run save nothing, and may be given nothing to save.
        main = given.get("is_main_process", True)
        # Of a group of processes, later versions of transformers take the first one.
        main = getattr(self, "should_save_on_this_rank", bool)(main)
        whole = main and not getattr(self, "_hf_peft_config_loaded", False)
        check_places(self, given.get("state_dict"), whole=whole)
        return save(self, *args, **kwargs)

    setattr(looked, _MARK, True)
    PreTrainedModel.save_pretrained = looked  # type: ignore[method-assign, unused-ignore]
