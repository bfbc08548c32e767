"""The way through transformers: a quantizer named 'mpo' restores converted models on loading."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer

from mpobert_plugin.attach import attach, finish, guard_keys, make_banks
from mpobert_plugin.checkpoint import check, check_kinds, check_tensors, computed_names
from mpobert_plugin.config import METHOD, MPOConfig
from mpobert_plugin.convert import convert
from mpobert_plugin.errors import CheckpointError, MPOBertWarning, shorten
from mpobert_plugin.init.absent import init_absent
from mpobert_plugin.locate import BANKS, check_model, prefix_of
from mpobert_plugin.peft.host import register_adapters
from mpobert_plugin.placement import check_device_map
from mpobert_plugin.runtime import Banks
from mpobert_plugin.saving import look_before_saving
from mpobert_plugin.stored_depth import check_depth
from mpobert_plugin.stored_fields import look_before_configuring
from mpobert_plugin.stored_names import named_as_in_model
from mpobert_plugin.stored_plan import check_plan
from mpobert_plugin.unfilled import fill_unfilled
from mpobert_plugin.unstored import check_unstored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig, PreTrainedModel

    from mpobert_plugin.plan import ConversionPlan


ALIGNMENT = 64


class MPOQuantizer(HfQuantizer):
    """Builds the banks before weights are loaded, and checks that all of them came."""

    quantization_config: MPOConfig

    def update_attn_implementation(self, config: PretrainedConfig) -> PretrainedConfig:
        """Return the configuration as it is, if the model may be built from it.

        Parameters
        ----------
        config : transformers.PretrainedConfig
            Configuration of the model that is about to be built.

        Returns
        -------
        transformers.PretrainedConfig
            The same object.

        Raises
        ------
        CheckpointError
            When it asks for other layers than the stored plan, or an MPO checkpoint has no plan.
        """
        # transformers shows it here for another reason; later, all layers have been built.
        check_depth(config, self._stored_plan() if self.pre_quantized else None)
        return config

    # What transformers calls before the model is built, in versions without the method above.
    update_tp_plan = update_attn_implementation

    def _stored_plan(self) -> ConversionPlan:
        plan = self.quantization_config.plan
        if plan is None:
            raise CheckpointError(
                "quantization_config of an MPO checkpoint must hold the plan of its conversion, "
                "got none. Use the config.json that save_pretrained wrote."
            )
        return plan

    def _process_model_before_weight_loading(
        self,
        model: PreTrainedModel,
        checkpoint_files: Sequence[str] | None = None,
        device_map: object = None,
        **_kwargs: Any,
    ) -> PreTrainedModel:
        check_model(model)
        shapes = _stored_shapes(checkpoint_files)
        if not self.pre_quantized:
            if any(f".{BANKS}." in f".{name}" for name in shapes):
                raise CheckpointError(
                    "quantization_config converts a plain checkpoint on loading, got an MPO "
                    "checkpoint whose config.json has lost its quantization_config. Restore it."
                )
            return model
        plan = self._stored_plan()
        check_plan(model, plan)
        banks = Banks(dict(make_banks(plan)), plan)
        attach(model, plan, banks)
        check_device_map(model, banks, device_map)
        if shapes:
            found = check(model, named_as_in_model(model, shapes), "checkpoint")
            check_unstored(model, shapes, found.new_head)
        _expect_markers(model, guard_keys(model, plan))
        return model

    def _process_model_after_weight_loading(
        self,
        model: PreTrainedModel,
        **_kwargs: Any,
    ) -> PreTrainedModel:
        _check_loaded(model)
        _forget_quantization(model)
        _align(model)
        if self.pre_quantized and self.quantization_config.plan is not None:
            finish(model, self.quantization_config.plan)
            return model
        return convert(model, self.quantization_config)

    def is_serializable(self, *_args: Any, **_kwargs: Any) -> bool:
        """Return True: a converted model is saved as any other."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True: every tensor of a converted model can be trained."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """True, so that ``transformers.Trainer`` trains without further adapters."""
        return True

    @property
    def is_compileable(self) -> bool:
        """True: a converted model consists of plain torch operations."""
        return True


