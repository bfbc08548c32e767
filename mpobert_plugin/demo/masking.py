"""Pads and masks reactions for masked-token prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mpobert_plugin.demo.smiles import FIRST_TOKEN, MASK, PAD

IGNORED = -100  # the label that torch's cross entropy leaves out


@dataclass(frozen=True)
class Batch:
    """Masked reactions, all tensors (batch, length): what goes in and what is asked for."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor

    @property
    def masked(self) -> Tensor:
        """True where a token is asked for."""
        return self.labels != IGNORED


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return the rows as one tensor (batch, length of the longest), filled up with [PAD].

    Examples
    --------
    >>> pad([[12, 15, 13], [12, 13]]).tolist()
    [[12, 15, 13], [12, 13, 0]]
    """
    result = torch.full((len(rows), max(map(len, rows))), PAD)
    for number, row in enumerate(rows):
        result[number, : len(row)] = torch.tensor(row)
    return result


def mask(
    ids: Tensor,
    generator: torch.Generator,
    *,
    rate: float = 0.15,
    keep: float = 0.0,
    random: float = 0.0,
    vocabulary: int = 0,
) -> Batch:
    """Return a batch in which ``rate`` of each row's tokens, at least one, are asked for.

    Parameters
    ----------
    ids : Tensor (batch, length)
        Padded rows. [PAD], [CLS], [SEP] and other special ids are never chosen.
    generator : torch.Generator
        Source of all random choices.
    rate : float
        Share of the tokens of a row that are chosen.
    keep, random : float
        Shares of the chosen tokens that stay as they are or become a random token; the others
        become [MASK].
    vocabulary : int
        Number of ids; needed when ``random`` is not 0.

    Returns
    -------
    Batch
        Inputs, attention mask and labels.
    """
    eligible = ids >= FIRST_TOKEN
    draw = torch.rand(ids.shape, generator=generator).masked_fill(~eligible, 2.0)
    wanted = (eligible.sum(1, keepdim=True) * rate).round().clamp(min=1)
    chosen = (draw.argsort(1).argsort(1) < wanted) & eligible
    fate = torch.rand(ids.shape, generator=generator)
    inputs = ids.masked_fill(chosen & (fate >= keep + random), MASK)
    if random:
        other = torch.randint(FIRST_TOKEN, vocabulary, ids.shape, generator=generator)
        inputs = torch.where(chosen & (fate < random), other, inputs)
    return Batch(inputs, (ids != PAD).long(), ids.masked_fill(~chosen, IGNORED))


def evaluation_batches(
    encoded: Sequence[Sequence[int]], *, maskings: int = 1, size: int = 32, seed: int = 0
) -> Iterator[tuple[list[int], Batch]]:
    """Yield (row numbers, batch): every row ``maskings`` times, rows of like length together."""
    generator = torch.Generator().manual_seed(seed)
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    for _ in range(maskings):
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield rows, mask(pad([encoded[row] for row in rows]), generator)


def training_batches(
    encoded: Sequence[Sequence[int]],
    *,
    steps: int,
    size: int,
    rate: float = 0.25,
    seed: int = 0,
) -> Iterator[Batch]:
    """Yield ``steps`` masked batches; in every epoch each row comes once, at random.

    Rows of like length go together, a few batches at a time, which saves padding. More tokens
    than the usual 15 % are asked for, and all of them are masked: gradients of such small
    batches are less noisy then.
    """
    generator = torch.Generator().manual_seed(seed)
    left: list[list[int]] = []
    for _ in range(steps):
        if not left:
            left = _epoch(encoded, size, generator)
        ids = pad([encoded[row] for row in left.pop()])
        yield mask(ids, generator, rate=rate)


def _epoch(
    encoded: Sequence[Sequence[int]], size: int, generator: torch.Generator
) -> list[list[int]]:
    """Return the rows of one epoch in batches; a last, smaller batch is left out."""
    order = torch.randperm(len(encoded), generator=generator).tolist()
    pools = (order[start : start + 4 * size] for start in range(0, len(order), 4 * size))
    batches = []
    for pool in pools:
        pool.sort(key=lambda row: len(encoded[row]))
        batches += [pool[start : start + size] for start in range(0, len(pool), size)]
    full = [batch for batch in batches if len(batch) == size] or batches
    return [full[k] for k in torch.randperm(len(full), generator=generator).tolist()]
