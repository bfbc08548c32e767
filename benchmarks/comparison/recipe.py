"""The recipes: everything that is the same for all models, and the stages of the comparison.

A recipe is a frozen value. One is chosen by how soon the plain BERT leaves the unigram plateau
(stage ``probe``); from then on it is held fixed, but for the learning rate, of which every model
tries the same four multiples (stage ``tune``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.comparison.models import Sizes
from mpobert_plugin.train import PretrainConfig

LENGTH = 128
# Of 128 places, two or three are special; 15 % of the others are asked for.
COMMON: dict[str, Any] = {
    "length": LENGTH,
    "task": "sentence_order",
    "masking": "word",
    "mask_rate": 0.15,
    "masked_most": 19,
    "shorter": 0.0,
    "precision": "bf16",
    "optimizer": "adamw",
    "beta2": 0.98,
    "weight_decay": 0.01,
    "clip": 1.0,
    "schedule": "linear",
    "log_every": 50,
    "save_every": 0,
    "keep": 1,
    "eval_batches": 4,
}


@dataclass(frozen=True)
class Recipe:
    """Sizes, steps and settings of all runs; `rates` are the factors of the rate that are tried."""

    text: str
    steps: int = 2500
    probe_steps: int = 800
    tune_steps: int = 600
    sizes: Sizes = field(default_factory=Sizes)
    settings: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)

    def config(self, steps: int, seed: int, rate: float = 1.0) -> PretrainConfig:
        """Return the settings of one run, whose learning rate is multiplied by `rate`."""
        chosen = {**COMMON, **self.settings}
        chosen["lr"] = chosen["lr"] * rate
        chosen.setdefault("micro_batch", chosen["batch_size"])
        return PretrainConfig(steps=steps, seed=seed, eval_every=max(1, steps // 8), **chosen)


# As wide as Xavier's at this width, with residual branches that start small: the layers with the
# norm behind the sum then pass on what they get, and attention is sharp enough to learn.
DAMPED = Sizes(std=0.06, branch=1 / 6)
BASE: dict[str, Any] = {"batch_size": 128, "lr": 1e-3, "warmup_ratio": 0.06}

RECIPES = {
    "damped": Recipe(
        "deviation 0.06, branches / 6, 16k tokens a step, AdamW 1e-3", sizes=DAMPED, settings=BASE
    ),
    "usual": Recipe("deviation 0.02, 16k tokens a step, AdamW 1e-3", settings=BASE),
    "more-steps": Recipe(
        "as damped, twice as many steps of 8k tokens",
        steps=3000,
        probe_steps=1600,
        tune_steps=1200,
        sizes=DAMPED,
        settings={**BASE, "batch_size": 64},
    ),
    "whole-trials": Recipe(
        "as more-steps, rates chosen by runs of the whole length",
        steps=3000,
        tune_steps=3000,
        sizes=DAMPED,
        settings={**BASE, "batch_size": 64},
    ),
    "lamb": Recipe(
        "as damped, LAMB 4e-3",
        sizes=DAMPED,
        settings={**BASE, "optimizer": "lamb", "lr": 4e-3, "beta2": 0.999},
    ),
    "four-layers": Recipe(
        "as damped, four layers", sizes=Sizes(layers=4, std=0.06, branch=1 / 4), settings=BASE
    ),
}
# What is tried, in this order; four layers are for the case that six never leave the plateau.
PROBED = ("damped", "usual", "more-steps", "lamb")
