"""The runs of each stage, as values: a name, a model, a seed, steps, a rate and what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison.models import MODELS, SOURCE, STARTED
from benchmarks.comparison.recipe import PROBED, RECIPES

STAGES = ("probe", "speed", "tune", "main")
RESULT = "result.json"
# No seed of the comparison itself is used to choose anything.
TRIAL_SEED = 100
_SPEED_STEPS = 200


@dataclass(frozen=True)
class Task:
    """One run; `needs` is the folder of the ALBERT that it starts from, or nothing."""

    stage: str
    recipe: str
    model: str
    seed: int
    steps: int
    rate: float = 1.0
    needs: str = ""

    @property
    def name(self) -> str:
        """Folder of the run."""
        parts = (self.recipe, self.stage, self.model, f"rate{self.rate:g}", f"seed{self.seed}")
        return "-".join(parts)

    def result(self, out: Path) -> dict[str, Any] | None:
        """Return what the run found, or None when it is not done."""
        file = out / self.name / RESULT
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def started(task: Task, rate: float) -> Task:
    """Return a task that starts from the ALBERT of its stage and seed, trained at a rate."""
    source = Task(task.stage, task.recipe, SOURCE, task.seed, task.steps, rate)
    return Task(**{**vars(task), "needs": source.name})


def probe_tasks(recipes: Iterable[str]) -> list[Task]:
    """Return the plain BERT under each recipe."""
    return [Task("probe", name, "bert", TRIAL_SEED, RECIPES[name].probe_steps) for name in recipes]


def speed_tasks(name: str) -> list[Task]:
    """Return a short run of each model that differs in speed."""
    names = [model for model in MODELS if model not in STARTED]
    return [Task("speed", name, model, TRIAL_SEED, _SPEED_STEPS) for model in names]


def middle_rate(name: str) -> float:
    """Return the rate of the ALBERT from which models start while their rates are chosen."""
    rates = sorted(RECIPES[name].rates)
    return rates[(len(rates) - 1) // 2]


def tune_tasks(name: str) -> list[Task]:
    """Return every model at every rate; the ALBERT that one starts from has a middle one."""
    recipe, middle = RECIPES[name], middle_rate(name)
    tasks = [
        Task("tune", name, model, TRIAL_SEED, recipe.tune_steps, rate)
        for model in MODELS
        for rate in sorted(recipe.rates, key=lambda rate: abs(rate - 1.0))
    ]
    return [started(task, middle) if task.model in STARTED else task for task in tasks]


def main_tasks(name: str, seeds: int, rates: dict[str, float]) -> list[Task]:
    """Return the comparison, seed after seed, so that an early end leaves whole seeds."""
    recipe = RECIPES[name]
    tasks = [
        Task("main", name, model, seed, recipe.steps, rates[model])
        for seed in range(seeds)
        for model in MODELS
    ]
    return [started(task, rates[SOURCE]) if task.model in STARTED else task for task in tasks]


def best_rates(name: str, out: Path) -> dict[str, float]:
    """Return, for each model, the rate with the least held-out loss of the stage ``tune``."""
    found: dict[str, tuple[float, float]] = {}
    missing = []
    for task in tune_tasks(name):
        result = task.result(out)
        if result is None:
            missing.append(task.name)
            continue
        # A run that lost its loss was tried, and is no candidate.
        loss = result.get("held_out", {}).get("loss", float("inf"))
        found[task.model] = min(found.get(task.model, (float("inf"), 1.0)), (loss, task.rate))
    if missing:
        raise SystemExit(f"{len(missing)} runs of the stage tune are missing: run it first.")
    return {model: rate for model, (_, rate) in found.items()}


def best_recipe(out: Path) -> str:
    """Return the recipe with which the plain BERT had the least held-out loss of masked tokens."""
    found = {}
    for task in probe_tasks(PROBED):
        result = task.result(out)
        if result is None:
            raise SystemExit(f"the stage probe lacks {task.name}: run it first, or name a recipe.")
        found[task.recipe] = result.get("held_out", {}).get("masked_loss", float("inf"))
    return min(found, key=lambda name: found[name])


def known(name: str, out: Path) -> str:
    """Return the name of a recipe, found out for 'best'; the names are told when it is unknown."""
    if name == "best":
        return best_recipe(out)
    if name not in RECIPES:
        raise SystemExit(f"recipe must be best or one of {', '.join(RECIPES)}, got {name!r}.")
    return name


def tasks_of(stage: str, recipe: str, seeds: int, out: Path, tuned: bool) -> list[Task]:
    """Return the tasks of a stage in the order in which they are to be run."""
    if stage == "probe":
        return probe_tasks(PROBED if recipe == "best" else [known(recipe, out)])
    name = known(recipe, out)
    if stage == "speed":
        return speed_tasks(name)
    if stage == "tune":
        return tune_tasks(name)
    rates = best_rates(name, out) if tuned else dict.fromkeys(MODELS, 1.0)
    return main_tasks(name, seeds, rates)
