"""Time of rounding A + A back to the bonds of A, beside quimb and torchTT, taking turns."""

from __future__ import annotations

import argparse
import warnings

import matrices
import numpy as np
from decomposition import Work, fastest

import tensornet as tn


def by_quimb(total: tn.MPO, bond: int) -> Work:
    import quimb.tensor as qtn

    fused = [core.reshape(core.shape[0], -1, core.shape[3]) for core in total.cores]
    chain = qtn.MatrixProductState([fused[0][0], *fused[1:-1], fused[-1][..., 0]], shape="lpr")

    def work() -> object:
        # Rounding is in place, and a copy shares the arrays.
        copy = chain.copy()
        copy.compress(max_bond=bond, method="svd:eig", cutoff=0.0)
        return copy

    return work


def by_torchtt(total: tn.MPO, bond: int) -> Work | None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchtt
        except ImportError:
            return None
    chain = torchtt.TT([torch.from_numpy(np.array(core)) for core in total.cores])
    return lambda: chain.round(1e-12, bond)


def row(size: tuple[int, int], bond: int, rounds: int) -> str:
    m = tn.mpo(matrices.gaussian(size), max_bond=bond)
    total = m + m
    works = [lambda: total.round(max_bond=bond), by_quimb(total, bond), by_torchtt(total, bond)]
    times = fastest([work for work in works if work is not None], rounds)
    ratios = [f"{t / times[0]:.2f}" for t in times[1:]] + ["-"] * (len(works) - len(times))
    found, exact = total.round(max_bond=bond).to_matrix() / 2, m.to_matrix()
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    return f"| {size[0]} x {size[1]} | {times[0] * 1e3:.1f} | {' | '.join(ratios)} | {error:.2g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each entry")
    parser.add_argument("--bond", type=int, default=64, help="bond of A")
    options = parser.parse_args()
    print("| matrix | round, ms | quimb svd:eig, times | torchTT, times | error |")
    print("|---|---:|---:|---:|---:|")
    for size in matrices.SIZES:
        print(row(size, options.bond, options.rounds), flush=True)


if __name__ == "__main__":
    main()
