"""What is masked: how much, what never, and what it becomes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mpobert_plugin.demo.masking import IGNORED, evaluation_batches, mask, pad, training_batches
from mpobert_plugin.demo.smiles import CLS, FIRST_TOKEN, MASK, PAD, SEP, UNK

SIZE = 591


def rows(count: int, length: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randint(FIRST_TOKEN, SIZE, (count, length), generator=generator)
    return [[CLS, *row, SEP] for row in inner.tolist()]


@given(
    st.lists(st.lists(st.integers(FIRST_TOKEN, SIZE - 1), max_size=40), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_labels_are_what_was_masked(tokens, seed):
    ids = pad([[CLS, *row, UNK, SEP] for row in tokens])
    batch = mask(ids, torch.Generator().manual_seed(seed))
    assert torch.equal(torch.where(batch.masked, batch.labels, batch.input_ids), ids)
    assert bool((batch.input_ids[batch.masked] == MASK).all())
    assert torch.equal(batch.attention_mask, (ids != PAD).long())
    assert not bool((batch.masked & (ids < FIRST_TOKEN)).any())
    for row, chosen in zip(tokens, batch.masked.sum(1).tolist(), strict=True):
        assert chosen == (max(1, round(0.15 * len(row))) if row else 0)


def test_shares_of_masked_kept_and_random_tokens():
    ids = pad(rows(400, 128))
    batch = mask(ids, torch.Generator().manual_seed(0), keep=0.1, random=0.1, vocabulary=SIZE)
    chosen = batch.masked
    assert int(chosen.sum()) == 400 * round(0.15 * 128)
    given_now, before = batch.input_ids[chosen], ids[chosen]
    shares = [
        float((given_now == MASK).float().mean()),
        float((given_now == before).float().mean()),
        float(((given_now != MASK) & (given_now != before)).float().mean()),
    ]
    # Four standard deviations of a binomial with 7,600 draws.
    for share, expected in zip(shares, (0.8, 0.1 + 0.1 / 576, 0.1 - 0.1 / 576), strict=True):
        assert abs(share - expected) < 4 * (expected * (1 - expected) / 7600) ** 0.5
    assert int(given_now.min()) >= MASK
    assert bool((batch.labels[~chosen] == IGNORED).all())


def test_the_same_seed_masks_the_same():
    encoded = rows(10, 20)
    first = [batch.input_ids for _, batch in evaluation_batches(encoded, maskings=2, seed=3)]
    again = [batch.input_ids for _, batch in evaluation_batches(encoded, maskings=2, seed=3)]
    assert len(first) == 2
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])


def test_evaluation_sees_every_row_once_per_masking():
    encoded = [row for length in (5, 30, 9) for row in rows(7, length)]
    seen = [
        row for numbers, _ in evaluation_batches(encoded, maskings=3, size=4) for row in numbers
    ]
    assert sorted(seen) == sorted(3 * list(range(21)))


def test_an_epoch_of_training_shows_no_row_twice():
    encoded = [[CLS, FIRST_TOKEN + k, SEP] for k in range(20)]
    batches = list(training_batches(encoded, steps=8, size=5))
    assert len(batches) == 8
    for epoch in (batches[:4], batches[4:]):
        shown = [int(label) for batch in epoch for label in batch.labels[batch.masked]]
        assert sorted(shown) == [FIRST_TOKEN + k for k in range(20)]


def test_fewer_rows_than_a_batch():
    (batch,) = training_batches(rows(3, 6), steps=1, size=8)
    assert batch.input_ids.shape == (3, 8)
