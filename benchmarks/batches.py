"""All matrices of a BERT-large at once: ``tn.mpo`` of stacks, and the loop over single matrices.

Gaussian float32 matrices with the factors of the published models: for each of 24 layers four
of 1024 x 1024, one of 1024 x 4096 and one of 4096 x 1024. Run with ``--device cuda`` on a GPU;
``--cpu-time`` counts processor time instead, for machines that others use too.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="numpy", help="numpy, cpu (torch) or cuda")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-loop", action="store_true", help="time the stacks alone")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, one thread")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    data = stacks(options.layers, options.device)
    n = sum(len(stack) for _, stack in data)
    print(f"{n} matrices on {options.device}")
    for name, limits in OPTIONS.items():

        def batched(limits: dict[str, Any] = limits) -> list[Any]:
            return [tn.mpo(stack, shape, **limits) for shape, stack in data]

        def looped(limits: dict[str, Any] = limits) -> list[Any]:
            return [tn.mpo(matrix, shape, **limits) for shape, stack in data for matrix in stack]

        [tn.mpo(stack[:2], shape, **limits) for shape, stack in data]
        times: dict[str, float] = {}
        for _ in range(options.repeats):
            for what, run in (("batch", batched), ("loop", looped)):
                if what == "loop" and options.no_loop:
                    continue
                times[what] = min(times.get(what, np.inf), seconds(run, options.device, clock))
        worst = max(c.relative_error for batch in batched() for c in batch.certificates)
        text = ", ".join(f"{what} {t:.3f} s" for what, t in times.items())
        print(f"{name:12} {text}, largest error {worst:.3g}", flush=True)


if __name__ == "__main__":
    main()
