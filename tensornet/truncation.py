"""Where to cut a spectrum: a rule and its outcome, in pure numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cut:
    """How many values a rule keeps, and the squared weight it discards (absolute)."""

    kept: int
    discarded: float


@dataclass(frozen=True)
class Truncation:
    """The rule for one bond.

    Parameters
    ----------
    cap : int
        Largest bond allowed.
    allowed : float
        Squared weight (absolute) that may be discarded. Weight of the size of rounding noise
        belongs here too: this is what reveals a deficient rank in exact mode.
    forced : bool
        Keep exactly ``cap`` values whatever their weight.
    noise : float
        Squared weight (absolute) that is rounding noise of the data: digits of discarded
        weights below it mean nothing.
    coarse : bool
        Whether single precision is enough, because much more is cut at other bonds.

    Examples
    --------
    >>> Truncation(cap=8, allowed=1.0).cut(np.array([16.0, 4.0, 1.0]))
    Cut(kept=2, discarded=1.0)
    """

    cap: int
    allowed: float = 0.0
    forced: bool = False
    noise: float = 0.0
    coarse: bool = False

    def cut(self, weights: np.ndarray[Any, Any], rest: float = 0.0) -> Cut:
        """Return the cut of squared singular values given in descending order.

        Parameters
        ----------
        weights : ndarray, shape (m,)
            Squared singular values, descending, not negative.
        rest : float
            Weight of further, smaller ones that are not listed and not to be kept.

        Returns
        -------
        Cut
            The smallest number of values, at least one and at most ``cap``, such that the
            discarded weight is within ``allowed``; or the cap where that is impossible.
        """
        tails = tail_weights(weights) + rest
        within = tails <= self.allowed
        enough = int(np.argmax(within)) if within.any() else len(weights)
        kept = self.cap if self.forced else min(max(enough, 1), self.cap)
        return Cut(kept, float(tails[min(kept, len(weights))]))


@dataclass(frozen=True)
class Limits:
    """What a whole sweep may do: caps for all bonds and a budget of discarded weight.

    What one bond leaves of its share goes to the bonds that follow.

    Parameters
    ----------
    caps : tuple of int
        n + 1 bonds, 1 at both ends.
    allowed : float
        Squared weight (absolute) that all bonds together may discard; 0 for exact.
    noise : float
        Squared weight that is rounding noise: every bond may discard it, whatever others did.
    forced : bool
        Keep the caps whatever the weights.
    reserve : tuple of float
        For each of the n + 1 bonds, weight set aside for it out of ``allowed``.
    coarse : bool
        Whether so much is cut that single precision is enough at every bond.

    Examples
    --------
    >>> limits = Limits((1, 8, 8, 1), allowed=2.0)
    >>> limits.rule(1, {}).allowed, limits.rule(2, {1: 0.5}).allowed
    (1.0, 1.5)
    """

    caps: tuple[int, ...]
    allowed: float
    noise: float = 0.0
    forced: bool = False
    reserve: tuple[float, ...] = ()
    coarse: bool = False

    @property
    def lossless(self) -> bool:
        """Whether nothing but rounding noise is to be discarded where no cap demands it."""
        return self.allowed == 0.0

    def rule(self, bond: int, discarded: Mapping[int, float]) -> Truncation:
        """Return the rule for a bond, given what bonds visited before have discarded."""
        reserve = self.reserve or (0.0,) * len(self.caps)
        spent = sum(weight - reserve[k] for k, weight in discarded.items())
        left = len(self.caps) - 2 - len(discarded)
        share = (self.allowed - sum(reserve) - spent) / left
        allowed = max(reserve[bond] + share, self.noise)
        return Truncation(self.caps[bond], allowed, self.forced, self.noise, self.coarse)

    def kept(self, discarded: Mapping[int, float]) -> bool:
        """Return whether the discarded weights together stay within the budget."""
        budget = max(self.allowed, self.noise * len(discarded))
        return sum(discarded.values()) <= budget * (1 + 1e-12)


def tail_weights(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the weight discarded by keeping k = 0, 1, ..., m values; shape (..., m + 1).

    Summed from the small end, so that small tails are not lost in rounding.

    Examples
    --------
    >>> tail_weights(np.array([4.0, 2.0, 1.0])).tolist()
    [7.0, 3.0, 1.0, 0.0]
    """
    tails = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([tails, np.zeros((*weights.shape[:-1], 1))], axis=-1)


def still_right(tail: np.ndarray[Any, Any], trusted: float) -> bool:
    """Return whether tails, as shares of the squared norm, are right down to the smallest value.

    They are where even that one is a share that their precision can be ``trusted`` with.

    Examples
    --------
    >>> still_right(np.array([1.0, 1e-3, 0.0]), 1e-10), still_right(np.array([1.0, 0.0]), 1e-10)
    (True, True)
    >>> still_right(np.array([1.0, 1e-12, 0.0]), 1e-10)
    False
    """
    return bool(tail[max(len(tail) - 2, 0)] >= trusted)
