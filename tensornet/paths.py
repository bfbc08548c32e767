"""Chains of bonds as paths of a price: the cheapest, those below a bound, the best in limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.bonds import twins

Array1 = np.ndarray[Any, Any]
# Paths looked at in one go, and paths kept for a bond: beyond, see `_thinned`.
_CHUNK = 1 << 18
MOST = 200_000
# Values that should be equal differ by a few roundings of their terms.
_SLACK = 1e-12


class Path(NamedTuple):
    """Positions in the lists of candidates, with the parameters and the discarded weight."""

    picks: tuple[int, ...]
    params: float
    tail: float


class Points(NamedTuple):
    """Whole paths: inner bonds (a row for each), parameters and discarded weight."""

    bonds: Array1
    params: Array1
    tail: Array1


class Labels(NamedTuple):
    """Partial paths: the last pick and its value, sums so far, and which path each extends."""

    pick: Array1
    value: Array1
    params: Array1
    tail: Array1
    parent: Array1


class Paths:
    """All chains of candidate bonds: those that discard less than every smaller bond does.

    ``sites`` are what a site costs for bonds of 1. With ``dims``, its dimensions, no bond is
    larger than its neighbour times the site between: such a chain cannot be. Without them it is
    left to whoever cuts, to whom it means that the smaller bond alone discards something. Both
    bonds of a site of 1 are one cut: they are equal, and what they discard counts once.
    """

    def __init__(
        self,
        sites: Sequence[int],
        tails: Sequence[Array1],
        caps: Sequence[int],
        allowed: float = math.inf,
        dims: Sequence[int] | None = None,
    ) -> None:
        self._sites = [float(d) for d in sites]
        self._dims = [math.inf] * len(sites) if dims is None else [float(d) for d in dims]
        self._twins = twins(sites if dims is None else dims)
        self._values: list[Array1] = []
        self._tails: list[Array1] = []
        for tail, cap, twin in zip(tails, caps[1:-1], self._twins, strict=True):
            if twin:
                self._values.append(self._values[-1])
                self._tails.append(np.zeros_like(self._tails[-1]))
                continue
            # What is zero has no value to discard, and keeps one all the same.
            full = np.asarray(tail, float) if len(tail) > 1 else np.array([*tail, 0.0])
            kept = np.maximum.accumulate(full[::-1])[::-1][1 : cap + 1]
            new = np.concatenate([[True], kept[1:] < kept[:-1]]) & (kept <= allowed)
            new[-1] |= not new.any()
            self._values.append(np.flatnonzero(new) + 1.0)
            self._tails.append(kept[new])
        self._walls = self._impossible()
        if self._values and not math.isfinite(self._onward(0.0)[0].min()):
            # Rounding has made ranks that cannot be.
            self._dims = [math.inf] * len(sites)
            self._walls = self._impossible()

    def _impossible(self) -> list[Array1]:
        """Return infinity for each two neighbouring candidates that cannot be, and else zero.

        The first bond has one neighbour: the start, whose pick of -1 finds it.
        """
        walls = [np.zeros((1, len(self._values[0])))] if self._values else []
        for bond in range(1, len(self._values)):
            here, there = self._values[bond - 1][:, None], self._values[bond][None, :]
            site = 1.0 if self._twins[bond] else self._dims[bond]
            walls.append(np.where((here > site * there) | (there > site * here), math.inf, 0.0))
        return walls

    def bonds(self, path: Path) -> tuple[int, ...]:
        """Return the inner bonds of a path."""
        return tuple(int(v[k]) for v, k in zip(self._values, path.picks, strict=True))

    def ends(self) -> tuple[Path, Path]:
        """Return the path with the fewest parameters and the one that discards least."""
        first, last = [0] * len(self._values), [len(v) - 1 for v in self._values]
        return (
            self._path(first) if self._can_be(first) else self.cheapest(0.0),
            self._path(last) if self._can_be(last) else self.cheapest(1.0, unit=0.0),
        )

    def _can_be(self, picks: Sequence[int]) -> bool:
        pairs = zip([0, *picks], picks, strict=False)
        return not any(wall[pair] for wall, pair in zip(self._walls, pairs, strict=True))

    def between(self, few: Path, much: Path) -> tuple[Path | None, float]:
        """Return a path below the line through two, or None, and the price that makes the line.

        The price is that of discarded weight in parameters.
        """
        if few.tail <= much.tail:  # equal up to rounding: no price makes more of them
            return None, 0.0
        price = (much.params - few.params) / (few.tail - much.tail)
        found = self.cheapest(price)
        line = few.params + price * few.tail
        value = found.params + price * found.tail
        below = value < line * (1 - _SLACK) and found.picks not in (few.picks, much.picks)
        return (found if below else None), price

    def search(self, price: float, bound: float, params: float, allowed: float) -> list[Path]:
        """Return the best path of value at most ``bound`` that keeps two limits, if there is one.

        Values are parameters plus ``price`` times discarded weight. Without a limit on the
        parameters the best path has the fewest, else it discards the least. Partial paths are
        dropped where their cheapest completion is too dear, or where another one to the same
        bond has neither more parameters nor more weight. The last bond follows from the others.
        """
        last = len(self._values) - 1
        onward = self._onward(price)
        history = self._history(last - 1, onward, price, bound, allowed, math.isinf(params))
        found: list[Path] = []
        ends = [history[-1]]
        if last > 0:
            bond = last - 1
            ends = list(self._extended(history[-1], bond, onward[bond], price, bound, allowed))
        for labels in ends:
            at, pick = self._ended(labels, params, allowed)
            if at is not None:
                own = [int(labels.pick[at])] * (last > 0)
                before = _traced(history, np.array([labels.parent[at]]))[0] if last > 0 else []
                found.append(self._path([*before, *own, pick]))
        return [path for path in found if path.params <= params]

    def within(self, price: float, bound: float, most: int = MOST) -> Points:
        """Return all paths of value at most ``bound`` that no other beats in both sums.

        Values are as in :meth:`search`. About ``most`` partial paths to each bond are kept.
        """
        onward = self._onward(price)
        history = self._history(len(self._values), onward, price, bound, math.inf, True, most)
        labels = history[-1]
        params = labels.params + self._sites[-1] * labels.value
        kept = undominated(params, labels.tail)
        picks = _traced(history, kept)
        columns = [v[p] for v, p in zip(self._values, picks.T, strict=True)]
        bonds = np.stack(columns, axis=1).astype(int)
        return Points(bonds, params[kept], labels.tail[kept])

    def _history(
        self,
        bonds: int,
        onward: Sequence[Array1],
        price: float,
        bound: float,
        allowed: float,
        by_params: bool,
        most: int | None = None,
    ) -> list[Labels]:
        """Return the partial paths to each of the first bonds that may still be completed."""
        bound *= 1 + _SLACK
        history = [Labels(*(np.full(1, x) for x in (-1, 1.0, 0.0, 0.0, 0)))]
        for bond in range(bonds):
            parts = list(self._extended(history[-1], bond, onward[bond], price, bound, allowed))
            joined = Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            history.append(_thinned(_unbeaten(joined), by_params, most or MOST))
        return history

    def _extended(
        self,
        labels: Labels,
        bond: int,
        onward: Array1,
        price: float,
        bound: float,
        allowed: float,
    ) -> Iterator[Labels]:
        """Yield labels for the next bond, as far as they may still be completed."""
        values, tails, site = self._values[bond], self._tails[bond], self._sites[bond]
        step = max(_CHUNK // len(values), 1)
        for start in range(0, max(len(labels.pick), 1), step):
            part = slice(start, start + step)
            cost = (site * labels.value[part, None]) * values
            cost += labels.params[part, None]
            tail = labels.tail[part, None] + tails
            total = tail * price
            total += cost
            total += onward
            total += self._walls[bond][labels.pick[part]]
            parent, pick = np.nonzero((total <= bound) & (tail <= allowed))
            chosen = (parent, pick)
            yield Labels(pick, values[pick], cost[chosen], tail[chosen], parent + start)

    def _ended(self, labels: Labels, params: float, allowed: float) -> tuple[int | None, int]:
        """Return the label that ends best, or None, and its last pick."""
        values, tails = self._values[-1], self._tails[-1]
        slope = self._sites[-2] * labels.value + self._sites[-1]
        low, high = self._reach(labels)
        if math.isinf(params):
            # Tails descend: the first that is allowed. One more where rounding decides.
            most = (allowed - labels.tail) * (1 + _SLACK)
            pick = np.maximum(len(tails) - np.searchsorted(tails[::-1], most, side="right"), low)
            aim = labels.params + slope * values[np.minimum(pick, len(tails) - 1)]
            aim = np.where(pick <= high, aim, math.inf)
        else:
            pick = np.searchsorted(values, (params - labels.params) / slope, side="right") - 1
            pick = np.minimum(pick, high)
            aim = np.where(pick >= low, labels.tail + tails[np.maximum(pick, 0)], math.inf)
        at = int(np.argmin(aim)) if len(aim) else 0
        if len(aim) == 0 or math.isinf(aim[at]):
            return None, 0
        return at, int(pick[at])

    def _reach(self, labels: Labels) -> tuple[Array1, Array1]:
        """Return the first and the last pick of the last bond that each label may go on to."""
        free = np.isfinite(self._walls[-1])
        last = free.shape[1] - 1
        low = np.where(free.any(axis=1), free.argmax(axis=1), last + 1)
        high = last - free[:, ::-1].argmax(axis=1)
        return low[labels.pick], high[labels.pick]

    def _path(self, picks: Sequence[int]) -> Path:
        values = [1.0, *(v[k] for v, k in zip(self._values, picks, strict=True)), 1.0]
        params = math.fsum(
            a * d * b for a, d, b in zip(values, self._sites, values[1:], strict=False)
        )
        tail = math.fsum(t[k] for t, k in zip(self._tails, picks, strict=True))
        return Path(tuple(int(k) for k in picks), params, tail)

    def _onward(self, price: float, unit: float = 1.0) -> list[Array1]:
        """Return for each bond and candidate the value of the cheapest rest of the path."""
        onward = [unit * self._sites[-1] * self._values[-1]]
        for bond in range(len(self._values) - 1, 0, -1):
            ahead = onward[0] + price * self._tails[bond]
            steps = np.multiply.outer(
                self._values[bond - 1], unit * self._sites[bond] * self._values[bond]
            )
            steps += ahead
            steps += self._walls[bond]
            onward.insert(0, steps.min(axis=1))
        return onward

    def cheapest(self, price: float, unit: float = 1.0) -> Path:
        """Return the path of least value: ``unit`` for parameters, ``price`` for what is lost."""
        onward = self._onward(price, unit)
        start = unit * self._sites[0] * self._values[0] + price * self._tails[0]
        picks = [int(np.argmin(start + onward[0]))]
        for bond in range(1, len(self._values)):
            came = unit * self._sites[bond] * self._values[bond - 1][picks[-1]]
            value = came * self._values[bond] + price * self._tails[bond] + onward[bond]
            picks.append(int(np.argmin(value + self._walls[bond][picks[-1]])))
        return self._path(picks)


def undominated(params: Array1, error: Array1) -> Array1:
    """Return places of the points that no other beats in both, from the fewest parameters on.

    Examples
    --------
    >>> undominated(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 5.0, 5.0, 2.0])).tolist()
    [1, 3, 0]
    """
    order = np.lexsort((error, params))
    lowest = np.minimum.accumulate(error[order])
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = error[order][1:] < lowest[:-1]
    found: Array1 = order[fresh]
    return found


def _unbeaten(labels: Labels) -> Labels:
    """Return the paths that no other to the same bond beats in both sums."""
    order = np.lexsort((labels.tail, labels.params, labels.pick))
    rank = np.unique(labels.tail, return_inverse=True)[1].reshape(-1)[order]
    # The ranks of each pick lie below those of the pick before, so one running minimum serves.
    key = rank - labels.pick[order] * (len(order) + 1)
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = key[1:] < np.minimum.accumulate(key)[:-1]
    return Labels(*(column[order[fresh]] for column in labels))


def _thinned(labels: Labels, by_params: bool, most: int) -> Labels:
    """Return about ``most`` paths at most.

    Among paths to one bond whose aim so far (parameters or tail) falls into one box, the best
    in the other sum stays. It can be completed in every way in which they can, so what a cut
    loses is at most the width of a box: the largest aim times the number of candidates over
    ``most``. Flat spectra of six sites and more come here; chains of five sites with bonds
    below 400 cannot.
    """
    if len(labels.pick) <= most:
        return labels
    aim, other = (labels.params, labels.tail) if by_params else (labels.tail, labels.params)
    boxes = max(most // len(np.unique(labels.pick)), 1)
    box = (aim * (boxes / aim.max())).astype(int)
    order = np.lexsort((other, box, labels.pick))
    key = labels.pick[order] * (boxes + 2) + box[order]
    kept = order[np.concatenate([[True], key[1:] != key[:-1]])]
    return Labels(*(column[kept] for column in labels))


def _traced(history: Sequence[Labels], at: Array1) -> Array1:
    """Return the picks of paths, a row for each, that end in the last history at places."""
    columns: list[Array1] = []
    for labels in reversed(history[1:]):
        columns.append(labels.pick[at])
        at = labels.parent[at]
    return np.stack(columns[::-1], axis=1) if columns else np.zeros((len(at), 0), int)
