"""Orders of low peak for networks that are too large for all orders: a beam over live tensors.

As in the exact search a state is the set of tensors that are left, and what led there matters by
its peak alone. Of the states after each join only those stay that hold the fewest elements: the
memory held is what all later steps start from. Joining only tensors that share a label leaves
room for more states; outer products are at times of use too, so both are tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from tensornet.contract.cost import Terms

Joins = list[tuple[int, int]]
_State = tuple[int, ...]
# States kept at most after a join, and joins looked at in a whole search: some tenths of a second.
_MOST = 512
_LOOKS = 60_000
# How much quicker it is to see that two tensors share no label than to join them.
_QUICK = 16


class _Reached(NamedTuple):
    """Peak so far and elements alive beside the inputs, the state before, and the join."""

    peak: int
    live: int
    before: _State
    join: tuple[int, int]


class _Sets:
    """What joins of operand sets cost in memory, found when they are asked for."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.n = terms, len(terms.words)
        self._kept = {1 << k: leaf for k, leaf in enumerate(terms.leaves)}
        self._union = {1 << k: mask for k, mask in enumerate(terms.leaves)}
        self._steps: dict[tuple[int, int], tuple[int, int]] = {}

    def step(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Return what a join adds to the memory while it runs, and once it is done."""
        known = self._steps.get(pair)
        if known is None:
            one, two = pair
            both, terms = one | two, self.terms
            if both not in self._kept:
                self._union[both] = self._union[one] | self._union[two]
                self._kept[both] = terms.kept(both, self._union[both])
            size = terms.size(self._kept[both])
            copies = sum(terms.weight(m.bit_length() - 1) for m in pair if not m & (m - 1))
            known = size + copies, size - self._own(one) - self._own(two)
            self._steps[pair] = known
        return known

    def pairs(self, state: _State, *, sharing: bool) -> list[tuple[int, int]]:
        """Return the joins that a state may make, of two small tensors where none share a label."""
        every = ((two, one) for i, one in enumerate(state) for two in state[:i])
        if not sharing:
            return list(every)
        kept = self._kept
        found = [pair for pair in every if kept[pair[0]] & kept[pair[1]]]
        if found:
            return found
        one, two = heapq.nsmallest(2, state, key=lambda m: (self.terms.size(kept[m]), m))
        return [(min(one, two), max(one, two))]

    def _own(self, members: int) -> int:
        return self.terms.size(self._kept[members]) if members & (members - 1) else 0


def low_peaks(terms: Terms, limit: int | None) -> Iterator[Joins]:
    """Yield orders whose peak is low, and at most ``limit``.

    Parameters
    ----------
    terms : Terms
        A network of at least two operands. Beyond 70 outer products are left out, and beyond 170
        nothing is searched.
    limit : int, optional
        Most elements alive at any moment. Without a limit, each search yields the order of
        lowest peak that it finds; with one, the order of any peak below that holds least.
    """
    sets = _Sets(terms)
    room = math.inf if limit is None else limit - terms.held
    # Joins that one state after each would make; to see which share a label is quicker.
    every = sets.n**3 // 6
    for sharing, looks in ((True, every // _QUICK), (False, every)):
        found = _searched(sets, room, sharing=sharing) if looks <= _LOOKS else None
        if found is not None:
            yield found


def _searched(sets: _Sets, room: float, *, sharing: bool) -> Joins | None:
    start = tuple(1 << k for k in range(sets.n))
    levels = [{start: _Reached(0, 0, (), (0, 0))}]
    for _ in range(sets.n - 1):
        following: dict[_State, _Reached] = {}
        for state, reached in levels[-1].items():
            for pair in sets.pairs(state, sharing=sharing):
                rise, change = sets.step(pair)
                peak = max(reached.peak, reached.live + rise)
                if peak > room:
                    continue
                rest = [members for members in state if members not in pair]
                new = tuple(sorted((*rest, pair[0] | pair[1])))
                if new not in following or peak < following[new].peak:
                    following[new] = _Reached(peak, reached.live + change, state, pair)
        if not following:
            return None
        # All pairs of a state are looked at quickly, those that may be joined at length.
        looks = _looks(sets, min(following), sharing=sharing)
        levels.append(_leading(following, max(_LOOKS // (sets.n * looks), 1)))
    return _traced(levels)


def _looks(sets: _Sets, state: _State, *, sharing: bool) -> int:
    """Return what it takes to go on from a state, in joins that are looked at."""
    if len(state) == 1:
        return 1
    return len(sets.pairs(state, sharing=sharing)) + len(state) ** 2 // (2 * _QUICK)


def _leading(states: dict[_State, _Reached], width: int) -> dict[_State, _Reached]:
    width = min(width, _MOST)
    if len(states) <= width:
        return states
    best = heapq.nsmallest(width, states.items(), key=lambda item: (item[1].live, item[1].peak))
    return dict(best)


def _traced(levels: list[dict[_State, _Reached]]) -> Joins:
    (state,) = levels[-1]
    joins: Joins = []
    for level in reversed(levels[1:]):
        reached = level[state]
        joins.append(reached.join)
        state = reached.before
    return joins[::-1]
