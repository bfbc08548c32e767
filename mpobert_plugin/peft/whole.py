"""Whole models with LoRA: loaded again on a converted model, and merged into a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError
from mpobert_plugin.locate import check_model, is_converted
from mpobert_plugin.merge import merged_copy
from mpobert_plugin.needs import require
from mpobert_plugin.of_peft import ADD_ANOTHER
from mpobert_plugin.peft.config import register

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"


def load(model: PreTrainedModel, folder: str | Path, **options: Any) -> PeftModel:
    """Return a converted model with the LoRA of a folder that PEFT's ``save_pretrained`` wrote.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The converted model that the adapter was trained on; its layers get the adapter in place.
    folder : str or pathlib.Path
        The folder.
    **options
        Further options of ``peft.PeftModel.from_pretrained``, such as ``is_trainable``.

    Returns
    -------
    peft.PeftModel
        The model with its adapter.

    Raises
    ------
    MissingPackageError
        When PEFT is not installed.
    ModelTypeError
        When the model is of no known family.
    ConfigError
        When the folder holds no LoRA configuration.
    TargetError
        When the adapter names modules that the model does not have.

    Examples
    --------
    >>> import tempfile
    >>> from peft import get_peft_model
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> base = mp.convert(BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes)), n=3)
    >>> adapted = get_peft_model(base, mp.peft.lora_config(base))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     adapted.save_pretrained(folder)
    ...     loaded = load(adapted.unload(), folder)
    >>> len(loaded.targeted_module_names)
    9
    """
    require("peft", extra="peft")
    from peft import PeftConfig, PeftModel

    check_model(model, ADD_ANOTHER)
    # A name that is no folder would be looked up on a hub.
    if not (Path(folder) / CONFIG).is_file():
        raise ConfigError(
            f"folder must be one that save_pretrained of a PEFT model wrote, got {str(folder)!r} "
            f"without {CONFIG}."
        )
    config = register(PeftConfig.from_pretrained(str(folder)), model)
    return PeftModel.from_pretrained(model, str(folder), config=config, **options)


def merge(model: PeftModel | PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Return a plain model with the active LoRA, and the library's own adapters, in its matrices.

    PEFT's own ``merge_and_unload`` is refused on a converted model: a tensor that layers share
    cannot take the LoRA of one of them.

    Parameters
    ----------
    model : peft.PeftModel or transformers.PreTrainedModel
        LoRA on a converted model, or a converted model to which ``add_adapter`` or
        ``load_adapter`` gave some; it is not changed.
    dtype : torch.dtype, optional
        Floating-point type of all parameters of the result; that of the model by default.

    Returns
    -------
    transformers.PreTrainedModel
        A new model of the plain class, loadable without the plugin and without PEFT.

    Raises
    ------
    MissingPackageError
        When PEFT is not installed.
    ModelTypeError
        When it has no adapters of PEFT, or its base model is of no known family.
    ConversionError
        When the base model is not converted, or a matrix cannot be merged.

    Examples
    --------
    >>> from peft import get_peft_model
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> base = mp.convert(BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes)), n=3)
    >>> merged = merge(get_peft_model(base, mp.peft.lora_config(base)))
    >>> merged.encoder.layer[0].attention.self.query
    Linear(in_features=8, out_features=8, bias=True)
    """
    require("peft", extra="peft")
    from peft import PeftModel

    from mpobert_plugin.peft.unload import unload

    if not isinstance(model, PeftModel):
        if not getattr(model, "peft_config", None):
            raise ModelTypeError(
                f"model must be a peft.PeftModel, or have the adapters that add_adapter gives it, "
                f"got {type(model).__name__}. Without LoRA, call mpobert_plugin.merge(model)."
            )
        merged: PreTrainedModel = merged_copy(model, check_model(model), dtype)[0]
        unload(merged, merge=True)
        del merged.peft_config
        merged._hf_peft_config_loaded = False
        return merged
    base = check_model(model.get_base_model())
    if not is_converted(base):
        raise ConversionError(
            f"model must have LoRA on a converted model, got it on a plain {type(base).__name__}. "
            "Call model.merge_and_unload() of PEFT, which merges it rightly."
        )
    copied, _ = merged_copy(model, base, dtype)
    # What is left is LoRA on plain layers, into which PEFT merges rightly.
    plain: PreTrainedModel = copied.merge_and_unload()
    return plain
