"""Time of one decomposition, beside TensorLy's and beside one plain SVD, in the same run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import tensorly as tl
from tensorly.decomposition import tensor_train_matrix

import tensornet as tn

SIZES = ((768, 768), (768, 3072), (1024, 4096))
Shape = tuple[tuple[int, ...], tuple[int, ...]]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def by_tensorly(W: np.ndarray, shape: Shape, bond: int) -> Callable[[], object]:
    tensor = W.reshape(*shape[0], *shape[1])
    rank = [1, *(bond for _ in shape[0][1:]), 1]
    return lambda: tensor_train_matrix(tensor, rank)


def relative_error(found: np.ndarray, W: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - W) / np.linalg.norm(W))


def row(size: tuple[int, int], bond: int | None, repeats: int) -> str:
    W = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    shape = (tn.factorize(size[0], 5), tn.factorize(size[1], 5))
    peer_bond = bond or max(tn.mpo(W, shape, bonds="full").bond_dims)
    ours = seconds(lambda: tn.mpo(W, shape, max_bond=bond), repeats)
    peer = by_tensorly(W, shape, peer_bond)
    theirs = seconds(peer, repeats)
    svd = seconds(lambda: np.linalg.svd(W, full_matrices=False), repeats)
    error = tn.mpo(W, shape, max_bond=bond).certificate.relative_error
    peer_error = relative_error(np.asarray(tl.tt_matrix_to_matrix(peer())), W)
    return (
        f"| {size[0]} x {size[1]} | {bond or 'full'} | {ours * 1e3:.0f} | {theirs / ours:.1f} "
        f"| {svd / ours:.1f} | {error:.2g} | {peer_error:.2g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls for each entry")
    repeats = parser.parse_args().repeats
    print("| matrix | max_bond | tn.mpo, ms | TensorLy, times | SVD, times | error | TensorLy's |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for size in SIZES:
        for bond in (64, None):
            print(row(size, bond, repeats), flush=True)


if __name__ == "__main__":
    main()
