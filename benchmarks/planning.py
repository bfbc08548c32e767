"""How near ``m @ x`` comes to the best order, and how long planning takes.

Float32 on one thread. Every order that is expected to take less than ``--within`` times the
fastest is timed, and always building W, both sweeps and the fewest multiply-adds unless they
need 4 times the multiply-adds of the best. ``--fit`` prints the times that the orders are
ranked by, from the same measurements.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.backend import backend_of
from tensornet.contract import orders as o
from tensornet.contract.apply import apply_cores
from tensornet.cores import operand

SHAPES = [(256, 256), (768, 768), (768, 3072), (1024, 4096), (4096, 1024), (4096, 4096)]
BONDS: list[Any] = [1, 4, 16, 64, 256, "full"]
BATCHES = [1, 8, 64, 512, 4096]


def arrays(library: str, made: list[Any]) -> list[Any]:
    if library == "numpy":
        return made
    import torch

    torch.set_num_threads(1)
    return [torch.from_numpy(a) for a in made]


def cores_of(layout: tn.MatrixLayout, bond: Any, rng: np.random.Generator) -> list[Any]:
    bonds = layout.structural_bonds(None if bond == "full" else bond)
    made = []
    for shape in layout.core_shapes(bonds):
        scale = np.sqrt(shape[0] * shape[2])
        made.append((rng.standard_normal(shape) / scale).astype(np.float32))
    return made


def seconds(runs: list[Callable[[], object]], budget: float) -> list[float]:
    """Return the shortest time of each, the runs taking turns.

    Seconds of the processor, which are those of the clock on a machine that does nothing else
    and one thread. What is twice as slow as the fastest after six turns is not run again.
    """
    best = [np.inf] * len(runs)
    turns = 0
    while turns < 6 or (turns * sum(best) < budget and turns < 300):
        for k, run in enumerate(runs):
            if turns > 5 and best[k] > 2 * min(best):
                continue
            start = time.process_time()
            run()
            best[k] = min(best[k], time.process_time() - start)
        turns += 1
    return best


def tried(layout: Any, bonds: Any, batch: int, speed: Any, within: float) -> list[Any]:
    found = o.ranked(layout, bonds, batch, speed)

    def expected(order: Any) -> float:
        return sum(
            c * s for c, s in zip(o.features(order, layout, bonds, batch), speed, strict=True)
        )

    work = {order: o.counts(order, layout, bonds, batch)[0] for order in found}
    least = min(work.values())
    chosen = [order for order in found if expected(order) < within * expected(found[0])][:6]
    plain = [order for order in found if order.name != "factorized"]
    fewest = min(found, key=lambda order: work[order])
    for order in (*plain, fewest):
        if order not in chosen and work[order] <= 4 * least:
            chosen.append(order)
    return chosen


def point(library: str, shape: Any, bond: Any, batch: int, within: float, budget: float) -> Any:
    rng = np.random.default_rng(0)
    layout = tn.matrix_layout(*shape)
    cores = arrays(library, cores_of(layout, bond, rng))
    x, w = arrays(
        library,
        [
            rng.standard_normal((shape[1], batch), dtype=np.float32),
            rng.standard_normal(shape, dtype=np.float32),
        ],
    )
    m = tn.MPO(cores)
    bonds, backend = m.bond_dims, backend_of(x)
    speed = o.speed_of(backend.name, "cpu")
    chosen = tried(layout, bonds, batch, speed, within)
    runs = [
        lambda q=order: apply_cores(
            m.cores, layout, operand("m @ x", x, m.cores[0], shape[1], 0), q
        )
        for order in chosen
    ]
    times = seconds([lambda: m @ x, lambda: w @ x, *runs], budget)
    return {
        "shape": shape,
        "bond": bond,
        "batch": batch,
        "ours": times[0],
        "dense": times[1],
        "orders": [
            [order.name, order.starts, order.side, t, o.features(order, layout, bonds, batch)]
            for order, t in zip(chosen, times[2:], strict=True)
        ],
        "followed": o.ranked(layout, bonds, batch, speed)[0].name,
    }


def fit(rows: list[Any]) -> list[float]:
    from scipy.optimize import nnls

    lines = [(f, t) for row in rows for *_, t, f in row["orders"]]
    a = np.array([np.array(f, float) / t for f, t in lines])
    scale = a.max(axis=0)
    weights = np.ones(len(lines))
    for _ in range(20):  # towards the median: a few slow measurements do not count
        found, _ = nnls(a / scale * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(a / scale @ found - 1), 0.05))
    return list(found / scale)


def report(rows: list[Any]) -> None:
    ratios = np.array([r["ours"] / min(t for *_, t, _ in r["orders"]) for r in rows])
    for share in (50, 90, 95, 100):
        print(
            f"m @ x against the best order, percentile {share}: {np.percentile(ratios, share):.3f}"
        )
    for k in np.argsort(ratios)[::-1][:12]:
        row = rows[k]
        best = min(row["orders"], key=lambda q: q[3])
        print(
            f"  {ratios[k]:.2f} {row['shape']} bond {row['bond']} batch {row['batch']}: followed "
            f"{row['followed']} {row['ours'] * 1e3:.3g} ms, best {best[:3]} {best[3] * 1e3:.3g} ms"
        )
    for row in rows:
        if row["batch"] == 4096 and row["bond"] == 64:
            print(
                f"MPO times 4096 vectors, bond 64, {row['shape']}: "
                f"{row['ours'] / row['dense']:.3f} times the dense product"
            )


def planning_time() -> None:
    from tensornet.contract.expression import read
    from tensornet.contract.planner import best_path

    ring = read("abc,cde,efg,ghi,ija,bdfhj->", (*((8,) * 3,) * 5, (8,) * 5))
    dense = read("abcx,bcdy,cdez,defu,efav,abf->xyzuv", (*((6,) * 4,) * 5, (6,) * 3))
    for name, network in (("a ring", ring), ("a dense one", dense)):
        times = []
        for _ in range(50):
            start = time.perf_counter()
            best_path.__wrapped__(network, None, "multiply_adds")
            times.append(time.perf_counter() - start)
        print(
            f"planning six operands, {name}: {min(times) * 1e3:.2f} ms, "
            f"median {np.median(times) * 1e3:.2f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="numpy", choices=["numpy", "torch"])
    parser.add_argument("--within", type=float, default=3.0)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for each point")
    parser.add_argument("--total", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--save", help="write the measurements to this file")
    options = parser.parse_args()
    planning_time()
    grid = list(itertools.product(SHAPES, BONDS, BATCHES))
    order = np.random.default_rng(0).permutation(len(grid))
    rows, first = [], time.perf_counter()
    for k in order:
        if time.perf_counter() - first > options.total:
            break
        rows.append(point(options.library, *grid[k], options.within, options.budget))
    print(f"{len(rows)} of {len(grid)} points, {options.library}")
    report(rows)
    if options.save:
        Path(options.save).write_text(json.dumps(rows), encoding="utf-8")
    if options.fit:
        print("fit", [f"{value:.3g}" for value in fit(rows)])


if __name__ == "__main__":
    main()
