"""The tokenizer of a checkpoint, as ``AutoTokenizer`` loads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers.processors import TemplateProcessing

from mpobert_plugin.train.data.vocabulary import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from mpobert_plugin.train.data.samples import Samples

_UNKNOWN = ("[UNK]", "<unk>")


def write_tokenizer(folder: Path, model: PreTrainedModel, samples: Samples) -> None:
    """Write the tokenizer of the text into a checkpoint.

    It puts the special tokens around a text as samples have them, unless it has a way of its own.
    Its longest text is that of a sample: later positions of the model were never trained.

    Parameters
    ----------
    folder : Path
        An existing folder.
    model : transformers.PreTrainedModel
        Tells whether segments have types.
    samples : Samples
        Of the text.

    Raises
    ------
    OSError
        When the operating system refuses.
    """
    tokenizer, special = load_tokenizer(samples.corpus.folder), samples.corpus.special
    start, end, mask, pad = (
        str(tokenizer.id_to_token(number))
        for number in (special.start, special.end, special.mask, special.pad)
    )
    if tokenizer.post_processor is None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{start}:0 $A:0 {end}:0",
            pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[(start, special.start), (end, special.end)],
        )
    inputs = ["input_ids", "attention_mask"]
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs.insert(1, "token_type_ids")
    # Without a class, transformers would take that of the model's type, of another kind of words.
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": samples.recipe.length,
        "model_input_names": inputs,
        "cls_token": start,
        "sep_token": end,
        "mask_token": mask,
        "pad_token": pad,
    }
    unknown = [name for name in _UNKNOWN if tokenizer.token_to_id(name) is not None]
    if unknown:
        settings["unk_token"] = unknown[0]
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
