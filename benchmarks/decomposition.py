"""Time of decompositions beside quimb, torchTT and TensorLy, taking turns in one process."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Callable

import matrices
import numpy as np

import tensornet as tn

Shape = tuple[tuple[int, ...], tuple[int, ...]]
Work = Callable[[], object]
RTOL = 0.1
TASKS = ("exact", "max_bond=64", f"rtol={RTOL}")


def fastest(works: list[Work], rounds: int) -> list[float]:
    """Return the shortest time of each call in seconds; the calls take turns.

    On a busy machine the shortest time says more than the mean, and taking turns lets a slow
    moment hit all of them. Calls that take far longer than the first one run once.
    """
    times: list[list[float]] = [[] for _ in works]
    for k in range(rounds + 1):
        for work, seen in zip(works, times, strict=True):
            if k > 1 and seen[0] > 10 * times[0][0] and seen[0] > 0.5:
                continue
            start = time.perf_counter()
            work()
            seen.append(time.perf_counter() - start)
    return [min(seen) for seen in times]


def fold(W: np.ndarray, shape: Shape) -> np.ndarray:
    n = len(shape[0])
    pairs = [axis for k in range(n) for axis in (k, n + k)]
    sites = [i * j for i, j in zip(*shape, strict=True)]
    return W.reshape(*shape[0], *shape[1]).transpose(pairs).reshape(sites)


def by_quimb(W: np.ndarray, shape: Shape, task: str) -> Work:
    # MatrixProductOperator.from_dense takes square matrices only; the same splits on the folded
    # tensor serve for all. Without a cutoff svd:eig takes its fastest way.
    import quimb.tensor as qtn

    options = {
        "exact": {"cutoff": 0.0},
        "max_bond=64": {"cutoff": 0.0, "max_bond": 64},
        f"rtol={RTOL}": {"cutoff": RTOL**2 / (len(shape[0]) - 1), "cutoff_mode": "rsum2"},
    }[task]

    def work() -> list[np.ndarray]:
        tensor = fold(W, shape)
        mps = qtn.MatrixProductState.from_dense(
            tensor, dims=tensor.shape, method="svd:eig", **options
        )
        mps.permute_arrays("lpr")
        return [np.asarray(a) for a in mps.arrays]

    return work


def by_torchtt(W: np.ndarray, shape: Shape, task: str) -> Work | None:
    if importlib.util.find_spec("torchtt") is None:
        return None
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchtt

    matrix, pairs = torch.from_numpy(W), list(zip(*shape, strict=True))
    eps = RTOL if task.startswith("rtol") else 1e-12
    rmax = {"rmax": 64} if task.startswith("max_bond") else {}
    return lambda: [core.numpy() for core in torchtt.TT(matrix, pairs, eps=eps, **rmax).cores]


def by_tensorly(W: np.ndarray, shape: Shape, task: str) -> Work | None:
    from tensorly.decomposition import tensor_train_matrix

    if task.startswith("rtol"):
        return None
    n = len(shape[0])
    rank = [1, *(64 if task.startswith("max_bond") else max(W.shape) for _ in range(n - 1)), 1]
    tensor = W.reshape(*shape[0], *shape[1])
    return lambda: list(tensor_train_matrix(tensor, rank))


def ours(W: np.ndarray, shape: tn.MatrixLayout, task: str) -> Work:
    options = {"exact": {}, "max_bond=64": {"max_bond": 64}, f"rtol={RTOL}": {"rtol": RTOL}}[task]
    return lambda: list(tn.mpo(W, shape, **options).cores)


def error(cores: list[np.ndarray], W: np.ndarray, layout: tn.MatrixLayout) -> float:
    split = [
        np.asarray(core, np.float64).reshape(-1, i, j, core.shape[-1] if k < last else 1)
        for k, (core, i, j, last) in enumerate(
            (c, i, j, len(cores) - 1)
            for c, i, j in zip(cores, layout.row_dims, layout.col_dims, strict=True)
        )
    ]
    found = tn.contract_matrix(split, layout)
    return float(np.linalg.norm(found - W) / np.linalg.norm(W))


def row(name: str, W: np.ndarray, task: str, rounds: int) -> str:
    layout = tn.matrix_layout(*W.shape)
    shape = (layout.row_dims, layout.col_dims)
    # The others get matrices of factorable sizes, padded for them before the clock starts.
    padded = np.zeros(layout.padded_shape, W.dtype)
    padded[: W.shape[0], : W.shape[1]] = W
    peers = [make(padded, shape, task) for make in (by_quimb, by_torchtt, by_tensorly)]
    works = [ours(W, layout, task), *peers]
    known = [work for work in works if work is not None]
    times = fastest(known, rounds)
    errors = [error(work(), W, layout) for work in known[:2]]
    taken = iter(times[1:])
    ratios = ["-" if work is None else f"{next(taken) / times[0]:.2f}" for work in works[1:]]
    return (
        f"| {name} {W.shape[0]} x {W.shape[1]} | {task} | {times[0] * 1e3:.1f} | "
        + " | ".join(ratios)
        + f" | {errors[0]:.3g} | {errors[1]:.3g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed calls of each entry")
    parser.add_argument("--only", default="", help="names of the matrices that hold this text")
    parser.add_argument("--large", action="store_true", help="4096 x 4096 and 4096 x 11008")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cases = [("Gaussian", matrices.gaussian(size)) for size in matrices.SIZES]
    cases += [("deficient", matrices.deficient(size)) for size in matrices.SIZES]
    cases += list(matrices.real().items())
    tasks = TASKS
    if options.large:
        tasks = TASKS[1:2]
        cases = [("Gaussian", matrices.gaussian(size)) for size in matrices.LARGE]
    print(
        "| matrix | task | tn.mpo, ms | quimb svd:eig, times | torchTT, times | TensorLy, times "
        "| error | quimb's |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name, W in cases:
        if options.only in name:
            for task in tasks:
                print(row(name, W, task, options.rounds), flush=True)


if __name__ == "__main__":
    main()
