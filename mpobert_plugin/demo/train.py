"""A plain AdamW loop for masked-token prediction that Ctrl-C stops after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn

from mpobert_plugin.demo.masking import Batch

CLIP = 0.25  # largest norm of the gradient: copies of layers add up theirs, and some batches jump


@dataclass(frozen=True)
class History:
    """The loss of every step that was made, and whether Ctrl-C ended the training early."""

    losses: tuple[float, ...]
    interrupted: bool


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then linear decay to a tenth.

    Examples
    --------
    >>> [round(rate_factor(step, 10, 2), 2) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.21]
    """
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 - 0.9 * (step - warmup) / max(1, steps - warmup)


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    steps: int,
    learning_rate: float = 4e-5,
    report: Callable[[int, float], None] = lambda _step, _loss: None,
) -> History:
    """Train ``model`` in place and return the losses; Ctrl-C ends it after the current step.

    Parameters
    ----------
    model : torch.nn.Module
        Masked language model that returns its loss when labels are given.
    batches : iterable of Batch
        One batch for each step.
    steps : int
        Number of steps, for the schedule of the learning rate.
    learning_rate : float
        Largest learning rate.
    report : callable
        Called with the number of steps made and the loss of the last one.

    Returns
    -------
    History
        Losses (mean cross entropy over the masked tokens of the batch, in nats).
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    warmup = max(1, steps // 8)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_factor(step, steps, warmup)
    )
    losses: list[float] = []
    model.train()
    with stop_on_interrupt() as stop:
        for batch in batches:
            loss = model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
            ).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            report(len(losses), losses[-1])
            if stop.is_set():
                break
    model.eval()
    return History(tuple(losses), stop.is_set())


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; a second one interrupts as usual.

    A step is never cut in two this way. Outside the main thread signals are left alone.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.getsignal(signal.SIGINT)

    def first(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
