"""The best choices for many matrices together: a knapsack of their fronts, merged two by two.

Choosing one size for each matrix under one budget is the multiple-choice knapsack problem. Prices
that put the budget between two neighbouring sums bound it from below (Everett 1963): a choice that
is dearer than its matrix' cheapest by more than the gap between this bound and what is known
cannot be part of anything better. The few that remain are merged by dynamic programming, where
only sums stay that no other beats in both parameters and error (Nemhauser and Ullmann 1969).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.fronts import Choice, Front
from tensornet.paths import Path, Paths, Points, undominated

Array1 = np.ndarray[Any, Any]
# Sums kept of a merge, and partial chains kept of a matrix: beyond, see `_thinned`.
KEPT = 4096
_CHAINS = 20_000
# Pairs looked at in one go, and boxes in which they are compared before they are sorted.
_CHUNK = 1 << 19
_BOXES = 1 << 14
# A first search as deep as this share of the gap often makes the gap smaller.
_SHARES = (1 / 32, 1.0)
# Values that should be equal differ by a few roundings of their terms.
_SLACK = 1e-12


class Aim(NamedTuple):
    """Largest parameters and weighted error of what is looked for, and which is to be small.

    Sums are in different orders: an error above its limit by roundings alone passes.
    """

    params: float
    error: float
    by_params: bool


class Part:
    """One matrix' choices; what they discard counts ``factor`` times."""

    def __init__(self, front: Front, factor: float, *, keep_dense: bool) -> None:
        self.front, self.factor, self.keep_dense = front, factor, keep_dense
        self._paths: Paths | None = None
        self._ends: tuple[Path, ...] = ()
        if front.tails:
            dims = front.layout.site_dims
            self._paths = Paths(front.costs, front.tails, front.caps, dims=dims)
            self._ends = self._paths.ends()

    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return parameters and error of the smallest choice, and of what discards least."""
        ends = self._points(self._ends)
        return min(ends), min(ends, key=lambda end: (end[1], end[0]))

    def cheapest(self, price: float) -> tuple[float, float]:
        """Return parameters and error of the choice of least value at a price of error."""
        paths = [self._paths.cheapest(price * self.factor), self._ends[0]] if self._paths else ()
        options = self._points(paths)
        return min(options, key=lambda point: (point[0] + price * point[1], point[0]))

    def sums(self, place: int, price: float, gap: float) -> Sums:
        """Return the choices whose value is above the least by no more than the gap."""
        params, error = self.cheapest(price)
        least = params + price * error
        own = price * self.factor
        found = self._paths.within(own, least + gap, _CHAINS) if self._paths else self._one()
        if self._paths is not None:
            found = self._with_smallest(found, self._paths)
        sizes = found.params
        errors = np.minimum(found.tail, self.front.most) * self.factor
        if self.keep_dense:
            sizes, errors = np.append(sizes, self.front.dense.params), np.append(errors, 0.0)
        points = Columns(sizes, errors, sizes + price * errors - least)
        near = np.flatnonzero(points.value <= gap + _SLACK * least)
        rows = near[_pruned(points.at(near))]
        return Sums(points.at(rows), rows, rows, Leaf(place, self, found.bonds), None)

    def _with_smallest(self, found: Points, paths: Paths) -> Points:
        """Return points and the smallest chain, of those that would lose all the best one."""
        few = self._ends[0]
        return Points(
            np.vstack([found.bonds, paths.bonds(few)]).astype(int),
            np.append(found.params, few.params),
            np.append(found.tail, few.tail),
        )

    def choice(self, bonds: Array1, at: int) -> Choice:
        """Return the choice in a row of bonds; the matrix as it is comes after them."""
        if at == len(bonds):
            return self.front.dense
        return self.front.choice(tuple(int(b) for b in bonds[at]))

    def _one(self) -> Points:
        """Return the only chain of one site."""
        return Points(np.zeros((1, 0), int), np.array([float(self.front.costs[0])]), np.zeros(1))

    def _points(self, paths: Iterable[Path]) -> list[tuple[float, float]]:
        """Return parameters and error of paths, and of the choices that are none."""
        most = self.front.most
        points = [(path.params, min(path.tail, most) * self.factor) for path in paths]
        if self._paths is None:
            points.append((float(self.front.costs[0]), 0.0))
        if self.keep_dense:
            points.append((float(self.front.dense.params), 0.0))
        return points


class Columns(NamedTuple):
    """Points: parameters, weighted error, and value above the least."""

    params: Array1
    error: Array1
    value: Array1

    def at(self, places: Array1) -> Columns:
        """Return the points at places."""
        return Columns(*(column[places] for column in self))

    def joined(self, other: Columns) -> Columns:
        """Return these points and others."""
        return Columns(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Sums(NamedTuple):
    """Points with the places, in two other sums, of what each is the sum of.

    Of one matrix, the places are rows of bonds.
    """

    points: Columns
    left: Array1
    right: Array1
    one: Sums | Leaf
    two: Sums | None


class Leaf(NamedTuple):
    """A matrix, which of them it is, and the bonds that are of use for it."""

    place: int
    part: Part
    bonds: Array1


def best_sum(parts: Sequence[Part], aim: Aim) -> list[Choice] | None:
    """Return the choices that reach an aim best; None if there are none within it.

    Parameters
    ----------
    parts : sequence of Part
        The matrices.
    aim : Aim
        What is known to be possible, or was asked for.

    Examples
    --------
    >>> from tensornet.layout import MatrixLayout
    >>> layout, tail = MatrixLayout((4, 1), (1, 4)), np.array([1.0, 0.5, 0.2, 0.1, 0.0])
    >>> parts = [Part(Front(layout, 1.0, (tail,)), x, keep_dense=False) for x in (0.9, 0.1)]
    >>> [choice.bonds for choice in best_sum(parts, Aim(32, 1.0, by_params=False))]
    [(3,), (1,)]
    """
    price = _price(parts, aim)
    if price is None:
        return None
    least = math.fsum(p + price * e for p, e in (part.cheapest(price) for part in parts))
    found: list[Choice] | None = None
    for share in _SHARES:
        gap = aim.params + price * aim.error - least
        if gap < -_SLACK * least:
            break
        depth = max(gap, 0.0) * share
        leaves = [part.sums(k, price, depth) for k, part in enumerate(parts)]
        tree = _tree(leaves, depth + _SLACK * least, aim)
        at = _best(tree.points, aim)
        if at is not None:
            found = _traced(tree, at)
            # What comes next must be better.
            params, error = float(tree.points.params[at]), float(tree.points.error[at])
            aim = aim._replace(params=params - 0.5) if aim.by_params else aim._replace(error=error)
    return found


def _price(parts: Sequence[Part], aim: Aim) -> float | None:
    """Return the price of error in parameters at which the aim lies between two cheapest sums.

    None if the smallest choices, or those that discard the least, are the best already.
    """
    few, much = (_total(points) for points in zip(*(part.ends() for part in parts), strict=True))

    def small(sums: tuple[float, float]) -> bool:
        return sums[1] > aim.error if aim.by_params else sums[0] <= aim.params

    if not small(few) or small(much):
        return None
    price = 0.0
    while few[1] > much[1]:
        price = (much[0] - few[0]) / (few[1] - much[1])
        found = _total([part.cheapest(price) for part in parts])
        line = few[0] + price * few[1]
        if found[0] + price * found[1] >= line * (1 - _SLACK) or found in (few, much):
            break
        few, much = (found, much) if small(found) else (few, found)
    return price


def _total(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    params, errors = zip(*points, strict=True)
    return math.fsum(params), math.fsum(errors)


def _tree(leaves: Sequence[Sums], gap: float, aim: Aim) -> Sums:
    """Return the sums of all, always of the two with the fewest points first."""
    # What the others need at least is left out of what a sum may have.
    floors = [(float(s.points.params.min()), float(s.points.error.min())) for s in leaves]
    room = (aim.params - sum(p for p, _ in floors), aim.error - math.fsum(e for _, e in floors))
    heap = [
        (len(s.left), k, s, floor) for k, (s, floor) in enumerate(zip(leaves, floors, strict=True))
    ]
    heapq.heapify(heap)
    count = len(heap)
    while len(heap) > 1:
        _, _, one, low = heapq.heappop(heap)
        _, _, two, high = heapq.heappop(heap)
        floor = (low[0] + high[0], low[1] + high[1])
        slack = _SLACK * aim.error
        merged = _merged(one, two, gap, (room[0] + floor[0], room[1] + floor[1] + slack))
        count += 1
        heapq.heappush(heap, (len(merged.left), count, merged, floor))
    return heap[0][2]


def _merged(one: Sums, two: Sums, gap: float, most: tuple[float, float]) -> Sums:
    """Return the sums of each point of one and each of two, as far as they are of use."""
    order = np.argsort(two.points.value, kind="stable")
    ranked = two.points.at(order)
    counts = np.searchsorted(ranked.value, gap - one.points.value, side="right")
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(_CHUNK, int(ends[-1]) if len(ends) else 0, _CHUNK))
    kept, left, right = Columns(*(np.zeros(0),) * 3), np.zeros(0, int), np.zeros(0, int)
    for rows in np.split(np.arange(len(counts)), cuts):
        # Row by row the cheapest of two, as many as the gap allows.
        i = np.repeat(rows, counts[rows])
        j = np.arange(len(i)) - np.repeat(np.cumsum(counts[rows]) - counts[rows], counts[rows])
        new = Columns(*(a[i] + b[j] for a, b in zip(one.points, ranked, strict=True)))
        fits = np.flatnonzero((new.params <= most[0]) & (new.error <= most[1]))
        kept = kept.joined(new.at(fits))
        left, right = np.append(left, i[fits]), np.append(right, order[j[fits]])
        places = _pruned(kept)
        kept, left, right = kept.at(places), left[places], right[places]
    return Sums(kept, left, right, one, two)


def _pruned(points: Columns) -> Array1:
    """Return places of points that no other beats, about ``KEPT`` at most."""
    places = np.arange(len(points.params))
    if len(places) > 2 * _BOXES:
        places = _hopeful(points)
    places = places[undominated(points.params[places], points.error[places])]
    return places[_thinned(points.at(places))]


def _boxes(params: Array1, count: int) -> Array1:
    low, high = params.min(), params.max()
    found: Array1 = ((params - low) * (count / (high - low + 1.0))).astype(int)
    return found


def _hopeful(points: Columns) -> Array1:
    """Return places of all points but those that one with clearly fewer parameters beats."""
    box = _boxes(points.params, _BOXES)
    least = np.full(_BOXES + 1, math.inf)
    np.minimum.at(least, box + 1, points.error)
    return np.flatnonzero(points.error < np.minimum.accumulate(least)[box])


def _thinned(points: Columns) -> Array1:
    """Return places of about ``KEPT`` points: of those in one box of parameters the cheapest."""
    if len(points.params) <= KEPT:
        return np.arange(len(points.params))
    box = _boxes(points.params, KEPT)
    order = np.lexsort((points.value, box))
    ranked = box[order]
    found: Array1 = order[np.concatenate([[True], ranked[1:] != ranked[:-1]])]
    return found


def _best(points: Columns, aim: Aim) -> int | None:
    fits = np.flatnonzero(
        (points.params <= aim.params) & (points.error <= aim.error * (1 + _SLACK))
    )
    if not len(fits):
        return None
    first, second = (points.params, points.error)[:: 1 if aim.by_params else -1]
    return int(fits[np.lexsort((second[fits], first[fits]))[0]])


def _traced(tree: Sums, at: int) -> list[Choice]:
    """Return the choices whose sum is at a place, in the order of their matrices."""
    found: list[tuple[int, Choice]] = []
    todo: list[tuple[Sums | None, int]] = [(tree, at)]
    while todo:
        sums, row = todo.pop()
        if sums is None:
            continue
        if isinstance(sums.one, Leaf):
            leaf = sums.one
            found.append((leaf.place, leaf.part.choice(leaf.bonds, int(sums.left[row]))))
        else:
            todo += [(sums.one, int(sums.left[row])), (sums.two, int(sums.right[row]))]
    return [choice for _, choice in sorted(found, key=lambda pair: pair[0])]
