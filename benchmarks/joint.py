"""Joint decompositions: sweeps that they need, and what they leave of a model with a metric.

Plain alternating least squares and over-relaxed: the 12 query matrices (256 x 256) of the BERT of
chemical reactions that the package rxnfp carries, or Gaussian ones where it is not installed;
five sites, full bonds, one central core.

``--packed FOLDER`` converts whole models that ``compress.py --pack`` has written, with and without
calibration: the same sharing and bonds, so as many parameters.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import time
from pathlib import Path
from typing import Any

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


def output_error(exact: Any, model: Any, metrics: dict[str, Any]) -> float:
    """Return the relative error of the outputs, root mean square over all matrices."""
    from mpobert_plugin.locate import family_of
    from mpobert_plugin.parts import modules_at

    squares = []
    for role, known in metrics.items():
        path = family_of(exact).matrices[role]
        pairs = zip(modules_at(exact, path).values(), modules_at(model, path).values(), strict=True)
        for (a, b), H in zip(pairs, known, strict=True):
            W, M = (module.weight.detach().double() for module in (a, b))
            missing = W - M
            squares.append(float(((missing @ H) * missing).sum() / ((W @ H) * W).sum()))
    return float(np.sqrt(np.mean(squares)))


def converted(options: argparse.Namespace) -> None:
    """Print what is left of models whose layers share central tensors."""
    from compress_data import load_tasks

    import mpobert_plugin as mp
    from mpobert_plugin.locate import family_of

    tasks = {task.name: task for task in load_tasks(Path(options.packed), "cpu", options.rows)}
    task = tasks[options.model]
    metrics = mp.input_metrics(task.model, task.calibration, list(family_of(task.model).matrices))
    print(f"{task.name}: score {task.score(task.model):.4f}", flush=True)
    for groups in options.groups:
        for calibration in (None, task.calibration):
            start = time.process_time()
            model = mp.convert(
                copy.deepcopy(task.model),
                sharing=f"groups:{groups}",
                fit="joint",
                max_bond=options.max_bond,
                calibration=calibration,
            )
            seconds = time.process_time() - start
            print(
                f"groups {groups}, {'plain ' if calibration is None else 'metric'}: "
                f"{mp.account(model).unique:,} parameters, "
                f"error of the outputs {output_error(task.model, model, metrics):.4f}, "
                f"of the matrices {mp.report(model).total_error:.4f}, "
                f"score {task.score(model):.4f}, {seconds:.0f} processor seconds",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packed", metavar="FOLDER", help="what compress.py --pack wrote")
    parser.add_argument("--model", default="minilm", choices=("minilm", "rxnfp"))
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--max-bond", type=int)
    parser.add_argument("--rows", type=int, help="judge by so many reactions or pairs alone")
    options = parser.parse_args()
    if options.packed:
        converted(options)
    else:
        sweeps()


def sweeps() -> None:
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
