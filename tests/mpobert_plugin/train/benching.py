"""A tiny benchmark: what its tests have in common."""

from __future__ import annotations

import torch

from mpobert_plugin.train.bench import BenchOptions
from mpobert_plugin.train.settings import PretrainConfig

SIZES = {
    "num_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "vocab_size": 96,
    "embedding_size": 8,
    "n": 3,
}
SETTINGS = {
    "length": 32,
    "micro_batch": 4,
    "batch_size": 64,
    "masked_most": 5,
    "workers": 0,
}
CPU = torch.device("cpu")
WORDS = [f"model.{name}={value}" for name, value in SIZES.items()]
WORDS += [f"{name}={value}" for name, value in SETTINGS.items()]


def options(**changed):
    given = {
        "models": ("mpobert-12",),
        "sizes": SIZES,
        "config": PretrainConfig(**SETTINGS),
        "formats": ("bf16",),
        "accumulation": 2,
        "rounds": 1,
        "turn": 0.0,
    }
    return BenchOptions(**{**given, **changed})
