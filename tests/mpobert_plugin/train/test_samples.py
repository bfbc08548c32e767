"""Samples: pure functions of seed and number, with the masks and the order that are promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.counter import Draws, shuffled
from mpobert_plugin.train.data.masking import Masking, choose, replace
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.samples import IGNORED, Recipe, Samples
from mpobert_plugin.train.data.windows import full_windows, sentence_windows

NAMES = ("input_ids", "token_type_ids", "size", "positions", "labels", "order")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    words = ["the", "cat", "sat", "on", "a", "mat", "while", "dogs", "ran", "over", "long", "hills"]
    rng = np.random.default_rng(0)
    docs = []
    for number in range(40):
        sentences = [
            " ".join(rng.choice(words, rng.integers(3, 12))) for _ in range(number % 7 + 1)
        ]
        docs.append(" ".join(f"{text.capitalize()}." for text in sentences))
    return prepare(docs, tmp_path_factory.mktemp("corpus"), Vocabulary(size=80))


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in NAMES)


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 10))
def test_shuffled_is_a_permutation_and_any_place_is_at_hand(size, seed, epoch):
    order = shuffled(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(size))
    assert shuffled(np.array([size // 2]), size, seed, epoch)[0] == order[size // 2]


def test_draws_are_uniform_and_frozen():
    values = Draws(1, 2).uniform(40_000)
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005
    assert Draws(7, 0, 3).below(1000, 4).tolist() == [540, 463, 37, 167]
    assert shuffled(np.arange(8), 8, 5).tolist() == [4, 0, 7, 3, 6, 5, 2, 1]


def test_windows_cover_every_token_once(corpus):
    for find, length in ((sentence_windows, 16), (sentence_windows, 5), (full_windows, 16)):
        windows = find(corpus, length)
        used = np.zeros(len(corpus.tokens), int)
        for a, b in windows:
            used[a:b] += 1
        assert used.max() == 1
        assert np.diff(windows).max() <= length
        # Single tokens at the ends of documents may be left out.
        assert (used == 0).sum() <= len(corpus.documents) - 1


def test_windows_of_sentences_stay_in_a_document_and_are_full(corpus):
    edges = corpus.sentences[corpus.documents]
    ends = set(corpus.sentences.tolist())
    for a, b in sentence_windows(corpus, 16):
        assert np.searchsorted(edges, a, side="right") == np.searchsorted(edges, b, side="left")
        following = (
            corpus.sentences[np.searchsorted(corpus.sentences, b, side="right")]
            if (b < len(corpus.tokens))
            else None
        )
        if b in ends and following is not None and b not in edges:
            assert following - a > 16


def test_a_sample_is_a_function_of_seed_and_number(corpus):
    samples, again = (Samples(corpus, Recipe(length=24, seed=3)) for _ in range(2))
    forward = [samples[k] for k in range(30)]
    backward = [again[k] for k in reversed(range(30))][::-1]
    assert all(map(same, forward, backward))
    other = Samples(corpus, Recipe(length=24, seed=4))
    assert not all(same(other[k], forward[k]) for k in range(30))


def test_every_epoch_shows_every_window_once_in_another_order(corpus):
    samples = Samples(corpus, Recipe(length=24, masking=Masking(most=4), shorter=0.0))
    n = len(samples)
    orders = [
        shuffled(np.arange(n), n, samples.recipe.seed, epoch, 3).tolist() for epoch in range(2)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(n))
    assert orders[0] != orders[1]
    total = sum(samples[k].size for k in range(n))
    extra = sum(2 + (samples[k].order != IGNORED) for k in range(n))
    assert total == np.diff(samples.windows).sum() + extra


def test_sentence_order_labels_tell_the_true_order(corpus):
    samples = Samples(corpus, Recipe(length=40, shorter=0.5))
    seen = set()
    for k in range(200):
        sample = samples[k]
        restored = sample.input_ids.copy()
        used = sample.labels != IGNORED
        restored[sample.positions[used]] = sample.labels[used]
        first = restored[1 : sample.size - 1]
        seen.add(sample.order)
        if sample.order == IGNORED:
            assert not sample.token_type_ids.any()
            continue
        cut = int(np.flatnonzero(first == corpus.special.end)[0])
        a, b = first[:cut], first[cut + 1 :]
        text = np.concatenate([b, a] if sample.order else [a, b])
        windows = np.lib.stride_tricks.sliding_window_view(corpus.tokens, len(text))
        assert (windows == text).all(1).any()
        assert sample.token_type_ids[: cut + 2].sum() == 0
        assert sample.token_type_ids[cut + 2 : sample.size].all()
    assert seen == {IGNORED, 0, 1}


def test_half_of_the_pairs_are_swapped_and_a_tenth_is_shorter(corpus):
    samples = Samples(corpus, Recipe(length=24))
    orders = np.array([samples[k].order for k in range(1000)])
    pairs = orders[orders != IGNORED]
    assert abs(pairs.mean() - 0.5) < 0.06
    whole = Samples(corpus, Recipe(length=24, shorter=0.0))
    shorter = np.mean([samples[k].size < whole[k].size for k in range(1000)])
    assert 0.04 < shorter < 0.1  # a random length may still hold all sentences


def test_full_stretches_have_no_order(corpus):
    samples = Samples(corpus, Recipe(length=18, task="full"))
    assert len(samples) == -(-len(corpus.tokens) // 16)
    assert {samples[k].order for k in range(len(samples))} == {IGNORED}
    assert np.bincount([samples[k].size for k in range(len(samples))])[18] >= len(samples) - 1


def test_m14_special_tokens_and_padding_are_never_masked(corpus):
    for kind in ("ngram", "word", "token"):
        samples = Samples(corpus, Recipe(length=40, masking=Masking(kind, rate=0.9)))
        for k in range(60):
            sample = samples[k]
            used = sample.labels != IGNORED
            assert used.any()
            assert not corpus.is_special[sample.labels[used]].any()
            assert (sample.positions[used] < sample.size).all()


def test_m15_proportions_are_80_10_10():
    special = np.zeros(1000, bool)
    special[:5] = True
    ordinary = np.flatnonzero(~special)
    rng = np.random.default_rng(0)
    chosen = masked = kept = 0
    eligible = np.zeros(512, bool)
    eligible[1:300] = True
    masking = Masking("token", most=100)
    for row in range(400):
        ids = rng.integers(5, 1000, 512)
        at = choose(eligible, np.ones(512, bool), masking, Draws(0, row, 1))
        assert eligible[at].all()
        new = replace(ids, at, masking, 4, ordinary, Draws(0, row, 2))
        assert not special[new[at][new[at] != 4]].any()
        untouched = np.ones(512, bool)
        untouched[at] = False
        assert np.array_equal(new[untouched], ids[untouched])
        chosen += len(at)
        masked += (new[at] == 4).sum()
        kept += (new[at] == ids[at]).sum()
    assert abs(chosen / (400 * 299) - 0.15) < 0.0041
    assert abs(masked / chosen - 0.8) < 0.012
    assert abs(kept / chosen - 0.1001) < 0.009


@given(st.integers(0, 200), st.integers(0, 2**32), st.sampled_from(["ngram", "word", "token"]))
def test_chosen_positions_are_eligible_enough_and_whole_words(length, seed, kind):
    rng = np.random.default_rng(seed)
    eligible = rng.random(length) < 0.8
    begins = rng.random(length) < 0.6
    masking = Masking(kind, most=20)
    at = choose(eligible, begins, masking, Draws(seed))
    assert (np.diff(at) > 0).all()
    assert eligible[at].all()
    count = int(eligible.sum())
    wanted = min(max(1, round(0.15 * count)), 20) if count else 0
    assert len(at) <= wanted
    assert bool(len(at)) == bool(count)
    if kind == "token":
        assert len(at) == wanted


def test_whole_words_are_masked_together():
    begins = np.array([True, False, False, True, True, False, True, True] * 6)
    eligible = np.ones(48, bool)
    starts = np.flatnonzero(begins)
    for seed in range(50):
        chosen = np.zeros(48, bool)
        chosen[choose(eligible, begins, Masking("word", rate=0.3), Draws(seed))] = True
        for a, b in zip(starts, [*starts[1:], 48], strict=True):
            assert chosen[a:b].all() or not chosen[a:b].any()


def test_runs_have_the_lengths_of_the_paper():
    # p(n) is proportional to 1/n: 6/11, 3/11 and 2/11.
    from mpobert_plugin.train.data.masking import _runs

    counts = np.bincount(_runs(60_000, Masking(), Draws(0)))[1:] / 60_000
    assert np.abs(counts - np.array([6, 3, 2]) / 11).max() < 0.01


def test_a_word_longer_than_the_budget_gives_a_piece():
    begins = np.array([True] + [False] * 19)
    at = choose(np.ones(20, bool), begins, Masking("word"), Draws(0))
    assert at.tolist() == [0, 1, 2]


def test_at_most_the_fixed_number_of_positions(corpus):
    sample = Samples(corpus, Recipe(length=40, masking=Masking(rate=0.9, most=3)))[0]
    assert sample.positions.shape == sample.labels.shape == (3,)
    assert (sample.labels != IGNORED).sum() == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(length=4), "integer >= 5, got 4"),
        (lambda: Recipe(task="nsp"), "'sentence_order' or 'full', got 'nsp'"),
        (lambda: Recipe(shorter=1.5), "from 0 to 1, got 1.5"),
        (lambda: Recipe(seed=-1), "integer >= 0, got -1"),
        (lambda: Masking(kind="span"), "ngram, word, token, got 'span'"),
        (lambda: Masking(rate=1.0), "below 1, got 1.0"),
        (lambda: Masking(most=0), "most of the masking must be an integer >= 1, got 0"),
        (lambda: Masking(mask=0.9, random=0.2), r"got \(0.9, 0.2\)"),
    ],
)
def test_options_that_cannot_be(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_a_corpus_of_one_token_has_no_window(tmp_path):
    corpus = prepare(["word"], tmp_path / "out", Vocabulary(size=40))
    if len(corpus.tokens) > 1:
        corpus = type(corpus)(**{**vars(corpus), "tokens": corpus.tokens[:1]})
        corpus = type(corpus)(
            **{**vars(corpus), "sentences": np.array([0, 1]), "documents": np.array([0, 1])}
        )
    with pytest.raises(DataError, match="at least one stretch of 2 tokens"):
        Samples(corpus, Recipe())


def test_documents_of_one_sentence_and_of_one_that_is_too_long(tmp_path):
    docs = ["Just one.", "A " + "very " * 50 + "long one without an end"]
    samples = Samples(prepare(docs, tmp_path / "out", Vocabulary(size=60)), Recipe(length=16))
    found = [samples[k] for k in range(len(samples))]
    assert {sample.order for sample in found} == {IGNORED}
    assert max(sample.size for sample in found) <= 16
