"""Refuse models that no run can train, before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import ModelTypeError, shorten
from mpobert_plugin.locate import check_model
from mpobert_plugin.of_peft import TRAIN_WITHOUT, layers_of_peft
from mpobert_plugin.wrapped import TO_TRAIN, refuse_wrapped

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_trainable(model: object) -> PreTrainedModel:
    """Return the model if a run can train it.

    Parameters
    ----------
    model : object
        Whatever the user gave.

    Returns
    -------
    transformers.PreTrainedModel
        The same object.

    Raises
    ------
    ModelTypeError
        When it is no model of transformers, is wrapped or sharded, has layers of PEFT, or has
        parameters without values or in whole numbers.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = BertForMaskedLM(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> check_trainable(model) is model
    True
    """
    refuse_wrapped(model, TO_TRAIN)
    found = check_model(model, TRAIN_WITHOUT)
    adapted = layers_of_peft(found)
    if adapted:
        raise ModelTypeError(
            f"model must have no LoRA in its layers, got {len(adapted)} with it: "
            f"{shorten(adapted, 3)}. {TRAIN_WITHOUT}"
        )
    named = dict(found.named_parameters())
    empty = [name for name, parameter in named.items() if parameter.is_meta]
    if empty:
        raise ModelTypeError(
            f"model must have values, got {len(empty)} parameters on the meta device: "
            f"{shorten(empty, 3)}. Build or load it without device='meta' and without offloading."
        )
    whole = [name for name, p in named.items() if not p.is_floating_point()]
    if whole:
        raise ModelTypeError(
            f"model must have floating-point parameters, got {len(whole)} that are quantized: "
            f"{shorten(whole, 3)}. Load it without quantization."
        )
    return found
