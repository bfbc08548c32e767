"""A tiny model of every type that is known, with any head, and what its forward takes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedModel

from tests.mpobert_plugin.models import noisy

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT_SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
    "pad_token_id": 0,
}
LLAMA_SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    **TOKENS,
}
GPT2_SIZES = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 40,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "summary_first_dropout": 0.0,
    "classifier_dropout": 0.0,
    **TOKENS,
}
DISTILBERT_SIZES = {
    "vocab_size": 99,
    "dim": 32,
    "n_layers": 4,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "qa_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "pad_token_id": 0,
}
SIZES: dict[str, dict[str, Any]] = {
    "albert": {**BERT_SIZES, "embedding_size": 16, "classifier_dropout_prob": 0.0},
    "bert": BERT_SIZES,
    "camembert": BERT_SIZES,
    "data2vec-text": BERT_SIZES,
    "distilbert": DISTILBERT_SIZES,
    "electra": {**BERT_SIZES, "embedding_size": 16, "summary_last_dropout": 0.0},
    "gpt2": GPT2_SIZES,
    "granite": LLAMA_SIZES,
    "llama": LLAMA_SIZES,
    "mistral": LLAMA_SIZES,
    "mpnet": BERT_SIZES,
    "qwen2": LLAMA_SIZES,
    "qwen3": LLAMA_SIZES,
    "roberta": BERT_SIZES,
    "smollm3": LLAMA_SIZES,
    "xlm-roberta": BERT_SIZES,
    "xlm-roberta-xl": BERT_SIZES,
}
TYPES = sorted(SIZES)
CAUSAL = ["gpt2", "granite", "llama", "mistral", "qwen2", "qwen3", "smollm3"]
# One of each description: the others differ in names alone.
APART = ["bert", "distilbert", "electra", "gpt2", "llama", "mpnet", "roberta", "xlm-roberta-xl"]


def config_of(model_type: str, **sizes: Any) -> Any:
    return CONFIG_MAPPING[model_type](**{**SIZES[model_type], **sizes})


def heads_of(model_type: str) -> list[type[PreTrainedModel]]:
    """Return every class that transformers has for models of a type, without abstract ones."""
    module = importlib.import_module(MODEL_MAPPING[CONFIG_MAPPING[model_type]].__module__)
    found = [getattr(module, name) for name in module.__all__]
    return [
        kind
        for kind in found
        if issubclass(kind, PreTrainedModel) and not kind.__name__.endswith("PreTrainedModel")
    ]


def tiny(model_type: str, head: str = "", **sizes: Any) -> PreTrainedModel:
    """Return a model with random numbers; `head` is the end of its class's name."""
    torch.manual_seed(0)
    kinds = [kind for kind in heads_of(model_type) if kind.__name__.endswith(head or "Model")]
    kind = MODEL_MAPPING[CONFIG_MAPPING[model_type]] if not head else kinds[0]
    return noisy(kind(config_of(model_type, **sizes))).eval()


def language_model(model_type: str, **sizes: Any) -> PreTrainedModel:
    """Return a model that predicts tokens: the causal one, or the one for masked tokens."""
    head = "MaskedLM" if model_type not in CAUSAL else "CausalLM"
    return tiny(model_type, "LMHeadModel" if model_type == "gpt2" else head, **sizes)


def tokens(model: PreTrainedModel, rows: int = 2, length: int = 7) -> Tensor:
    """Return ids as the model's head takes them: several choices where it chooses."""
    generator = torch.Generator().manual_seed(1)
    shape = (rows, length)
    if "MultipleChoice" in type(model).__name__ or "DoubleHeads" in type(model).__name__:
        shape = (rows, 2, length)
    return torch.randint(3, 99, shape, generator=generator)


def outputs(model: PreTrainedModel, **kwargs: Any) -> list[Tensor]:
    """Return all tensors of the output, without what a cache holds."""
    kwargs = kwargs or {"input_ids": tokens(model)}
    return [value for value in model(**kwargs).to_tuple() if isinstance(value, Tensor)]
