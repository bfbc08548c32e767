"""Run the comparison, or as much of it as a number of seconds allows; call again to go on.

$ python -m benchmarks.comparison.run CORPUS OUT --stage probe --seconds 540 --side-by-side 4

Runs that are done are passed over, and those that a deadline stopped go on from their checkpoints.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.comparison.recipe import RECIPES
from benchmarks.comparison.tasks import RESULT, STAGES, Task, tasks_of
from benchmarks.comparison.worker import Place, run_task

Say = Callable[[str], None]
_MOST_LOADERS = 12


def ready(task: Task, out: Path) -> bool:
    """Tell whether what a task starts from is there; an ALBERT that was lost never will be."""
    source = out / task.needs
    done = (source / RESULT).is_file() and any((source / "checkpoints").glob("step-*"))
    return not task.needs or done


def drain(tasks: Sequence[Task], place: Place, say: Say = print) -> int:
    """Return how many tasks are left, after running those for which there is time."""
    left = [task for task in tasks if task.result(place.out) is None]
    say(f"{len(tasks) - len(left)} of {len(tasks)} runs are done")
    if place.side_by_side == 1:
        _one_by_one(left, place, say)
    else:
        _side_by_side(left, place, say)
    return sum(task.result(place.out) is None for task in tasks)


def _one_by_one(tasks: list[Task], place: Place, say: Say) -> None:
    for task in tasks:
        if ready(task, place.out) and time.time() < place.deadline:
            say(_told(task, run_task(task, RECIPES[task.recipe], place), place))


def _side_by_side(tasks: list[Task], place: Place, say: Say) -> None:
    """Keep some processes busy; a task whose source is not done waits, and later ones go first."""
    context = multiprocessing.get_context("spawn")
    waiting, running = list(tasks), dict[Future[str], Task]()
    with ProcessPoolExecutor(place.side_by_side, context, initializer=_prepare) as pool:
        while waiting or running:
            for task in [task for task in waiting if ready(task, place.out)]:
                if len(running) < place.side_by_side and time.time() < place.deadline:
                    waiting.remove(task)
                    running[pool.submit(run_task, task, RECIPES[task.recipe], place)] = task
            if not running:
                break
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                task = running.pop(future)
                say(_told(task, future.result(), place))


def _prepare() -> None:
    torch.set_num_threads(1)
    # Loaders that are forked start at once; as children of a spawned process they would import
    # everything again, many at a time.
    multiprocessing.set_start_method("fork", force=True)


def _told(task: Task, state: str, place: Place) -> str:
    result = task.result(place.out)
    if result is None:
        return f"{state}: {task.name}"
    if "failed" in result:
        return f"failed: {task.name}: {result['failed']}"
    found = result["held_out"]
    return (
        f"{state}: {task.name}  held-out tokens {found['masked_loss']:.4f}, "
        f"right {found['masked_accuracy']:.4f}, order {found['order_accuracy']:.4f}, "
        f"{result['tokens_per_second']:,.0f} tokens/s"
    )


def loaders(device: str, side_by_side: int) -> int:
    """Return how many processes prepare the samples of each run: all processors, for a GPU."""
    free = (os.cpu_count() or 1) // side_by_side - 1
    return 0 if device == "cpu" else min(max(free, 1), _MOST_LOADERS)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="what corpus.py wrote")
    parser.add_argument("out", type=Path, help="a folder for each run")
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--recipe", default="best", help="name, or what the stage probe found best")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", help="these alone")
    parser.add_argument("--untuned", action="store_true", help="main at the recipe's own rate")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--side-by-side", type=int, default=1, metavar="K", help="runs at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Return 0 when the stage is done, 3 when something is left for the next call."""
    begun = time.time()
    given = _arguments(words)
    tasks = tasks_of(given.stage, given.recipe, given.seeds, given.out, not given.untuned)
    if given.models:
        tasks = [task for task in tasks if task.model in given.models]
    workers = loaders(given.device, given.side_by_side)
    place = Place(given.corpus, given.out, given.device, given.side_by_side, workers)
    left = drain(tasks, replace(place, deadline=begun + given.seconds))
    print(f"{left} of {len(tasks)} runs are left after {time.time() - begun:.0f} s")
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
