"""A sample as a pure function of a seed and its number: text, order, masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.counter import Draws, shuffled
from mpobert_plugin.train.data.masking import Masking, choose, replace
from mpobert_plugin.train.data.windows import full_windows, sentence_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mpobert_plugin.train.data.store import Corpus

TASKS = ("sentence_order", "full")
IGNORED = -100  # the label that torch's cross entropy leaves out
IN_ORDER, SWAPPED = 0, 1  # as transformers' ALBERT counts
# What the random numbers of a sample are for; each purpose has a stream of its own.
_TEXT, _CHOICE, _FATE, _ORDER = range(4)


@dataclass(frozen=True)
class Recipe:
    """What samples are like.

    Parameters
    ----------
    length : int
        Tokens of a sample, special ones included; shorter samples are padded to it.
    task : str
        'sentence_order': two segments of one document, swapped half the time. 'full': stretches
        of the whole corpus, without a second task.
    masking : Masking
        How tokens are chosen and replaced.
    shorter : float
        Share of the samples of 'sentence_order' that are cut to a random shorter length.
    seed : int
        What everything random depends on.
    """

    length: int = 512
    task: str = "sentence_order"
    masking: Masking = field(default_factory=Masking)
    shorter: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise DataError(f"task must be {' or '.join(map(repr, TASKS))}, got {self.task!r}.")
        if type(self.length) is not int or self.length < 5:
            raise DataError(f"length of samples must be an integer >= 5, got {self.length!r}.")
        if type(self.shorter) not in (int, float) or not 0.0 <= self.shorter <= 1.0:
            raise DataError(f"shorter must be from 0 to 1, got {self.shorter!r}.")
        if type(self.seed) is not int or self.seed < 0:
            raise DataError(f"seed must be an integer >= 0, got {self.seed!r}.")


@dataclass(frozen=True)
class Sample:
    """One training example, padded.

    Parameters
    ----------
    input_ids, token_type_ids : ndarray of int64
        (length,).
    size : int
        Tokens that are no padding.
    positions, labels : ndarray of int64
        (most,): where tokens are asked for, and which; places that are not used have position 0
        and label -100.
    order : int
        0 in order, 1 swapped, -100 for a single segment.
    """

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    size: int
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    order: int


class Samples:
    """All samples of a corpus: an endless sequence, each epoch of which shows every window once.

    Parameters
    ----------
    corpus : Corpus
        The text.
    recipe : Recipe
        What samples are like.

    Raises
    ------
    DataError
        When the corpus has no window of the length.
    """

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        self.corpus = corpus
        self.recipe = recipe
        extra = 3 if recipe.task == "sentence_order" else 2
        find = sentence_windows if recipe.task == "sentence_order" else full_windows
        self.windows = find(corpus, recipe.length - extra)
        self._ordinary = np.flatnonzero(~corpus.is_special)

    def __len__(self) -> int:
        """Return the number of windows, which is the number of samples of an epoch."""
        return len(self.windows)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample by its number, counted over all epochs.

        Parameters
        ----------
        index : int
            Any non-negative number; ``index // len(self)`` is its epoch.

        Returns
        -------
        Sample
            The same for the same corpus, recipe and number, on any machine.
        """
        epoch, place = divmod(int(index), len(self.windows))
        seed = self.recipe.seed
        row = shuffled(np.array([place]), len(self.windows), seed, epoch, _ORDER)[0]
        start, stop = (int(edge) for edge in self.windows[row])
        segments, order = self._segments(start, stop, Draws(seed, index, _TEXT))
        return self._sample(segments, order, index)

    def _segments(self, start: int, stop: int, draws: Draws) -> tuple[list[NDArray[Any]], int]:
        tokens = self.corpus.tokens
        if self.recipe.task == "full":
            return [tokens[start:stop]], IGNORED
        short, length, cut, swap = draws.uniform(4)
        ends = self._ends(start, stop)
        if short < self.recipe.shorter:
            target = 2 + int(length * (self.recipe.length - 4))
            # Whole sentences while one fits.
            inside = ends[ends <= start + target]
            stop = int(inside[-1]) if len(inside) else min(stop, start + target)
            ends = ends[ends <= stop]
        inner = ends[ends < stop]
        if not len(inner):
            return [tokens[start:stop]], IGNORED
        middle = int(inner[int(cut * len(inner))])
        pair = [tokens[start:middle], tokens[middle:stop]]
        return (pair[::-1], SWAPPED) if swap < 0.5 else (pair, IN_ORDER)

    def _ends(self, start: int, stop: int) -> NDArray[Any]:
        """Return where sentences end inside a window, its own end among them."""
        sentences = self.corpus.sentences
        first, last = np.searchsorted(sentences, [start, stop], side="right")
        ends = np.asarray(sentences[first:last])
        return ends if len(ends) and ends[-1] == stop else np.append(ends, stop)

    def _check_ids(self, ids: NDArray[np.int64], index: int) -> None:
        if ids.max() >= self.corpus.vocab_size:
            raise DataError(
                f"{self.corpus.folder} must hold ids below {self.corpus.vocab_size}, the size of "
                f"its vocabulary, got {ids.max()} in sample {index}. Its tokens are damaged: copy "
                "it again, or prepare the text again."
            )

    def _sample(self, segments: list[NDArray[Any]], order: int, index: int) -> Sample:
        special, recipe = self.corpus.special, self.recipe
        ids = np.full(recipe.length, special.pad, dtype=np.int64)
        types = np.zeros(recipe.length, dtype=np.int64)
        ids[0], at = special.start, 1
        for number, segment in enumerate(segments):
            ids[at : at + len(segment)] = segment
            ids[at + len(segment)] = special.end
            types[at : at + len(segment) + 1] = number
            at += len(segment) + 1
        self._check_ids(ids, index)
        eligible = ~self.corpus.is_special[ids]
        eligible[at:] = False
        chosen = choose(
            eligible,
            self.corpus.starts_word[ids],
            recipe.masking,
            Draws(recipe.seed, index, _CHOICE),
        )
        positions = np.zeros(recipe.masking.most, dtype=np.int64)
        labels = np.full(recipe.masking.most, IGNORED, dtype=np.int64)
        positions[: len(chosen)] = chosen
        labels[: len(chosen)] = ids[chosen]
        draws = Draws(recipe.seed, index, _FATE)
        masked = replace(ids, chosen, recipe.masking, special.mask, self._ordinary, draws)
        return Sample(masked, types, at, positions, labels, order)
