"""The learning rate of a step: a warm-up, then linear, cosine or constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.options import check_integer

KINDS = ("linear", "cosine", "constant")


@dataclass(frozen=True)
class Schedule:
    """Factor of the learning rate by optimizer step, a pure function.

    Parameters
    ----------
    kind : str
        'linear' or 'cosine': down to zero at the last step; 'constant'.
    steps : int
        Optimizer steps of the run. Processes and accumulation do not count.
    warmup : int
        Steps over which the rate rises from zero.

    Raises
    ------
    ConfigError
        When the kind is unknown or the numbers do not fit.

    Examples
    --------
    >>> schedule = Schedule("linear", steps=100)
    >>> schedule(0), schedule(50), schedule(100)
    (1.0, 0.5, 0.0)
    """

    kind: str = "linear"
    steps: int = 10_000
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"schedule must be {', '.join(map(repr, KINDS))}, got {self.kind!r}.")
        check_integer("steps", self.steps, least=1)
        check_integer("warmup", self.warmup, least=0)
        if self.warmup > self.steps:
            raise ConfigError(
                f"warmup must be at most the {self.steps} steps of the run, got {self.warmup}."
            )

    def __call__(self, step: int) -> float:
        """Return the factor for the step that comes after some steps.

        Parameters
        ----------
        step : int
            Optimizer steps that are done; skipped ones do not count.

        Returns
        -------
        float
            From 0 to 1.
        """
        if step < self.warmup:
            return (step + 1) / self.warmup
        left = self.steps - self.warmup
        done = min(1.0, (step - self.warmup) / left) if left else 1.0
        if self.kind == "linear":
            return 1.0 - done
        return 0.5 * (1.0 + math.cos(math.pi * done)) if self.kind == "cosine" else 1.0
