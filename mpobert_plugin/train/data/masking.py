"""Which tokens of a sample are asked for, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpobert_plugin.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mpobert_plugin.train.data.counter import Draws

KINDS = ("ngram", "word", "token")


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced.

    Parameters
    ----------
    kind : str
        'ngram': runs of 1 to `longest` whole words, a run of n with probability proportional to
        1/n (Lan et al., ICLR 2020, section 4.1). 'word': single whole words. 'token': single
        tokens.
    rate : float
        Share of the tokens of a sample that are asked for.
    most : int
        Largest number of them; also the width of the arrays of positions and labels.
    longest : int
        Words of the longest run.
    mask, random : float
        Shares of the chosen tokens that become the mask token, or any ordinary token (drawn with
        its equals, the token itself among them); the others stay as they are.
    """

    kind: str = "ngram"
    rate: float = 0.15
    most: int = 77
    longest: int = 3
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"masking must be {', '.join(KINDS)}, got {self.kind!r}.")
        if type(self.rate) not in (int, float) or not 0.0 < self.rate < 1.0:
            raise DataError(f"mask_rate must be above 0 and below 1, got {self.rate!r}.")
        for name in ("most", "longest"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise DataError(f"{name} of the masking must be an integer >= 1, got {value!r}.")
        shares = (self.mask, self.random)
        if not all(0.0 <= share <= 1.0 for share in shares) or sum(shares) > 1.0 + 1e-9:
            raise DataError(
                f"the shares of masked and of random tokens must be 0 to 1 together, got {shares}."
            )


def choose(
    eligible: NDArray[np.bool_], begins: NDArray[np.bool_], masking: Masking, draws: Draws
) -> NDArray[np.int64]:
    """Return the positions of a sample that are asked for.

    Parameters
    ----------
    eligible : ndarray of bool
        (length,): False at special tokens and padding, which are never chosen.
    begins : ndarray of bool
        (length,): where a word begins. A special token ends a word too.
    masking : Masking
        How many, and in which runs.
    draws : Draws
        Source of random numbers.

    Returns
    -------
    ndarray of int64
        Sorted, round(rate * eligible) of them, at least one and at most ``masking.most``; fewer
        by less than a run when words are kept whole. None when nothing is eligible.
    """
    places = np.flatnonzero(eligible)
    wanted = min(max(1, round(masking.rate * len(places))), masking.most)
    if not len(places):
        return places
    if masking.kind == "token":
        picked = np.argsort(draws.uniform(len(places)), kind="stable")[:wanted]
        return np.sort(places[picked])
    # A word goes up to the next beginning; it also ends where its neighbour is not eligible.
    gaps = np.ones(len(places), dtype=np.bool_)
    gaps[1:] = np.diff(places) > 1
    starts = np.flatnonzero(begins[places] | gaps)
    limits = np.append(starts[1:], len(places))
    runs = _runs(len(starts), masking, draws)
    order = np.argsort(draws.uniform(len(starts)), kind="stable")
    chosen = _fill(order, runs, starts, limits, wanted)
    return places[chosen]


def _runs(count: int, masking: Masking, draws: Draws) -> NDArray[np.int64]:
    if masking.kind == "word" or masking.longest == 1:
        return np.ones(count, dtype=np.int64)
    weights = 1.0 / np.arange(1, masking.longest + 1)
    bounds = np.cumsum(weights) / weights.sum()
    return 1 + np.searchsorted(bounds[:-1], draws.uniform(count), side="right")


def _fill(
    order: NDArray[Any],
    runs: NDArray[Any],
    starts: NDArray[Any],
    limits: NDArray[Any],
    wanted: int,
) -> NDArray[np.int64]:
    """Take runs in a random order until the number is reached; none overlaps another."""
    taken = np.zeros(int(limits[-1]), dtype=np.bool_)
    left = wanted
    words = len(starts)
    for word, length in zip(order.tolist(), runs.tolist(), strict=True):
        # A run that does not fit is tried with fewer words, as the last of a sample must be.
        for tried in range(length, 0, -1):
            end = min(word + tried, words) - 1
            a, b = starts[word], limits[end]
            if b - a <= left and not taken[a:b].any():
                taken[a:b] = True
                left -= b - a
                break
        if left <= 0:
            break
    if left == wanted:
        # Every word is longer than what is wanted: a piece of one is better than nothing.
        a = starts[order[0]]
        taken[a : a + wanted] = True
    return np.flatnonzero(taken)


def replace(
    ids: NDArray[Any],
    positions: NDArray[Any],
    masking: Masking,
    mask_id: int,
    ordinary: NDArray[Any],
    draws: Draws,
) -> NDArray[Any]:
    """Return the tokens with masks, random tokens and themselves at the chosen positions.

    Parameters
    ----------
    ids : ndarray
        (length,); not changed.
    positions : ndarray of int64
        The chosen ones.
    masking : Masking
        The shares.
    mask_id : int
        Id of the mask token.
    ordinary : ndarray
        Ids that may be drawn; special ones are none of them.
    draws : Draws
        Source of random numbers.

    Returns
    -------
    ndarray
        (length,).
    """
    result = ids.copy()
    fate = draws.uniform(len(positions))
    other = ordinary[draws.below(len(ordinary), len(positions))]
    masked, drawn = fate < masking.mask, fate >= 1.0 - masking.random
    result[positions[masked]] = mask_id
    result[positions[drawn]] = other[drawn]
    return result
