"""All matrices of a BERT-large at once: ``tn.mpo`` of stacks, and the loop over single matrices.

Gaussian float32 matrices with the factors of the published models: for each of 24 layers four
of 1024 x 1024, one of 1024 x 4096 and one of 4096 x 1024. Run with ``--device cuda`` on a GPU;
``--cpu-time`` counts processor time instead, for machines that others use too. ``--cold`` runs each
case once in a process of its own: a loop that is run again finds its results' memory still warm,
as a program that decomposes a model once does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensornet as tn

SQUARE, WIDE = (4, 4, 4, 4, 4), (4, 4, 8, 8, 4)
KINDS = {(SQUARE, SQUARE): 4, (SQUARE, WIDE): 1, (WIDE, SQUARE): 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {},
    "max_bond=64": {"max_bond": 64},
    "rtol=0.1": {"rtol": 0.1},
}


def stacks(layers: int, device: str) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for shape, per_layer in KINDS.items():
        rows, cols = (int(np.prod(dims)) for dims in shape)
        stack = rng.standard_normal((layers * per_layer, rows, cols), dtype=np.float32)
        made.append((shape, stack if device == "numpy" else on_device(stack, device)))
    return made


def on_device(stack: Any, device: str) -> Any:
    import torch

    return torch.from_numpy(stack).to(device)


def seconds(run: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    finish(device)
    start = clock()
    run()
    finish(device)
    return clock() - start


def finish(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def cases(data: list[tuple[Any, Any]], name: str) -> dict[str, Callable[[], list[Any]]]:
    """Return the two ways to decompose all matrices under a limit."""
    limits = OPTIONS[name]
    return {
        "batch": lambda: [tn.mpo(stack, shape, **limits) for shape, stack in data],
        "loop": lambda: [tn.mpo(W, shape, **limits) for shape, stack in data for W in stack],
    }


def cold(options: argparse.Namespace) -> None:
    """Time each case in processes of its own, and print the shortest times."""
    for name in OPTIONS:
        times = dict.fromkeys(("batch", "loop"), np.inf)
        for _ in range(options.repeats):
            for what in times:
                command = [sys.executable, __file__, "--one", name, what]
                command += ["--device", options.device, "--layers", str(options.layers)]
                command += ["--cpu-time"] * options.cpu_time
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                times[what] = min(times[what], float(done.stdout))
        text = ", ".join(f"{what} {t:.3f} s" for what, t in times.items())
        print(f"{name:12} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="numpy", help="numpy, cpu (torch) or cuda")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-loop", action="store_true", help="time the stacks alone")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, one thread")
    parser.add_argument("--cold", action="store_true", help="each case in its own process")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.cold:
        cold(options)
        return
    data = stacks(options.layers, options.device)
    if options.one:
        name, what = options.one
        small = [(shape, stack[:1]) for shape, stack in data]
        [run() for run in cases(small, name).values()]
        print(seconds(cases(data, name)[what], options.device, clock))
        return
    n = sum(len(stack) for _, stack in data)
    print(f"{n} matrices on {options.device}")
    for name in OPTIONS:
        ways = cases(data, name)
        [run() for run in cases([(shape, stack[:2]) for shape, stack in data], name).values()]
        times: dict[str, float] = {}
        for _ in range(options.repeats):
            for what, run in ways.items():
                if what == "loop" and options.no_loop:
                    continue
                times[what] = min(times.get(what, np.inf), seconds(run, options.device, clock))
        worst = max(c.relative_error for batch in ways["batch"]() for c in batch.certificates)
        text = ", ".join(f"{what} {t:.3f} s" for what, t in times.items())
        print(f"{name:12} {text}, largest error {worst:.3g}", flush=True)


if __name__ == "__main__":
    main()
