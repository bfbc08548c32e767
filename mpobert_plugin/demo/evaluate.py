"""Masked-token accuracy and logits of a masked language model on reactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpobert_plugin.demo.masking import Batch, evaluation_batches


@dataclass(frozen=True)
class Score:
    """How many of the masked tokens were predicted right."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """Correct predictions over masked tokens, 0 when none was masked."""
        return self.correct / self.total if self.total else 0.0

    def __add__(self, other: Score) -> Score:
        return Score(self.correct + other.correct, self.total + other.total)


def masked_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits at the masked places, (number of masked tokens, vocabulary)."""
    with torch.no_grad():
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    logits: Tensor = output.logits
    return logits[batch.masked]


def masked_accuracy(
    model: nn.Module,
    encoded: Sequence[Sequence[int]],
    *,
    maskings: int = 1,
    size: int = 32,
    seed: int = 0,
) -> Score:
    """Return the score over all rows, each masked ``maskings`` times with fixed random numbers.

    Parameters
    ----------
    model : torch.nn.Module
        Masked language model; it is left in the mode, training or evaluation, that it was in.
    encoded : sequence of sequences of int
        Token ids of each row with [CLS] and [SEP].
    maskings, size, seed : int
        Maskings of each row, rows in a batch, seed of the maskings.

    Returns
    -------
    Score
        Correct and total; ``score.accuracy`` is between 0 and 1.
    """
    was_training = model.training
    model.eval()
    score = Score(0, 0)
    for _, batch in evaluation_batches(encoded, maskings=maskings, size=size, seed=seed):
        right = masked_logits(model, batch).argmax(-1) == batch.labels[batch.masked]
        score += Score(int(right.sum()), right.numel())
    model.train(was_training)
    return score


@dataclass(frozen=True)
class Comparison:
    """Two models on the same masked tokens."""

    max_difference: float
    same_predictions: bool
    before: Score
    after: Score

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            max(self.max_difference, other.max_difference),
            self.same_predictions and other.same_predictions,
            self.before + other.before,
            self.after + other.after,
        )


def compare(
    before: nn.Module,
    after: nn.Module,
    encoded: Sequence[Sequence[int]],
    *,
    maskings: int = 1,
    seed: int = 0,
) -> Comparison:
    """Return the largest absolute difference of logits at masked tokens, and both scores.

    Both models must be in evaluation mode and see what :func:`masked_accuracy` shows with the
    same ``maskings`` and ``seed``.
    """
    largest, same = 0.0, True
    scores = (Score(0, 0), Score(0, 0))
    for _, batch in evaluation_batches(encoded, maskings=maskings, seed=seed):
        first, second = masked_logits(before, batch), masked_logits(after, batch)
        labels = batch.labels[batch.masked]
        largest = max(largest, float((first - second).abs().max()))
        choices = first.argmax(-1), second.argmax(-1)
        same = same and bool((choices[0] == choices[1]).all())
        one, two = (Score(int((choice == labels).sum()), labels.numel()) for choice in choices)
        scores = (scores[0] + one, scores[1] + two)
    return Comparison(largest, same, *scores)
