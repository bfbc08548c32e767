"""Time of one decomposition, beside TensorLy's and beside one plain SVD, in the same run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorly as tl
from tensorly.decomposition import tensor_train_matrix

import tensornet as tn

SIZES = ((768, 768), (768, 3072), (1024, 4096))
Shape = tuple[tuple[int, ...], tuple[int, ...]]
Work = Callable[[], object]


def fastest(works: list[Work], rounds: int) -> list[float]:
    """Return the shortest time of each call in seconds; the calls take turns.

    On a busy machine the shortest time says more than the mean, and taking turns lets a slow
    moment hit all of them.
    """
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seen in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            seen.append(time.perf_counter() - start)
    return [min(seen) for seen in times]


def by_tensorly(W: np.ndarray, shape: Shape, bond: int) -> Work:
    tensor = W.reshape(*shape[0], *shape[1])
    rank = [1, *(bond for _ in shape[0][1:]), 1]
    return lambda: tensor_train_matrix(tensor, rank)


def relative_error(found: np.ndarray, W: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - W) / np.linalg.norm(W))


def row(size: tuple[int, int], bond: int | None, rounds: int) -> str:
    W = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    shape = (tn.factorize(size[0], 5), tn.factorize(size[1], 5))
    result = tn.mpo(W, shape, max_bond=bond)
    peer = by_tensorly(W, shape, bond or max(result.bond_dims))
    error = relative_error(result.to_matrix(), W)
    peer_error = relative_error(np.asarray(tl.tt_matrix_to_matrix(peer())), W)
    works: list[Work] = [
        lambda: tn.mpo(W, shape, max_bond=bond),
        peer,
        lambda: np.linalg.svd(W, full_matrices=False),
    ]
    ours, theirs, svd = fastest(works, rounds)
    return (
        f"| {size[0]} x {size[1]} | {bond or 'full'} | {ours * 1e3:.0f} | {theirs / ours:.1f} "
        f"| {svd / ours:.1f} | {error:.3g} | {peer_error:.3g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed calls of each entry")
    rounds = parser.parse_args().rounds
    print("| matrix | max_bond | tn.mpo, ms | TensorLy, times | SVD, times | error | TensorLy's |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for size in SIZES:
        for bond in (64, None):
            print(row(size, bond, rounds), flush=True)


if __name__ == "__main__":
    main()
