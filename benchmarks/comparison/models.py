"""The models of the comparison: who shares what, and how they are brought to equal parameters.

$ python -m benchmarks.comparison.models

prints the counts. Depth and width are the same for all; where two models could not have as many
parameters at the same width, the plain BERT is made narrower and the ALBERT wider.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AlbertConfig, AlbertForPreTraining, BertConfig, BertForPreTraining

import mpobert_plugin as mp
import tensornet as tn
from mpobert_plugin.parts import linears_of

SQUARE = ("query", "key", "value", "attention_output")
FEED_FORWARD = ("ffn_in", "ffn_out")
BRANCH_ENDS = ("attention_output", "ffn_out")
SOURCE, AGAIN = "albert", "albert-again"
# These begin where the ALBERT ends, and so see twice the text: one as it is, one converted.
STARTED = (AGAIN, "mpo5-from-albert")
# Widths and ranks of feed-forward layers are chosen in steps that tensor cores like.
_STEP = 8
TOLERANCE = 0.01


@dataclass(frozen=True)
class Sizes:
    """Sizes that all models have, and how they start.

    Matrices have the deviation `std`, those at the ends of residual branches `branch` times as
    much; `wide` is (hidden, heads) of the wider ALBERT.
    """

    layers: int = 6
    hidden: int = 256
    inner: int = 1024
    heads: int = 4
    embedding: int = 128
    vocabulary: int = 8192
    positions: int = 128
    std: float = 0.02
    branch: float = 1.0
    wide: tuple[int, int] = (320, 5)

    def host(self, **other: Any) -> dict[str, Any]:
        """Return the options of a host library's configuration, without any dropout."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "initializer_range": self.std,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **other,
        }


def count(model: torch.nn.Module) -> int:
    """Return the number of stored parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def damped(model: Any, factor: float) -> Any:
    """Return the plain model with the ends of its residual branches multiplied, in place."""
    with torch.no_grad():
        for role in BRANCH_ENDS if factor != 1.0 else ():
            weights = [linear.weight for linear in linears_of(model, role).values()]
            for weight in {id(weight): weight for weight in weights}.values():
                weight.mul_(factor)
    return model


def bert(sizes: Sizes, **other: Any) -> Any:
    return damped(BertForPreTraining(BertConfig(**sizes.host(**other))), sizes.branch)


def albert(sizes: Sizes, **other: Any) -> Any:
    options = {"embedding_size": sizes.embedding, "classifier_dropout_prob": 0.0, **other}
    return damped(AlbertForPreTraining(AlbertConfig(**sizes.host(**options))), sizes.branch)


def converted(sizes: Sizes, **options: Any) -> Any:
    """Return a fresh converted model whose matrices have the same variance as the plain ones."""
    host = sizes.host(embedding_size=sizes.embedding, classifier_dropout_prob=0.0)
    fixed = {"num_layers": host.pop("num_hidden_layers"), "branch_multiplier": sizes.branch}
    return mp.build("mpobert-12", **fixed, **host, **options)


def five(sizes: Sizes) -> Any:
    return converted(sizes, n=5)


def three(sizes: Sizes) -> Any:
    """Return three cores: the outer two of the five on each side are one, at full bonds."""
    shapes = {}
    for size in (sizes.hidden, sizes.inner):
        a, b, c, d, e = tn.factorize(size, 5)
        shapes[size] = (a * b, c, d * e)
    return converted(sizes, shapes=shapes)


def shared_lora(sizes: Sizes) -> Any:
    """Return everything shared, and adapters as large as the auxiliary tensors of five cores."""
    with torch.device("meta"):
        banks = five(sizes).base_model.mpo
    ranks = {}
    for role in (*SQUARE, *FEED_FORWARD):
        auxiliary = sum(t.numel() for n, t in banks[role].named_parameters() if "auxiliary" in n)
        wide = sizes.hidden + (sizes.inner if role in FEED_FORWARD else sizes.hidden)
        ranks[role] = round(auxiliary / sizes.layers / wide)
    return converted(sizes, n=1, sharing="albert", adapter_rank=ranks, adapter_targets=tuple(ranks))


def slim(sizes: Sizes) -> Any:
    """Return a plain BERT as wide as the embeddings of the others, with as many parameters."""
    return _filled(sizes, bert, hidden_size=sizes.embedding)


def wide(sizes: Sizes) -> Any:
    """Return a wider ALBERT with as many parameters."""
    hidden, heads = sizes.wide
    return _filled(sizes, albert, hidden_size=hidden, num_attention_heads=heads)


def _filled(sizes: Sizes, make: Callable[..., Any], **options: Any) -> Any:
    """Return the model whose feed-forward width brings it nearest to five cores."""
    with torch.device("meta"):
        wanted = count(five(sizes))
        least = count(make(sizes, **options, intermediate_size=_STEP))
        step = count(make(sizes, **options, intermediate_size=2 * _STEP)) - least
    inner = _STEP * (1 + max(0, round((wanted - least) / step)))
    return make(sizes, **options, intermediate_size=inner)


@dataclass(frozen=True)
class Kind:
    """A model: what it is, how it is made, and whether its count must match."""

    text: str
    make: Callable[[Sizes], Any]
    matched: bool = True


MODELS = {
    "bert": Kind("plain BERT of the same width", bert, matched=False),
    SOURCE: Kind("ALBERT of the same width, all shared", albert, matched=False),
    "bert-slim": Kind("plain BERT, narrower", slim),
    "albert-wide": Kind("ALBERT, wider, all shared", wide),
    "mpo5": Kind("MPOBERT, five cores", five),
    "mpo3": Kind("MPOBERT, three cores", three),
    "shared-lora": Kind("all shared, with LoRA", shared_lora),
    AGAIN: Kind("the ALBERT of the same width, trained again", albert, matched=False),
    "mpo5-from-albert": Kind("MPOBERT, five cores, from the ALBERT", five),
}


def build(name: str, sizes: Sizes, seed: int, source: Any = None) -> Any:
    """Return a model with weights of a seed; one that starts from an ALBERT is given it."""
    torch.manual_seed(seed)
    if name == AGAIN:
        return source
    if name in STARTED:
        return mp.from_albert(source, num_layers=sizes.layers, n=5)
    return MODELS[name].make(sizes)


def counts(sizes: Sizes) -> dict[str, int]:
    """Return the parameters of each model; an error when those to be matched are further apart."""
    with torch.device("meta"):
        found = {name: count(kind.make(sizes)) for name, kind in MODELS.items()}
    wanted = found["mpo5"]
    far = {n: c for n, c in found.items() if abs(c - wanted) > TOLERANCE * wanted}
    far = {name: number for name, number in far.items() if MODELS[name].matched}
    if far:
        raise ValueError(f"parameters must be within {TOLERANCE:.0%} of {wanted:,}, got {far}.")
    return found


def main() -> None:
    found = counts(Sizes())
    for name, number in found.items():
        share = f"{number / found['mpo5'] - 1:+.2%}" if MODELS[name].matched else ""
        print(f"{name:<18}{number:>12,}  {share:>7}  {MODELS[name].text}")


if __name__ == "__main__":
    main()
