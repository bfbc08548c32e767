"""A real word embedding as an MPO: error, size and sentence similarity beside an SVD of its size.

The embedding of a six-layer English BERT is cut alone, everything else stays. Similarity is the
rank correlation (Spearman) between the cosine of two sentences' mean vectors and what people said,
on the development set of STS-B.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import torch
from metric import loaded, model_folder
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoTokenizer, BertModel

import mpobert_plugin as mp

BONDS = {5: (8, 16, 32, 64, 128, 192), 3: (8, 16, 32, 64, 128)}


def pairs(path: Path, step: int) -> tuple[list[str], list[str], list[float]]:
    """Return sentences and scores of every so many rows of STS-B, whose genres come in blocks."""
    with path.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[::step]
    first, second = ([row[f"sentence{k}"] for row in rows] for k in (1, 2))
    return first, second, [float(row["score"]) for row in rows]


@torch.no_grad()
def vectors(model: BertModel, tokenizer: Any, texts: list[str]) -> Tensor:
    """Return the mean vector of each text, scaled to length 1."""
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    found = torch.empty(len(texts), model.config.hidden_size)
    for start in range(0, len(order), 64):
        picked = order[start : start + 64]
        given = tokenizer([texts[k] for k in picked], return_tensors="pt", padding=True)
        mask = given["attention_mask"].unsqueeze(-1)
        found[picked] = (model(**given)[0] * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(found, dim=1)


def similarity(model: BertModel, tokenizer: Any, data: tuple[list[str], list[str], Any]) -> float:
    first, second, scores = data
    cosines = (vectors(model, tokenizer, first) * vectors(model, tokenizer, second)).sum(1)
    return float(spearmanr(cosines.numpy(), scores).statistic)


def cut(**options: Any) -> tuple[BertModel, int, float]:
    """Return the model with a cut embedding, the parameters of that, and its relative error."""
    model = mp.convert(loaded()[0], targets=["embedding"], **options)
    (spec,) = model.config.quantization_config.plan.outside
    size = sum(math.prod(shape) for shape in spec.tensor_shapes().values())
    return model, size, spec.errors[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sts", type=Path, help="dev.tsv of STS-B")
    parser.add_argument("--every", type=int, default=1, help="take every so many pairs")
    given = parser.parse_args()
    data = pairs(given.sts, given.every)
    tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
    plain = loaded()[0]
    rows, cols = plain.embeddings.word_embeddings.weight.shape
    score = similarity(plain, tokenizer, data)
    print(f"plain: {rows} x {cols}, {rows * cols:,} parameters, Spearman {score:.4f}\n")
    print("| layout | bond | stored | of plain | error | Spearman |")
    print("|---|---:|---:|---:|---:|---:|")
    for sites, bonds in BONDS.items():
        for bond in bonds:
            model, size, error = cut(n=sites, max_bond=bond)
            show(f"{sites} sites", bond, size, rows * cols, error, model, tokenizer, data)
            rank = max(1, size // (rows + cols))
            model, size, error = cut(shapes=((rows, 1), (1, cols)), max_bond=rank)
            show("SVD", rank, size, rows * cols, error, model, tokenizer, data)


def show(
    name: str, bond: int, size: int, plain: int, error: float, model: Any, tokenizer: Any, data: Any
) -> None:
    score = similarity(model, tokenizer, data)
    ratio = size / plain
    print(f"| {name} | {bond} | {size:,} | {ratio:.4f} | {error:.3f} | {score:.4f} |", flush=True)


if __name__ == "__main__":
    main()
