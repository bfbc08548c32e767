"""Files of weights that the tests of whole files read."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save_file

from tensornet.streaming.source import narrowed, widened


def smooth(rows, cols, dtype=np.float32, shift=0.0):
    x, y = np.linspace(0, 1, rows)[:, None], np.linspace(0, 1, cols)
    return np.exp(-3 * (x - y - shift) ** 2).astype(dtype)


def relative(found, matrix):
    return np.linalg.norm(found.astype(np.float64) - matrix) / np.linalg.norm(matrix)


def small_model(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "a.weight": smooth(64, 96),
        "a.bias": rng.standard_normal(64).astype(np.float32),
        "b.weight": smooth(48, 64, np.float64, 0.3),
        "noise.weight": rng.standard_normal((64, 64)).astype(np.float32),
        "ids": np.arange(64 * 64).reshape(64, 64),
        "scalar": np.array(3.0, np.float32),
        "tiny.weight": smooth(4, 4),
        "empty": np.zeros((0, 3), np.float32),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path, tensors


def sharded(tmp_path, n=2):
    folder = tmp_path / "in"
    folder.mkdir()
    weight_map = {}
    for k in range(n):
        name = f"model-{k + 1:05d}-of-{n:05d}.safetensors"
        tensors = {f"l{k}.weight": smooth(64, 64, shift=k / 10), f"l{k}.bias": np.ones(3)}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index, weight_map


def bf16_file(path, values):
    bits = narrowed(values)
    header = {"w": {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [0, bits.nbytes]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes())
    return widened(bits)
