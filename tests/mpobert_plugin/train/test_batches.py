"""Batches: the same samples for any number of processes, micro-batches and workers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.batches import Division, collate, micro_batches
from mpobert_plugin.train.data.masking import Masking
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.samples import IGNORED, Recipe, Samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    docs = [f"Text {k} is here. It goes on with {k * k}. Then it ends." for k in range(9)]
    corpus = prepare(docs, tmp_path_factory.mktemp("corpus"), Vocabulary(size=80))
    return Samples(corpus, Recipe(length=20, masking=Masking(most=5)))


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


@pytest.mark.parametrize(("world", "micro"), [(1, 4), (1, 2), (2, 2), (2, 1), (4, 1), (1, 1)])
def test_any_division_of_a_step_covers_its_samples_once(world, micro):
    for step in (0, 3):
        found = []
        for rank in range(world):
            division = Division(4, micro, rank, world)
            for part in range(division.accumulation):
                found += division.indices(step * division.accumulation + part)
        assert sorted(found) == list(range(4 * step, 4 * step + 4))
        assert found == sorted(found)


# Other tests of the process may have started JAX, which warns of processes that are forked.
@pytest.mark.parametrize("workers", [0, 2])
def test_seeking_and_workers_change_no_batch(samples, workers):
    division = Division(4, 2)
    whole = list(micro_batches(samples, division, 0, 4))
    late = list(micro_batches(samples, division, 2, 4, workers=workers))
    assert len(whole) == 8
    assert all(map(equal, whole[4:], late))


def test_m36_epochs_differ_and_processes_part_the_data(samples):
    n = len(samples)
    orders = []
    for epoch in range(2):
        rows = [samples[epoch * n + k].input_ids.tobytes() for k in range(n)]
        orders.append(rows)
    assert orders[0] != orders[1]
    first, second = (set(Division(8, 4, rank, 2).indices(0)) for rank in range(2))
    assert not first & second


def test_a_batch_holds_its_samples(samples):
    rows = [samples[k] for k in range(3)]
    batch = collate(rows)
    assert batch.input_ids.shape == (3, 20)
    assert batch.labels.shape == (3, 5)
    assert batch.attention_mask.sum(1).tolist() == [row.size for row in rows]
    asked, orders = batch.counts().tolist()
    assert asked == sum(int((row.labels != IGNORED).sum()) for row in rows)
    assert orders == sum(row.order != IGNORED for row in rows)
    assert equal(batch.to("cpu"), batch)


def test_a_pickled_corpus_is_a_name(samples):
    data = pickle.dumps(samples.corpus)
    assert len(data) < 2000
    assert np.array_equal(pickle.loads(data).tokens, samples.corpus.tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 4), "got 10 for 4 x 1. The nearest are 8 and 12"),
        ((2, 2, 0, 2), "got 2 for 2 x 2. The nearest are 4"),
        ((4, 0), "micro_batch must be an integer >= 1, got 0"),
        ((4.0, 1), "batch_size must be an integer >= 1, got 4.0"),
        ((4, 1, 2, 2), "rank must be 0 to 1, got 2"),
    ],
)
def test_divisions_that_cannot_be(arguments, message):
    with pytest.raises(DataError, match=message):
        Division(*arguments)
