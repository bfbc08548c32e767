"""Sweeps that a joint decomposition needs: plain alternating least squares, and over-relaxed.

The 12 query matrices (256 x 256) of the BERT of chemical reactions that the package rxnfp
carries, or Gaussian ones where it is not installed; five sites, full bonds, one central core.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np

import tensornet as tn

KEY = "bert.encoder.layer.{}.attention.self.query.weight"
FILE = "models/transformers/bert_pretrained/pytorch_model.bin"


def matrices() -> tuple[str, np.ndarray]:
    found = importlib.util.find_spec("rxnfp")
    if found is None or found.origin is None:
        return "Gaussian", np.random.default_rng(0).normal(size=(12, 256, 256))
    import torch

    state = torch.load(Path(found.origin).parent / FILE, weights_only=True, map_location="cpu")
    return "rxnfp", np.stack([state[KEY.format(k)].double().numpy() for k in range(12)])


def errors(Ws: np.ndarray, omega: float, sweeps: int) -> tuple[list[float], float]:
    """Return the relative error of the start and after each sweep, and processor seconds."""
    from tensornet import joint_fit

    joint_fit._OMEGA = omega
    start = time.process_time()
    found = tn.shared_mpo(Ws, starts=1, max_sweeps=sweeps, tol=0.0)
    return list(found.history), time.process_time() - start


def main() -> None:
    name, Ws = matrices()
    plain, plain_time = errors(Ws, 1.0, 200)
    fast, fast_time = errors(Ws, 1.9, 60)
    print(f"{name}, 12 matrices of 256 x 256")
    for what, history in (("plain", plain), ("over-relaxed", fast)):
        marks = [k for k in (10, 25, 50, 60, 100, 200) if k < len(history)]
        print(f"{what:13}", ", ".join(f"{k}: {history[k]:.4f}" for k in marks))
    sweeps = next((k for k, e in enumerate(fast) if e <= plain[-1]), None)
    each = plain_time / 200, fast_time / 60
    print(
        f"200 plain sweeps are matched after {sweeps}; seconds a sweep {each[0]:.3f}, {each[1]:.3f}"
    )


if __name__ == "__main__":
    main()
