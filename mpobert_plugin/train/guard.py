"""Notice that a run is lost: a loss that is not finite or explodes, or steps that only overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# The mean follows the last hundred steps or so; the first ones only fill it.
_DECAY, _FIRST = 0.98, 20
# What is learned by heart has a loss near zero, of which any is a multiple.
_LOW = 1.0
_TRY = "Try a smaller lr, a longer warmup_ratio, a smaller clip, or precision='bf16'"
_BACK = "; guard='rollback' goes back to the last checkpoint and on with other samples"
_OTHER = ". Other settings make another run: give out= another folder"
_FROM = ", and the last checkpoint as the model."
_ADVICE = f"{_TRY}{_BACK}{_OTHER}{_FROM}"
_NO_CHECKPOINT = (
    "; guard='rollback' found no checkpoint to go back to yet, and save_every= says how often "
    "one is written"
)


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
        The new value; what is wrong and what to try.

    Examples
    --------
    >>> health, lost = examine(Health(), 7.0, False, 2.0, 50)
    >>> health.mean, lost
    (7.0, None)
    """
    skips = health.skipped + 1 if skipped else 0
    health = replace(health, skipped=skips)
    if skips >= most_skips:
        return health, f"{skips} steps one after the other overflowed. {_ADVICE}"
    if skipped and (scaled or math.isfinite(loss)):
        return health, None
    if not math.isfinite(loss):
        return health, f"The loss is {loss}. {_ADVICE}"
    if health.seen >= _FIRST and loss > factor * max(health.mean, _LOW):
        return health, (
            f"The loss is {loss:.4g}, far above its mean of the last steps, {health.mean:.4g}. "
            f"{_ADVICE}"
        )
    weight = max(1.0 - _DECAY, 1.0 / (health.seen + 1))
    mean = health.mean + weight * (loss - health.mean)
    return replace(health, mean=mean, seen=health.seen + 1), None


def where_set_to_go_back(text: str, kept: bool) -> str:
    """Return what `examine` says, for a run that goes back already.

    Parameters
    ----------
    text : str
        The sentences, whose advice is for a run that stops.
    kept : bool
        Whether there is a checkpoint to go back to.

    Returns
    -------
    str
        Without the advice to go back; without a checkpoint, that there was none.

    Examples
    --------
    >>> _, lost = examine(Health(), math.nan, False, 2.0, 50)
    >>> "guard='rollback' found no checkpoint" in where_set_to_go_back(lost, False)
    True
    """
    if kept:
        return text.replace(_BACK, "")
    return text.replace(_BACK, _NO_CHECKPOINT).replace(_FROM, ".")
