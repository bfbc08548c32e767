"""Depth: updates against depth, short trainings from many starts, and a real ALBERT deepened.

python benchmarks/stability.py sweep      exponents of all starts, a few minutes
python benchmarks/stability.py train      losses of short trainings, a few minutes
python benchmarks/stability.py gauges     the same trainings from two gauges
python benchmarks/stability.py deepen reactions.tsv    accuracy of a deepened ALBERT (rxnmapper)
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import masked_accuracy
from mpobert_plugin.demo.masking import training_batches
from mpobert_plugin.demo.reactions import textbook_reactions
from mpobert_plugin.demo.smiles import FIRST_TOKEN

STARTS: dict[str, dict[str, Any]] = {
    "branch 1 / L": {},
    "product": {"scale": "product"},
    "per core": {"scale": "per_core"},
    "nothing scaled": {"branch_multiplier": 1.0},
    "branch 1 / L, plain rates": {"depth_rates": False},
    "copies": {"start": "copies"},
    "copies, product": {"start": "copies", "scale": "product"},
    "copies, per core": {"start": "copies", "scale": "per_core"},
}
TRAINED = ("branch 1 / L", "product", "nothing scaled", "branch 1 / L, plain rates")
RATES = {"lamb": 1e-2, "adamw": 4e-3, "sgd": 0.5}
LAYERS, STEPS, ROWS, LONGEST = 24, 300, 8, 32


def sweep() -> dict[str, Any]:
    found = {}
    for name, options in STARTS.items():
        result = mp.stability.sweep(**options)
        print(f"{name}\n{result}\n", flush=True)
        found[name] = [vars(exponent) for exponent in result.exponents()]
    return found


def rows() -> list[list[int]]:
    texts = [reaction.smiles[:LONGEST] for reaction in textbook_reactions()]
    letters = {letter: FIRST_TOKEN + k for k, letter in enumerate(sorted(set("".join(texts))))}
    return [[letters[letter] for letter in text] for text in texts]


def losses(optimizer: str, seed: int, layers: int = LAYERS, **options: Any) -> list[float]:
    """Return the loss of each step of a short training of a fresh model."""
    depth_rates = options.pop("depth_rates", True)
    torch.manual_seed(seed)
    encoded = rows()
    model = mp.build(
        "mpobert-12",
        head="masked_lm",
        num_layers=layers,
        vocab_size=1 + max(map(max, encoded)),
        embedding_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        initializer_range=0.113,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **options,
    ).train()
    groups = mp.param_groups(
        model, optimizer, lr=RATES[optimizer], depth_rates=depth_rates, decayed=("central",)
    )
    rates = [group["lr"] for group in groups]
    makers = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "lamb": mp.train.Lamb}
    step = makers[optimizer](groups)
    found = []
    for number, batch in enumerate(training_batches(encoded, steps=STEPS, size=ROWS, seed=seed)):
        warm = min(1.0, (number + 1) / 24)
        for group, rate in zip(step.param_groups, rates, strict=True):
            group["lr"] = warm * rate
        loss = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        step.zero_grad()
        found.append(float(loss.detach()))
    return found


def compare(
    cases: dict[str, dict[str, Any]], optimizers: Sequence[str], seeds: int = 1
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print(f"{'mean loss of the last 24 steps, then of the first':<52}", flush=True)
    for optimizer in optimizers:
        for name, options in cases.items():
            runs = [losses(optimizer, seed, **options) for seed in range(seeds)]
            ends = [statistics.fmean(run[-24:]) for run in runs]
            found[f"{optimizer}, {name}"] = {"losses": runs, "last": ends}
            words = ", ".join(f"{end:.3f}" for end in ends)
            print(f"{optimizer:<6} {name:<28} {words}   {runs[0][0]:.3f}", flush=True)
    return found


def deepen(path: str) -> dict[str, float]:
    from mpobert_plugin.demo.smiles import SmilesTokenizer
    from mpobert_plugin.demo.source import find_albert, load_albert

    lines = Path(path).read_text(encoding="utf-8").splitlines()[1:97]
    encode = SmilesTokenizer.from_file(find_albert() / "vocab.txt").encode
    encoded = [encode(line.split("\t")[1]) for line in lines]
    albert, found = load_albert(), {}
    cases: dict[str, dict[str, Any]] = {
        "12 layers": {"num_layers": 12},
        "copies": {},
        "copies, product": {"deep_init": "copy_scaled"},
        "copies, per core": {"deep_init": "copy_scaled", "scale": "per_core"},
        "Xavier, product": {"deep_init": "xavier_scaled"},
        "Xavier, per core (preset paper)": {"preset": "paper"},
    }
    for name, options in cases.items():
        torch.manual_seed(0)
        model = mp.from_albert(albert, **{"num_layers": 24, **options})
        found[name] = masked_accuracy(model, encoded).accuracy
        print(f"{name:<34} {found[name]:.3f}", flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    what = sys.argv[1] if len(sys.argv) > 1 else "sweep"
    results = {
        "sweep": sweep,
        "train": lambda: compare({name: STARTS[name] for name in TRAINED}, ("lamb", "adamw")),
        "gauges": lambda: compare(
            {gauge: {"gauge": gauge, "layers": 6} for gauge in ("symmetric", "central", "left")},
            ("lamb", "adamw", "sgd"),
        ),
        "deepen": lambda: deepen(sys.argv[2]),
    }
    found = results[what]()
    if sys.argv[-1].endswith(".json"):
        Path(sys.argv[-1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
