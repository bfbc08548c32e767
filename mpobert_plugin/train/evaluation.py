"""The losses on held-out text, over all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpobert_plugin.train.data.batches import micro_batches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mpobert_plugin.train.data.batches import Division
    from mpobert_plugin.train.data.samples import Samples
    from mpobert_plugin.train.engine import Engine


def evaluate(
    engine: Engine, samples: Samples, division: Division, batches: int
) -> dict[str, float]:
    """Return losses and accuracies on held-out samples, the same ones each time.

    Parameters
    ----------
    engine : Engine
        With the model.
    samples : Samples
        Of the held-out text.
    division : Division
        Which of them are this process's.
    batches : int
        Micro-batches of each process.

    Returns
    -------
    dict of str to float
        As `means` gives them.
    """
    model: nn.Module = engine.objective.model
    device = engine.processes.device
    totals = torch.zeros(6, device=device)
    steps = -(-batches // division.accumulation)
    model.eval()
    try:
        with torch.no_grad():
            found = micro_batches(samples, division, 0, steps)
            for batch in (next(found) for _ in range(batches)):
                totals[:4] += engine.losses(batch).numbers()
                totals[4:] += batch.counts().to(device, non_blocking=True)
    finally:
        model.train()
    engine.processes.add(totals)
    return means(totals[:4], totals[4:])


def means(numbers: Tensor, counts: Tensor) -> dict[str, float]:
    """Return mean losses and accuracies from sums; reading them waits for the device.

    Parameters
    ----------
    numbers : Tensor
        (4,): sums of both losses, and how many predictions of each task are right.
    counts : Tensor
        (2,): masked tokens and orders.

    Returns
    -------
    dict of str to float
        'loss' (the sum of both means, natural logarithms), 'masked_loss', 'order_loss',
        'masked_accuracy', 'order_accuracy'; without those of a task that nothing was asked for.

    Examples
    --------
    >>> found = means(torch.tensor([14.0, 1.0, 1.0, 1.0]), torch.tensor([2, 2]))
    >>> found["loss"], found["masked_accuracy"]
    (7.5, 0.5)
    >>> means(torch.tensor([14.0, 0.0, 1.0, 0.0]), torch.tensor([2, 0]))
    {'loss': 7.0, 'masked_loss': 7.0, 'masked_accuracy': 0.5}
    """
    tokens, orders, right_tokens, right_orders = numbers.tolist()
    asked, pairs = counts.tolist()
    found = {"loss": tokens / max(1.0, asked) + orders / max(1.0, pairs)}
    if asked:
        found |= {"masked_loss": tokens / asked, "masked_accuracy": right_tokens / asked}
    # A model without that head leaves zeros; with one, a loss of zero comes of right answers.
    if pairs and (orders or right_orders):
        found |= {"order_loss": orders / pairs, "order_accuracy": right_orders / pairs}
    return found
