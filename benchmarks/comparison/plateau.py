"""How soon a small model leaves the unigram plateau, on a CPU: what the recipes were chosen by.

$ python -m benchmarks.comparison.plateau CORPUS OUT bert std=0.085 branch=0.1667 steps=250

trains six layers, hidden 128, on 2k tokens a step, and prints the loss beside the entropy of the
corpus's tokens, which is what a model reaches that looks at no other token.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison.models import Sizes, build
from benchmarks.comparison.recipe import COMMON
from mpobert_plugin.train import PretrainConfig, open_corpus, pretrain

SIZES: dict[str, Any] = {"hidden": 128, "inner": 512, "positions": 64, "std": 0.085}
SETTINGS: dict[str, Any] = {
    **COMMON,
    "length": 64,
    "masked_most": 10,
    "batch_size": 32,
    "micro_batch": 32,
    "lr": 1e-3,
    "warmup_ratio": 0.15,
    "schedule": "constant",
    "precision": "fp32",
    "log_every": 25,
    "eval_every": 0,
    "workers": 0,
}


def entropy(corpus: Path) -> float:
    """Return the entropy of the tokens of a corpus, in natural units."""
    found = open_corpus(corpus)
    shares = np.bincount(found.tokens, minlength=found.vocab_size) / len(found.tokens)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def chosen(words: Sequence[str], start: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return options with those that words such as 'std=0.02' name for a data class."""
    types = {entry.name: type(entry.default) for entry in fields(kind)}
    given = dict(word.split("=", 1) for word in words)
    return start | {name: types[name](text) for name, text in given.items() if name in types}


def main(words: Sequence[str]) -> None:
    corpus, out, model, *options = words
    known = {entry.name for kind in (Sizes, PretrainConfig) for entry in fields(kind)}
    unknown = [option for option in options if option.split("=")[0] not in known]
    if unknown:
        raise SystemExit(f"options must be sizes or settings such as lr=1e-3, got {unknown}.")
    print(f"entropy of the tokens {entropy(Path(corpus) / 'train'):.3f}")
    sizes = Sizes(**chosen(options, SIZES, Sizes))
    config = PretrainConfig(**chosen(options, SETTINGS, PretrainConfig))
    pretrain(
        build(model, sizes, seed=0), Path(corpus) / "train", config, out, device="cpu", say=print
    )


if __name__ == "__main__":
    main(sys.argv[1:])
