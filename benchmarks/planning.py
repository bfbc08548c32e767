"""How near ``m @ x`` comes to the best order, and how long planning takes.

Float32 on one thread. Of all orders the ``--most`` that are expected to be fastest are timed, and
always building W, both sweeps and the fewest multiply-adds unless they need 4 times the
multiply-adds of the best. ``--save`` keeps the measurements; ``--fit`` prints the times by which
orders are ranked, from such files, and how well they rank them. They are fitted on a grid of
other shapes, bonds and batches than the one that is judged.
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
from tensornet.contract import orders as o
from tensornet.contract import speed as v
from tensornet.contract.apply import apply_cores
from tensornet.cores import operand

Grid = tuple[list[tuple[int, int]], list[Any], list[int]]
GRIDS: dict[str, Grid] = {
    "judge": (
        [(256, 256), (768, 768), (768, 3072), (1024, 4096), (4096, 1024), (4096, 4096)],
        [1, 4, 16, 64, 256, "full"],
        [1, 8, 64, 512, 4096],
    ),
    "middle": (
        [(256, 256), (768, 768), (768, 3072), (1024, 4096), (4096, 1024)],
        [1, 4, 16, 64, 256, "full"],
        [1, 8, 64, 512],
    ),
    "fit": (
        [(512, 512), (640, 1920), (1536, 384), (2048, 1024), (1024, 1024), (3072, 768)],
        [2, 8, 32, 128, "full"],
        [1, 3, 8, 24, 128, 1024, 3072],
    ),
}

_MOST_MOVED = 2**30  # elements
_FAR = 1.1


def place(library: str) -> str:
    return "cuda" if library == "cuda" else "cpu"


def speed_of(library: str) -> v.Speed:
    return v.speed_of("numpy" if library == "numpy" else "pytorch", place(library))


def arrays(library: str, made: list[Any]) -> list[Any]:
    if library == "numpy":
        return made
    import torch

    torch.set_num_threads(1)
    return [torch.from_numpy(a).to(place(library)) for a in made]


def cores_of(layout: tn.MatrixLayout, bond: Any, rng: np.random.Generator) -> list[Any]:
    bonds = layout.structural_bonds(None if bond == "full" else bond)
    made = []
    for shape in layout.core_shapes(bonds):
        scale = np.sqrt(shape[0] * shape[2])
        made.append((rng.standard_normal(shape) / scale).astype(np.float32))
    return made


def clock(library: str) -> float:
    """Return seconds of the processor: they are those of the clock on an idle machine.

    On a GPU, seconds of the clock once it has done its work.
    """
    if library != "cuda":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(runs: list[Callable[[], object]], budget: float, library: str) -> list[float]:
    """Return the shortest time of each, the runs taking turns.

    What is far slower than the fastest is not run again.
    """
    best = [np.inf] * len(runs)
    turns = 0
    while turns < 6 or (turns * sum(best) < budget and turns < 300):
        if turns > 2 and turns * min(best) > 2.0:
            break
        for k, run in enumerate(runs):
            if turns > 1 and best[k] > (3.0 if turns < 6 else 1.5) * min(best):
                continue
            start = clock(library)
            run()
            best[k] = min(best[k], clock(library) - start)
        turns += 1
    return best


def tried(layout: Any, bonds: Any, batch: int, speed: Any, most: int) -> list[Any]:
    found = v.ranked(layout, bonds, batch, speed)
    work = {order: o.counts(order, layout, bonds, batch)[0] for order in found}
    least = min(work.values())
    # What moves gigabytes is never the fastest here, and could take all memory.
    moved = {order: o.counts(order, layout, bonds, batch)[1] for order in found}
    found = [order for order in found if moved[order] <= max(_MOST_MOVED, min(moved.values()))]
    chosen = list(found[:most])
    plain = [order for order in found if order.name != "factorized"]
    fewest = min(found, key=lambda order: work[order])
    for order in (*plain, fewest):
        if order not in chosen and work[order] <= 4 * least:
            chosen.append(order)
    return chosen


def point(library: str, shape: Any, bond: Any, batch: int, most: int, budget: float) -> Any:
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
    bonds, speed = m.bond_dims, speed_of(library)
    chosen = tried(layout, bonds, batch, speed, most)
    runs = [
        lambda q=order: apply_cores(
            m.cores, layout, operand("m @ x", x, m.cores[0], shape[1], 0), q
        )
        for order in chosen
    ]
    times = seconds([lambda: m @ x, lambda: w @ x, *runs], budget, library)
    # The shortest of many measurements flatters the best order: that one is timed once more.
    best = runs[int(np.argmin(times[2:]))]
    ours, again = seconds([lambda: m @ x, best], budget, library)
    return {
        "shape": shape,
        "bond": bond,
        "batch": batch,
        "ours": ours,
        "best": again,
        "dense": times[1],
        "orders": [
            [order.name, order.starts, order.side, t]
            for order, t in zip(chosen, times[2:], strict=True)
        ],
        "followed": v.ranked(layout, bonds, batch, speed)[0].name,
    }


def features(row: Any, library: str) -> list[tuple[int, ...]]:
    layout = tn.matrix_layout(*row["shape"])
    bonds = layout.structural_bonds(None if row["bond"] == "full" else row["bond"])
    few, n = speed_of(library).few, layout.n_sites
    return [
        v.features(o.Order(tuple(starts), side, n), layout, bonds, row["batch"], few)
        for _, starts, side, _ in row["orders"]
    ]


def fit(rows: list[Any], library: str) -> list[float]:
    from scipy.optimize import nnls

    lines = [
        (f, order[3])
        for row in rows
        for order, f in zip(row["orders"], features(row, library), strict=True)
    ]
    a = np.array([np.array(f, float) / t for f, t in lines])
    scale = np.maximum(a.max(axis=0), 1e-300)
    weights = np.ones(len(lines))
    for _ in range(20):  # towards the median: a few slow measurements do not count
        found, _ = nnls(a / scale * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(a / scale @ found - 1), 0.05))
    return list(found / scale)


def judge(rows: list[Any], library: str, times: list[float]) -> list[float]:
    """Return how many times longer than the best the order takes that ``times`` rank first."""
    found = []
    for row in rows:
        expected = [float(np.dot(f, times)) for f in features(row, library)]
        measured = [order[3] for order in row["orders"]]
        found.append(measured[int(np.argmin(expected))] / min(measured))
    return found


def ratio(row: Any) -> float:
    return max(row["ours"] / row["best"], 1.0)


def judged_again(rows: list[Any], options: argparse.Namespace) -> list[Any]:
    """Return the points with the median of three measurements of each that was far from the best.

    Other work on a machine makes points slow that are not. It makes others fast, too: as many
    points that were near the best are measured again, and replace what they were.
    """
    far = [k for k, row in enumerate(rows) if ratio(row) > _FAR]
    near = [k for k in range(len(rows)) if k not in far]
    chosen = np.random.default_rng(options.seed).choice(near, min(len(far), len(near)), False)
    made = list(rows)
    for k in [*far, *chosen.tolist()]:
        place = (rows[k]["shape"], rows[k]["bond"], rows[k]["batch"])
        count = 2 if k in far else 1
        how = (options.most, options.budget)
        others = [point(options.library, *place, *how) for _ in range(count)]
        both = [rows[k], *others] if k in far else others
        made[k] = sorted(both, key=ratio)[len(both) // 2]
    print(f"{len(far)} points above {_FAR} measured three times, {len(chosen)} others again")
    return made


def report(rows: list[Any]) -> None:
    ratios = np.array([ratio(row) for row in rows])
    for share in (50, 90, 95, 100):
        print(
            f"m @ x against the best order, percentile {share}: {np.percentile(ratios, share):.3f}"
        )
    for k in np.argsort(ratios)[::-1][:12]:
        row = rows[k]
        best = min(row["orders"], key=lambda q: q[3])
        print(
            f"  {ratios[k]:.2f} {row['shape']} bond {row['bond']} batch {row['batch']}: followed "
            f"{row['followed']} {row['ours'] * 1e3:.3g} ms, "
            f"best {best[:3]} {row['best'] * 1e3:.3g} ms"
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


def settle() -> None:
    """Free 31 MiB once: from then on glibc keeps smaller arrays for later ones.

    Otherwise the times of a point would depend on the points before it.
    """
    np.ones(31 << 18, dtype=np.float32).sum()


def measured(options: argparse.Namespace) -> list[Any]:
    grid = list(itertools.product(*GRIDS[options.grid]))
    order = np.random.default_rng(options.seed).permutation(len(grid))
    save = Path(options.save) if options.save else None
    rows = json.loads(save.read_text("utf-8")) if save and save.exists() else []
    known = {(*row["shape"], row["bond"], row["batch"]) for row in rows}
    first = time.perf_counter()
    for k in order:
        shape, bond, batch = grid[k]
        if time.perf_counter() - first > options.total:
            break
        if (*shape, bond, batch) in known:
            continue
        rows.append(point(options.library, shape, bond, batch, options.most, options.budget))
        if save:
            aside = save.with_suffix(".part")
            aside.write_text(json.dumps(rows), encoding="utf-8")
            aside.replace(save)
    print(f"{len(rows)} of {len(grid)} points, {options.library}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="numpy", choices=["numpy", "torch", "cuda"])
    parser.add_argument("--grid", default="judge", choices=list(GRIDS))
    parser.add_argument("--seed", type=int, default=0, help="of the order of the points")
    parser.add_argument("--most", type=int, default=10, help="orders for each point")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for each point")
    parser.add_argument("--total", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--save", help="file of the measurements; those it has are not made again")
    parser.add_argument("--again", action="store_true", help="measure what was far off again")
    parser.add_argument("--fit", nargs="+", help="fit to these files instead of measuring")
    options = parser.parse_args()
    if options.fit:
        rows = [row for file in options.fit for row in json.loads(Path(file).read_text("utf-8"))]
        times = fit(rows, options.library)
        print("fit", [f"{value:.3g}" for value in times])
        for name, chosen in (("fitted", times), ("present", list(speed_of(options.library)[:-1]))):
            ratios = judge(rows, options.library, chosen)
            print(name, {q: round(float(np.percentile(ratios, q)), 3) for q in (50, 90, 95, 100)})
        return
    planning_time()
    settle()
    rows = measured(options)
    report(judged_again(rows, options) if options.again else rows)


if __name__ == "__main__":
    main()
