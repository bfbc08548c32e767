"""Which bonds a budget buys: exactly optimal for the bound that the spectra's tails give.

The error of a chain is at most the sum of what its bonds discard one by one, and its parameters
are a sum over neighbouring bonds. So chains of bonds are paths, and two prices, of a parameter
and of discarded weight, make each choice a shortest path. Prices that put the budget between two
neighbouring paths bound the optimum from below; what lies between is searched through.
Source: Handler and Zang 1980 (constrained shortest paths).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Array1 = np.ndarray[Any, Any]
# Paths looked at in one go, and paths kept for a bond: beyond, see `_thinned`.
_CHUNK = 1 << 18
_MOST = 200_000
# Values that should be equal differ by a few roundings of their terms.
_SLACK = 1e-12


def fewest_params(
    sites: Sequence[int],
    tails: Sequence[Array1],
    allowed: float,
    caps: Sequence[int],
    *,
    exact: bool = True,
) -> tuple[int, ...]:
    """Return the n - 1 inner bonds with the fewest parameters whose tails add up to ``allowed``.

    Where even the caps discard more, the caps come back.

    Parameters
    ----------
    sites : sequence of int
        Dimensions of the n sites.
    tails : sequence of ndarray
        ``tails[k][r]`` is the weight (squared, absolute) discarded by keeping r values at inner
        bond k.
    allowed : float
        Largest sum of tails (squared, absolute).
    caps : sequence of int
        n + 1 largest bonds, 1 at both ends.
    exact : bool
        Whether chains that are best at no price are looked at too. Without them the result is
        a little larger at times, and is found sooner.

    Examples
    --------
    >>> tails = [np.array([9.0, 5.0, 1.0, 0.0]), np.array([9.0, 4.0, 0.0])]
    >>> fewest_params((3, 4, 2), tails, 1.0, (1, 3, 2, 1))
    (2, 2)
    """
    if not tails:
        return ()
    paths = _Paths(sites, tails, caps, allowed)
    few, much = paths.ends()
    if few.tail <= allowed:
        return paths.bonds(few)
    if much.tail > allowed:
        return paths.bonds(much)
    price, best = math.inf, much
    while True:
        found, price = paths.between(few, much)
        if found is None:
            break
        few, much = (few, found) if found.tail <= allowed else (found, much)
        best = much
    if not exact:
        return paths.bonds(best)
    # Parameters are whole numbers: a better path has at least one fewer.
    bound = best.params - 0.5 + price * allowed
    better = paths.search(price, bound, math.inf, allowed)
    return paths.bonds(min([best, *better], key=lambda path: (path.params, path.tail)))


def least_error(
    sites: Sequence[int],
    tails: Sequence[Array1],
    max_params: int,
    caps: Sequence[int],
    *,
    exact: bool = True,
) -> tuple[int, ...]:
    """Return the n - 1 inner bonds with the least sum of tails within a number of parameters.

    Where even bonds of 1 have more parameters, they come back.

    Parameters
    ----------
    sites, tails, caps
        As in :func:`fewest_params`.
    max_params : int
        Most elements that all cores together may have.
    exact : bool
        Whether chains that are best at no price are looked at too. Without them the result
        discards a little more at times, and is found sooner.

    Examples
    --------
    >>> tails = [np.array([9.0, 5.0, 1.0, 0.0]), np.array([9.0, 4.0, 0.0])]
    >>> least_error((3, 4, 2), tails, 18, (1, 3, 2, 1))
    (1, 2)
    """
    if not tails:
        return ()
    paths = _Paths(sites, tails, caps)
    few, much = paths.ends()
    if much.params <= max_params:
        return paths.bonds(much)
    if few.params > max_params:
        return paths.bonds(few)
    price = math.inf
    while True:
        found, price = paths.between(few, much)
        if found is None:
            break
        few, much = (found, much) if found.params <= max_params else (few, found)
    if not exact:
        return paths.bonds(few)
    bound = price * few.tail + max_params
    better = paths.search(price, bound, max_params, few.tail)
    return paths.bonds(min([few, *better], key=lambda path: (path.tail, path.params)))


def frontier(
    sites: Sequence[int], tails: Sequence[Array1], caps: Sequence[int], most: int = 256
) -> list[tuple[tuple[int, ...], int, float]]:
    """Return chains that are best at some price: inner bonds, parameters, sum of tails.

    From the smallest to that which discards the least, each optimal for its size. Together they
    are the lower convex hull of all chains, up to gaps of one ``most``-th of the largest size.

    Parameters
    ----------
    sites, tails, caps
        As in :func:`fewest_params`.
    most : int
        About how many chains at most.

    Examples
    --------
    >>> tails = [np.array([9.0, 5.0, 1.0, 0.0]), np.array([9.0, 4.0, 0.0])]
    >>> frontier((3, 4, 2), tails, (1, 3, 2, 1))[:2]
    [((1, 1), 9, 9.0), ((1, 2), 15, 5.0)]
    """
    if not tails:
        return [((), int(sites[0]), 0.0)]
    paths = _Paths(sites, tails, caps)
    few, much = paths.ends()
    least = (much.params - few.params) / most
    found, todo = [few], [much]
    while todo:
        left, right = found[-1], todo[-1]
        near = right.params - left.params <= least
        middle = None if near else paths.between(left, right)[0]
        if middle is None:
            found.append(todo.pop())
        else:
            todo.append(middle)
    return [(paths.bonds(path), int(path.params), path.tail) for path in found]


class _Path(NamedTuple):
    """Positions in the lists of candidates, with the parameters and the discarded weight."""

    picks: tuple[int, ...]
    params: float
    tail: float


class _Labels(NamedTuple):
    """Partial paths: the last pick and its value, sums so far, and which path each extends."""

    pick: Array1
    value: Array1
    params: Array1
    tail: Array1
    parent: Array1


class _Paths:
    """All chains of candidate bonds: those that discard less than every smaller bond does."""

    def __init__(
        self,
        sites: Sequence[int],
        tails: Sequence[Array1],
        caps: Sequence[int],
        allowed: float = math.inf,
    ) -> None:
        self._sites = [float(d) for d in sites]
        self._values: list[Array1] = []
        self._tails: list[Array1] = []
        for tail, cap in zip(tails, caps[1:-1], strict=True):
            # What is zero has no value to discard, and keeps one all the same.
            full = np.asarray(tail, float) if len(tail) > 1 else np.array([*tail, 0.0])
            kept = np.maximum.accumulate(full[::-1])[::-1][1 : cap + 1]
            new = np.concatenate([[True], kept[1:] < kept[:-1]]) & (kept <= allowed)
            new[-1] |= not new.any()
            self._values.append(np.flatnonzero(new) + 1.0)
            self._tails.append(kept[new])

    def bonds(self, path: _Path) -> tuple[int, ...]:
        return tuple(int(v[k]) for v, k in zip(self._values, path.picks, strict=True))

    def ends(self) -> tuple[_Path, _Path]:
        """Return the path with the fewest parameters and the one that discards least."""
        return (
            self._path([0] * len(self._values)),
            self._path([len(v) - 1 for v in self._values]),
        )

    def between(self, few: _Path, much: _Path) -> tuple[_Path | None, float]:
        """Return a path below the line through two, or None, and the price that makes the line.

        The price is that of discarded weight in parameters.
        """
        if few.tail <= much.tail:  # equal up to rounding: no price makes more of them
            return None, 0.0
        price = (much.params - few.params) / (few.tail - much.tail)
        found = self._cheapest(price)
        line = few.params + price * few.tail
        value = found.params + price * found.tail
        below = value < line * (1 - _SLACK) and found.picks not in (few.picks, much.picks)
        return (found if below else None), price

    def search(self, price: float, bound: float, params: float, allowed: float) -> list[_Path]:
        """Return the best path of value at most ``bound`` that keeps two limits, if there is one.

        Values are parameters plus ``price`` times discarded weight. Without a limit on the
        parameters the best path has the fewest, else it discards the least. Partial paths are
        dropped where their cheapest completion is too dear, or where another one to the same
        bond has neither more parameters nor more weight. The last bond follows from the others.
        """
        onward = self._onward(price)
        bound *= 1 + _SLACK
        last = len(self._values) - 1
        history = [_Labels(*(np.full(1, x) for x in (-1, 1.0, 0.0, 0.0, 0)))]
        for bond in range(last - 1):
            parts = list(self._extended(history[-1], bond, onward[bond], price, bound, allowed))
            joined = _Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            history.append(_thinned(_undominated(joined), math.isinf(params)))
        found: list[_Path] = []
        ends = [history[-1]]
        if last > 0:
            bond = last - 1
            ends = list(self._extended(history[-1], bond, onward[bond], price, bound, allowed))
        for labels in ends:
            at, pick = self._ended(labels, params, allowed)
            if at is not None:
                own = [int(labels.pick[at])] * (last > 0)
                before = _traced(history, int(labels.parent[at])) if last > 0 else []
                found.append(self._path([*before, *own, pick]))
        return [path for path in found if path.params <= params]

    def _extended(
        self,
        labels: _Labels,
        bond: int,
        onward: Array1,
        price: float,
        bound: float,
        allowed: float,
    ) -> Iterator[_Labels]:
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
            parent, pick = np.nonzero((total <= bound) & (tail <= allowed))
            chosen = (parent, pick)
            yield _Labels(pick, values[pick], cost[chosen], tail[chosen], parent + start)

    def _ended(self, labels: _Labels, params: float, allowed: float) -> tuple[int | None, int]:
        """Return the label that ends best, or None, and its last pick."""
        values, tails = self._values[-1], self._tails[-1]
        slope = self._sites[-2] * labels.value + self._sites[-1]
        if math.isinf(params):
            # Tails descend: the first that is allowed. One more where rounding decides.
            most = (allowed - labels.tail) * (1 + _SLACK)
            pick = len(tails) - np.searchsorted(tails[::-1], most, side="right")
            aim = labels.params + slope * values[np.minimum(pick, len(tails) - 1)]
            aim = np.where((pick < len(tails)), aim, math.inf)
        else:
            pick = np.searchsorted(values, (params - labels.params) / slope, side="right") - 1
            aim = np.where(pick >= 0, labels.tail + tails[np.maximum(pick, 0)], math.inf)
        at = int(np.argmin(aim)) if len(aim) else 0
        if len(aim) == 0 or math.isinf(aim[at]):
            return None, 0
        return at, int(pick[at])

    def _path(self, picks: Sequence[int]) -> _Path:
        values = [1.0, *(v[k] for v, k in zip(self._values, picks, strict=True)), 1.0]
        params = math.fsum(
            a * d * b for a, d, b in zip(values, self._sites, values[1:], strict=False)
        )
        tail = math.fsum(t[k] for t, k in zip(self._tails, picks, strict=True))
        return _Path(tuple(int(k) for k in picks), params, tail)

    def _onward(self, price: float) -> list[Array1]:
        """Return for each bond and candidate the value of the cheapest rest of the path."""
        onward = [self._sites[-1] * self._values[-1]]
        for bond in range(len(self._values) - 1, 0, -1):
            ahead = onward[0] + price * self._tails[bond]
            steps = np.multiply.outer(
                self._values[bond - 1], self._sites[bond] * self._values[bond]
            )
            steps += ahead
            onward.insert(0, steps.min(axis=1))
        return onward

    def _cheapest(self, price: float) -> _Path:
        onward = self._onward(price)
        picks = [
            int(np.argmin(self._sites[0] * self._values[0] + price * self._tails[0] + onward[0]))
        ]
        for bond in range(1, len(self._values)):
            came = self._sites[bond] * self._values[bond - 1][picks[-1]]
            value = came * self._values[bond] + price * self._tails[bond] + onward[bond]
            picks.append(int(np.argmin(value)))
        return self._path(picks)


def _undominated(labels: _Labels) -> _Labels:
    """Return the paths that no other to the same bond beats in both sums."""
    order = np.lexsort((labels.tail, labels.params, labels.pick))
    rank = np.unique(labels.tail, return_inverse=True)[1].reshape(-1)[order]
    # The ranks of each pick lie below those of the pick before, so one running minimum serves.
    key = rank - labels.pick[order] * (len(order) + 1)
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = key[1:] < np.minimum.accumulate(key)[:-1]
    return _Labels(*(column[order[fresh]] for column in labels))


def _thinned(labels: _Labels, by_params: bool) -> _Labels:
    """Return about ``_MOST`` paths at most.

    Among paths to one bond whose aim so far (parameters or tail) falls into one box, the best
    in the other sum stays. It can be completed in every way in which they can, so what a cut
    loses is at most the width of a box: the largest aim times the number of candidates over
    ``_MOST``. Flat spectra of six sites and more come here; chains of five sites with bonds
    below 400 cannot.
    """
    if len(labels.pick) <= _MOST:
        return labels
    aim, other = (labels.params, labels.tail) if by_params else (labels.tail, labels.params)
    boxes = max(_MOST // len(np.unique(labels.pick)), 1)
    box = (aim * (boxes / aim.max())).astype(int)
    order = np.lexsort((other, box, labels.pick))
    key = labels.pick[order] * (boxes + 2) + box[order]
    kept = order[np.concatenate([[True], key[1:] != key[:-1]])]
    return _Labels(*(column[kept] for column in labels))


def _traced(history: Sequence[_Labels], at: int) -> list[int]:
    picks: list[int] = []
    for labels in reversed(history[1:]):
        picks.append(int(labels.pick[at]))
        at = int(labels.parent[at])
    return picks[::-1]