def _stored_shapes(files: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Read names and shapes from the files; on the meta device no tensor takes memory."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files or ():
        if str(file).endswith(".safetensors"):
            try:
                with safe_open(file, framework="pt") as handle:
                    for name in handle.keys():  # noqa: SIM118 (not a dict)
                        shapes[name] = tuple(handle.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{file} must be a whole file of tensors, which the checkpoint consists of: "
                    f"{error}. Copy or download the folder again."
                ) from error
        elif str(file).endswith(".bin"):
            tensors = torch.load(file, map_location="meta", weights_only=True)
            shapes |= {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return shapes


def _expect_markers(model: PreTrainedModel, keys: Sequence[str]) -> None:
    known = set(model._keys_to_ignore_on_load_unexpected or ())
    model._keys_to_ignore_on_load_unexpected = known | {re.escape(k) + "$" for k in keys}


def _check_loaded(model: PreTrainedModel) -> None:
    """Refuse tensors of the base model that no file gave; transformers marks those that came.

    What is still on meta was left in its file on purpose, to be read when it is needed.
    """
    prefix, computed = prefix_of(model), computed_names(model)
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise CheckpointError(
                f"{name} of the checkpoint must hold floating-point numbers, got {parameter.dtype}."
            )
    absent = [
        name
        for name, parameter in model.named_parameters()
        if not (getattr(parameter, "_is_hf_initialized", False) or parameter.is_meta)
        and name not in computed
    ]
    pooler = (f"{prefix}pooler.", f"{prefix}{BANKS}.pooler.")
    lost = [name for name in absent if name.startswith(prefix) and not name.startswith(pooler)]
    if lost:
        raise CheckpointError(
            f"the loaded tensors must fill the base model, {len(lost)} of it are missing or have "
            f"another shape: {shorten(lost)}. Load the checkpoint that belongs to this config.json."
        )
    for module in model.modules():
        init_absent(model, module)
    if absent:
        warnings.warn(
            f"{len(absent)} tensors that the checkpoint does not have start at random, for the "
            f"task needs them: {shorten(absent)}. Train them before use.",
            MPOBertWarning,
            stacklevel=2,
        )


def _forget_quantization(model: PreTrainedModel) -> None:
    """Make a loaded model like a converted one: casts, Trainer and saving go their plain way."""
    for name in ("hf_quantizer", "quantization_method"):
        if name in vars(model):
            delattr(model, name)
    vars(model)["is_quantized"] = False
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_is_quantized", False):
            config._is_quantized = False


def _align(model: PreTrainedModel) -> None:
    """Move tensors that start inside a cache line, as tensors mapped from a file may.

    Matrix products can round differently for another alignment, and a loaded model is to compute
    what the saved one did, bit for bit.
    """
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()


def register() -> None:
    """Make the quantizer and its configuration known to transformers; twice does nothing."""
    look_before_saving()
    look_before_configuring()
    register_adapters()
    if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(METHOD)(MPOConfig)
    if METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantizer(METHOD)(MPOQuantizer)


def load_state_dict(
    model: PreTrainedModel, state_dict: dict[str, torch.Tensor], assign: bool = False
) -> None:
    """Load a state dict into a plain or converted model after checking every name and shape.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted, changed in place.
    state_dict : dict of str to Tensor
        Tensors by name; those of a base model and of a model with a head go into each other.
    assign : bool
        Take the given tensors themselves instead of copying their values, as a model on the meta
        device must. What it still lacks then, such as the numbers of the positions or the head of
        a new task, is initialized as in a new model.

    Raises
    ------
    CheckpointError
        When tensors are missing, unexpected, of another shape, no floating-point numbers or
        without values; nothing is loaded then.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3)
    >>> load_state_dict(model, {name: 2 * t for name, t in model.state_dict().items()})
    """
    check_model(model)
    check_tensors(state_dict)
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    if on_meta and not assign:
        raise CheckpointError(
            "model must have memory to copy values into, got parameters on the meta device. Pass "
            "assign=True, so that the model takes the given tensors. Nothing was loaded."
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
    found = check(model, shapes, "state_dict")
    check_kinds(model, state_dict, found)
    renamed = {found.renamed[name]: state_dict[name] for name in found.renamed}
    model.load_state_dict(renamed, strict=False, assign=assign)
    model.tie_weights()
    fill_unfilled(model, init_absent)
    _align(model)
    if found.new_head:
        fate = "start at random" if on_meta else "keep their values"
        warnings.warn(
            f"{len(found.new_head)} tensors that the state_dict does not have {fate}: "
            f"{shorten(found.new_head)}. Train them before use.",
            MPOBertWarning,
            stacklevel=2,
        )
