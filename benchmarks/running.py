"""Time and memory of MPOBERTs beside the same network with plain weights.

Each figure is a ratio of times taken in one process, the two models taking turns. The plain model
is ALBERT with as many groups as layers, without heads; the loss is the mean square of its output,
so that neither the head nor the loss hides what the weights cost. No dropout, attention by SDPA.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from running_tools import (
    SCALE,
    SIZES,
    Result,
    Work,
    activations,
    autocast,
    compared,
    compile_layers,
    evaluate,
    graphs,
    mpo_model,
    on_gpu,
    plain_model,
    rebuild_all,
    rebuild_errors,
    set_training,
    train_step,
    wait,
    words,
)
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.runtime import banks_of


class Bench:
    """The parts of the benchmark for one size."""

    def __init__(self, size: str, rows: int, length: int, rounds: int, steps: int) -> None:
        self.size, self.rows, self.length = size, rows, length
        self.rounds, self.steps = rounds, steps
        self.plain, self.mpo = plain_model(size), mpo_model(size)
        self.ids = words(self.plain, rows, length)

    def pair(self) -> dict[str, nn.Module]:
        """Return both models by name."""
        return {"plain": self.plain, "mpo": self.mpo}

    def plan(self) -> Result:
        """Return what the plan of each kind of forward expects."""
        plans = [
            mp.plan_reconstruction(self.mpo, training=training, dtype=torch.float16)
            for training in (True, False)
        ]
        return {str(k): str(plan) for k, plan in enumerate(plans)}

    def train(self, kind: str = "fp16") -> Result:
        """Return times of forward and backward, and peaks of memory."""
        works = {}
        for name, model in self.pair().items():
            model.train()
            works[name] = partial(train_step, model, self.ids, kind)
        found = compared(works, self.rounds, self.steps)
        for name, model in self.pair().items():
            found[name] |= activations(partial(train_step, model, self.ids, kind, keep=True))
            model.zero_grad()
        return found

    def strategies(self, kind: str = "fp16") -> Result:
        """Return times and peaks of every strategy of training."""
        names = ["batched", "batched_recompute", "per_group", "per_layer"]
        self.plain.train(), self.mpo.train()

        def run(name: str, **options: Any) -> None:
            set_training(self.mpo, name)
            train_step(self.mpo, self.ids, kind, **options)

        works: dict[str, Work] = {"plain": partial(train_step, self.plain, self.ids, kind)}
        works |= {name: partial(run, name) for name in names}
        found = compared(works, max(3, self.rounds // 2), self.steps)
        for name in found:
            work = partial(run, name) if name != "plain" else None
            work = work or partial(train_step, self.plain, self.ids, kind)
            found[name] |= activations(partial(work, keep=True))
            self.plain.zero_grad(), self.mpo.zero_grad()
        set_training(self.mpo, "batched_recompute")
        return found

    def optimizer(self, kind: str = "fp16") -> Result:
        """Return times of whole steps with fused AdamW."""
        works = {}
        for name, model in self.pair().items():
            fused = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=on_gpu())
            model.train()
            works[name] = partial(train_step, model, self.ids, kind, optimizer=fused)
        return compared(works, self.rounds, self.steps)

    def accumulation(self, kind: str = "fp16", micro: int = 8) -> Result:
        """Return times of a step of several micro-batches: W rebuilt for each, or once."""

        def steps(model: nn.Module) -> None:
            for _ in range(micro):
                with autocast(kind):
                    out = model(self.ids).last_hidden_state
                (SCALE * out.float().square().mean()).backward()

        def each(model: nn.Module) -> None:
            steps(model)
            model.zero_grad()

        def once() -> None:
            with mp.accumulate(self.mpo):
                steps(self.mpo)
            self.mpo.zero_grad()

        self.plain.train(), self.mpo.train()
        works: dict[str, Work] = {"plain": partial(each, self.plain)}
        works |= {"mpo": partial(each, self.mpo), "mpo_once": once}
        return compared(works, max(3, self.rounds // 2), 1)

    def evaluate(self, kind: str | None, rows: int, length: int, **more: Any) -> Result:
        """Return times of forwards without gradient; kind None: weights in float16."""
        plain, model = self.plain, mpo_model(self.size, **more) if more else self.mpo
        if kind is None:
            plain, model = plain_model(self.size).half(), mpo_model(self.size, **more).half()
        ids = words(plain, rows, length)
        works = {}
        plain.eval(), model.eval()
        works["plain"] = partial(evaluate, plain, ids, kind)
        works["mpo"] = partial(evaluate, model, ids, kind)
        chosen = {}
        if more:
            cores = copy.deepcopy(model)
            mp.set_strategy(cores, "factorized")
            works["factorized"] = partial(evaluate, cores, ids, kind)
            plan = mp.plan_reconstruction(model, tokens=ids.numel(), training=False)
            chosen = {"chosen": plan.chosen}
        steps = max(3, self.steps * 16384 // max(1, rows * length) if on_gpu() else 1)
        return compared(works, self.rounds, min(steps, 30)) | chosen

    def compiled(self, kind: str = "fp16") -> Result:
        """Return times of training with layers compiled one by one, and the graphs made."""
        found: Result = {}
        works: dict[str, Work] = {}
        for name, model in self.pair().items():
            torch._dynamo.reset()
            with graphs() as counted:
                compile_layers(model.train())
                start = time.perf_counter()
                train_step(model, self.ids, kind)
                wait()
                counted["seconds_to_compile"] = round(time.perf_counter() - start, 1)
            found[name] = counted
            works[name] = partial(train_step, model, self.ids, kind)
        for name, timed in compared(works, self.rounds, self.steps).items():
            found[name] |= timed
        for name, model in self.pair().items():
            found[name] |= activations(partial(train_step, model, self.ids, kind, keep=True))
            model.zero_grad()
        evals: dict[str, Work] = {}
        for name, model in self.pair().items():
            evals[name] = partial(evaluate, model.eval(), self.ids, kind)
        for name, timed in compared(evals, self.rounds, self.steps).items():
            found[name]["evaluation"] = timed
        return found

    def rebuilding(self) -> Result:
        """Return errors and times of rebuilding all matrices, and the time of the look at them."""
        found: Result = {}
        banks = [bank for bank in banks_of(self.mpo).stacked() if isinstance(bank, mp.MPOBank)]
        works: dict[str, Work] = {}
        for label, kind, half in (
            ("exact fp32", torch.float32, False),
            ("exact fp16", torch.float16, False),
            ("half fp16", torch.float16, True),
            ("half bf16", torch.bfloat16, True),
        ):
            manner: dict[str, Any] = {"recompute": True, "half": half}
            works[label] = partial(rebuild_all, banks, kind, manner, backward=False)
            works[label + ", backward"] = partial(rebuild_all, banks, kind, manner, backward=True)
        found["times"] = compared(works, max(3, self.rounds // 2), 2)
        found["errors"] = {bank.name: rebuild_errors(bank) for bank in banks}
        self.mpo.eval()
        for _ in range(3):
            evaluate(self.mpo, self.ids[:1, :16], "fp16")
        with autocast("fp16"), torch.no_grad():
            look = banks_of(self.mpo).look
            found["look"] = compared({"look": look}, self.rounds, 20)["look"]
        return found

    def profile(self, kind: str = "fp16") -> Result:
        """Return the kernels that take longest, for both models, as text."""
        if not on_gpu():
            return {}
        found: Result = {}
        from torch.profiler import ProfilerActivity, profile

        for name, model in self.pair().items():
            model.train()
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
                train_step(model, self.ids, kind)
                wait()
            events = seen.key_averages()
            found[name] = str(events.table(sort_by="self_cuda_time_total", row_limit=28))[:12000]
        return found


def parts(bench: Bench) -> dict[str, Callable[[], Result]]:
    long = (bench.rows, bench.length)
    short = (1, min(128, bench.length))
    return {
        "train fp16": partial(bench.train, "fp16"),
        "profile fp16": bench.profile,
        "rebuilding": bench.rebuilding,
        "evaluate, weights fp16": partial(bench.evaluate, None, *long),
        "evaluate, autocast fp16": partial(bench.evaluate, "fp16", *long),
        "batch 1, weights fp16": partial(bench.evaluate, None, *short),
        "batch 1, bond 32, weights fp16": partial(bench.evaluate, None, *short, max_bond=32),
        "batch 1, one word, bond 32": partial(bench.evaluate, None, 1, 1, max_bond=32),
        "train bf16": partial(bench.train, "bf16"),
        "strategies fp16": bench.strategies,
        "plan": bench.plan,
        "accumulation fp16": bench.accumulation,
        "train and AdamW fp16": bench.optimizer,
        "train compiled fp16": bench.compiled,
    }


def show(size: str, part: str, found: Result) -> None:
    print(f"\n{size}: {part}")
    for name, values in found.items():
        if isinstance(values, str):
            print(f"--- {name}\n{values}")
        else:
            print(f"  {name}: {json.dumps(values)}")
    sys.stdout.flush()


def about() -> Result:
    return {
        "device": torch.cuda.get_device_name() if on_gpu() else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "command": " ".join(sys.argv),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["12x768", "48x1024"], choices=list(SIZES))
    parser.add_argument("--rows", type=int, default=32, help="sequences in a batch")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=4, help="steps of a model before its turn ends"
    )
    parser.add_argument("--only", nargs="+", help="words that the names of parts contain")
    parser.add_argument("--skip", nargs="+", default=[], help="words of parts to leave out")
    parser.add_argument("--seconds", type=float, default=560.0, help="begin no part after this")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for any machine")
    parser.add_argument("--out", type=Path, default=Path("running.json"))
    given = parser.parse_args()
    if given.quick:
        given.sizes, given.rows, given.length = ["tiny"], 4, 64
        given.rounds, given.steps = 2, 1
    start = time.perf_counter()
    found: Result = {"about": about(), "results": {}}
    print(json.dumps(found["about"]))
    for size in given.sizes:
        bench = Bench(size, given.rows, given.length, given.rounds, given.steps)
        for part, run in parts(bench).items():
            wanted = given.only is None or any(word in part for word in given.only)
            if not wanted or any(word in part for word in given.skip):
                continue
            if time.perf_counter() - start > given.seconds:
                print(f"{size}: {part} left out, no time")
                continue
            try:
                result = run()
            except (RuntimeError, TypeError, AttributeError, ValueError) as error:
                # The other parts still tell something.
                result = {"error": f"{type(error).__name__}: {error}"[:3000]}
            result["seconds"] = round(time.perf_counter() - start, 1)
            found["results"].setdefault(size, {})[part] = result
            show(size, part, result)
            given.out.write_text(json.dumps(found, indent=1))
        del bench
        if on_gpu():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
