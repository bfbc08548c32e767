"""Notice that a run is lost: a loss that is not finite or explodes, or steps that only overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mpobert_plugin.train.settings import PretrainConfig

# The mean follows the last hundred steps or so; the first ones only fill it.
_DECAY, _FIRST = 0.98, 20
# What is learned by heart has a loss near zero, of which any is a multiple.
_LOW = 1.0
# Formats with more range or more bits than the one that a run has.
_WIDER = {"fp16": "'bf16' or 'fp32'", "bf16": "'fp32'", "tf32": "'fp32'"}


@dataclass(frozen=True)
class Health:
    """What is known of the losses so far; a value that a checkpoint keeps.

    Parameters
    ----------
    mean : float
        Running mean of the loss.
    seen : int
        Losses in it.
    skipped : int
        Steps skipped one after the other, up to now.
    rollbacks : int
        How often the run went back.
    """

    mean: float = 0.0
    seen: int = 0
    skipped: int = 0
    rollbacks: int = 0


def examine(
    health: Health,
    loss: float,
    skipped: bool,
    factor: float,
    most_skips: int,
    scaled: bool = True,
) -> tuple[Health, str | None]:
    """Return what is known after a step, and a sentence when the run is lost.

    Parameters
    ----------
    health : Health
        What was known before.
    loss : float
        Loss of the step.
    skipped : bool
        Whether it overflowed and was skipped.
    factor : float
        A loss above this many times its mean is lost; a mean below 1 counts as 1.
    most_skips : int
        Steps skipped one after the other that are too many.
    scaled : bool
        Whether the number format can overflow and has a loss scale. Without one nothing mends a
        loss that is not finite.

    Returns
    -------
    tuple of (Health, str or None)
        The new value; what is wrong.

    Examples
    --------
    >>> health, lost = examine(Health(), 7.0, False, 2.0, 50)
    >>> health.mean, lost
    (7.0, None)
    """
    skips = health.skipped + 1 if skipped else 0
    health = replace(health, skipped=skips)
    if skips >= most_skips:
        return health, f"{skips} steps one after the other overflowed."
    if skipped and (scaled or math.isfinite(loss)):
        return health, None
    if not math.isfinite(loss):
        return health, f"The loss is {loss}."
    if health.seen >= _FIRST and loss > factor * max(health.mean, _LOW):
        return health, (
            f"The loss is {loss:.4g}, far above its mean of the last steps, {health.mean:.4g}."
        )
    weight = max(1.0 - _DECAY, 1.0 / (health.seen + 1))
    mean = health.mean + weight * (loss - health.mean)
    return replace(health, mean=mean, seen=health.seen + 1), None


def advice(config: PretrainConfig, last: Path | None) -> str:
    """Return what to try after a loss, as far as a run has not tried it.

    Parameters
    ----------
    config : PretrainConfig
        Settings of the run that is lost.
    last : Path or None
        Its last checkpoint; None before the first one.

    Returns
    -------
    str
        Sentences.

    Examples
    --------
    >>> from mpobert_plugin.train.settings import PretrainConfig
    >>> print(advice(PretrainConfig(precision="fp32", clip=0.0, guard="rollback"), None))
    Try a smaller lr, a longer warmup_ratio or a clip above 0. guard='rollback' found no checkpoint
    to go back to yet: the first one is written after step 500 (save_every=500). Without one the
    same command begins anew, with other settings too.
    """
    steps = ["a smaller lr"]
    if config.warmup_ratio < 1.0:
        steps.append("a longer warmup_ratio")
    steps.append("a smaller clip" if config.clip else "a clip above 0")
    if config.precision in _WIDER:
        steps.append(f"precision={_WIDER[config.precision]}")
    return f"Try {', '.join(steps[:-1])} or {steps[-1]}. {_of_going_back(config, last)}"


def _of_going_back(config: PretrainConfig, last: Path | None) -> str:
    if last is None:
        early = 0 < config.save_every < config.steps
        every = f"after step {config.save_every}" if early else "at the end"
        verb = "found" if config.guard == "rollback" else "would find"
        return (
            f"guard='rollback' {verb} no checkpoint to go back to yet: the first one is written "
            f"{every} (save_every={config.save_every}). Without one the same command begins anew, "
            "with other settings too."
        )
    back = (
        ""
        if config.guard == "rollback"
        else ("guard='rollback' goes back to the last checkpoint and on with other samples. ")
    )
    return (
        f"{back}Other settings make another run: give out= another folder, and model={last} to "
        "begin with its weights."
    )
