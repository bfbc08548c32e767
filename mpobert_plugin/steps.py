"""Count optimizer steps: fused optimizers write weights without moving their version counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from torch.optim import Optimizer


class _Counter:
    """The number of optimizer steps of this process since the first question for it."""

    def __init__(self) -> None:
        self.count = 0
        self.watching = False

    def __call__(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.count += 1


_COUNTER = _Counter()


def optimizer_steps() -> int:
    """Return a number that grows with every step of any torch optimizer in this process.

    Returns
    -------
    int
        Compare two answers: when they are equal, no optimizer has stepped in between.

    Examples
    --------
    >>> import torch
    >>> before = optimizer_steps()
    >>> torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    >>> optimizer_steps() - before
    1
    """
    if not _COUNTER.watching:
        # Only a process that evaluates with a cache needs to watch.
        register_optimizer_step_post_hook(_COUNTER)
        _COUNTER.watching = True
    return _COUNTER.count
