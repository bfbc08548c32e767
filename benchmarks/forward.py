"""Time of a forward and of a training step of an MPOBERT, beside the same model with plain weights.

Rebuilding the weights costs the same for any batch, so the ratio falls as the batch grows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import AlbertConfig, AlbertForMaskedLM

import mpobert_plugin as mp

LENGTH = 64


def models() -> tuple[AlbertForMaskedLM, AlbertForMaskedLM]:
    """Return a plain model of 12 different layers and the MPOBERT of the same size."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 600,
        "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 12,
    }
    plain = AlbertForMaskedLM(AlbertConfig(num_hidden_groups=12, **sizes))
    return plain, mp.from_albert(AlbertForMaskedLM(AlbertConfig(**sizes)), num_layers=12)


def evaluate(model: AlbertForMaskedLM, tokens: torch.Tensor) -> None:
    with torch.no_grad():
        model(tokens)


def train(model: AlbertForMaskedLM, tokens: torch.Tensor) -> None:
    model(tokens, labels=tokens).loss.backward()
    model.zero_grad()


def shortest_times(
    a: Callable[[], None], b: Callable[[], None], repeats: int
) -> tuple[float, float]:
    """Return the shortest times of two calls that take turns, in milliseconds."""
    shortest = [float("inf")] * 2
    for turn in range(repeats + 1):
        for k, work in enumerate((a, b)):
            start = time.perf_counter()
            work()
            if turn:  # the first one warms up
                shortest[k] = min(shortest[k], 1e3 * (time.perf_counter() - start))
    return shortest[0], shortest[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls for each entry")
    repeats = parser.parse_args().repeats
    plain, model = models()
    print("| mode | sequences of 64 | plain, ms | MPOBERT, times |")
    print("|---|---:|---:|---:|")
    for name, run in (("evaluation", evaluate), ("training step", train)):
        for batch in (1, 4, 16, 64):
            tokens = torch.randint(1, 600, (batch, LENGTH))
            plain.train(run is train)
            model.train(run is train)
            theirs, ours = shortest_times(
                partial(run, plain, tokens), partial(run, model, tokens), repeats
            )
            print(f"| {name} | {batch} | {theirs:.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
