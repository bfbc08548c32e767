"""A tiny run: what tests of the loop and the processes that they start both make."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import mpobert_plugin as mp
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.store import open_corpus
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.settings_file import read_settings

DOCS = [
    f"The number {k} is here. It is followed by {k + 1}. And then comes {k + 2}." for k in range(40)
]
BASE = PretrainConfig(
    steps=8,
    batch_size=8,
    micro_batch=4,
    length=32,
    masked_most=5,
    lr=1e-2,
    precision="fp32",
    log_every=2,
    eval_every=0,
    save_every=3,
    workers=0,
    # Named, for what 'auto' measures may differ between two runs.
    reconstruction="per_step",
)


def corpus_in(folder):
    return prepare(DOCS, folder, Vocabulary(size=90))


def fresh(seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    small = {"vocab_size": 96, "embedding_size": 8, "max_position_embeddings": 48, "n": 3}
    small["classifier_dropout_prob"] = options.get("hidden_dropout_prob", 0.0)
    return mp.build("mpobert-12", **{"num_layers": 2, **sizes, **small, **options})


def main(corpus: str, out: str, *words: str) -> None:
    torch.set_num_threads(1)
    base = BASE.to_dict()
    config = PretrainConfig(**{**base, **changes(words)})
    dropout = 0.1 if "dropout" in out else 0.0
    model = fresh(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    result = pretrain(model, open_corpus(corpus), config, out, device="cpu", say=tell)
    tell(f"RESULT {result.step} {result.finished} {result.signal}")


def changes(words):
    default = PretrainConfig().to_dict()
    given = read_settings(None, list(words)).to_dict()
    return {name: value for name, value in given.items() if value != default[name]}


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main(*sys.argv[1:])
