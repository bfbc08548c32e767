"""Where a run stands: what its checkpoints keep beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpobert_plugin.train.guard import Health


@dataclass
class Progress:
    """Where a run stands; all of it is kept in checkpoints.

    Parameters
    ----------
    step : int
        Optimizer steps that are done, skipped ones among them.
    offset : int
        Steps whose samples were left out after going back.
    health : Health
        What is known of the losses.
    best_step : int or None
        Step of the best evaluation.
    best_loss : float
        Its loss.
    """

    step: int = 0
    offset: int = 0
    health: Health = field(default_factory=Health)
    best_step: int | None = None
    best_loss: float = float("inf")
