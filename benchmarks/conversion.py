"""Time and peak memory of converting a random model of the size of BERT-base.

Every row is a process of its own: it imports, makes the model, and converts it once. Memory is
what the process had at its peak beyond the imports, model included, divided by the model's size.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, gauge central": {"gauge": "central"},
    "exact, gauge identity": {"gauge": "identity"},
    "max_bond=64": {"max_bond": 64},
    "rtol=0.3": {"rtol": 0.3},
    "ratio=0.5": {"ratio": 0.5},
}


def resident() -> float:
    """Return the memory of this process, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("memory is read from /proc, which this system does not have")


def measure(case: str, layers: int, threads: int) -> None:
    """Convert once in this process and print the numbers as JSON."""
    import torch
    from transformers import BertConfig, BertModel

    import mpobert_plugin as mp

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    small = BertConfig(vocab_size=9, hidden_size=32, num_hidden_layers=1, intermediate_size=64)
    small.num_attention_heads = 2
    # What is imported on the first use counts as an import.
    mp.convert(BertModel(small), n=3)
    imports = resident()
    model = BertModel(BertConfig(num_hidden_layers=layers))
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    start, cpu = time.perf_counter(), time.process_time()
    mp.convert(model, **CASES[case])
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - imports
    report = mp.report(model)
    print(
        json.dumps(
            {
                "case": case,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "model_mib": size,
                "peak_mib": peak,
                "peak_over_model": peak / size,
                "ratio": report.stored_matrices / report.dense_matrices,
                "error": report.total_error,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest run counts")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.one, given.layers, given.threads)
        return
    print("| conversion | seconds | CPU seconds | peak / model | stored / dense | error |")
    print("|---|---|---|---|---|---|")
    for case in given.cases:
        command = [sys.executable, __file__, "--one", case]
        command += ["--layers", str(given.layers), "--threads", str(given.threads)]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(given.repeat)
        ]
        best = min(runs, key=lambda run: run["seconds"])
        print(
            f"| {case} | {best['seconds']:.1f} | {best['cpu_seconds']:.1f} | "
            f"{best['peak_over_model']:.2f} | {best['ratio']:.3f} | {best['error']:.3g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
