"""How a budget is shared among the fronts of many matrices.

A walk along convex hulls and one cap for all bonds, both filled up bond by bond, show what is
possible at least. What is better than that is searched for in the merged fronts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tensornet.bonds import raised
from tensornet.budget import fewest_params, least_error
from tensornet.errors import OptionError, complaint
from tensornet.fronts import Choice, Front, first_true
from tensornet.knapsack import Aim, Part, best_sum

# Matrices whose bonds are chosen once more, exactly, for what they and the rest together have.
_POLISHED = 8
# A merged error may pass a limit by roundings. Then a limit lower by as much is kept for certain.
_ROUNDING = 4e-12


class Shares(NamedTuple):
    """What each matrix gets, and the weighted sum of the shares discarded (squared)."""

    choices: tuple[Choice, ...]
    error: float

    @property
    def params(self) -> int:
        """Elements of all."""
        return sum(c.params for c in self.choices)


def within_budget(
    fronts: Sequence[Front], factors: Sequence[float], max_params: int, *, keep_dense: bool
) -> Shares:
    """Return choices of least error whose parameters add up to ``max_params`` at most.

    Raises
    ------
    OptionError
        If the smallest choices have more.
    """
    hulls = [front.hull(keep_dense=keep_dense) for front in fronts]
    if (smallest := least_params(fronts, keep_dense)) > max_params:
        expected = f"be at least {smallest}, the parameters with all bonds 1"
        raise OptionError(complaint("max_params", expected, max_params))
    starts = [_climbed(hulls, factors, max_params, 0.0)]
    last = max((max(f.caps) for f in fronts), default=1)

    def uniform(cap: int) -> list[Choice]:
        return [_capped(front, cap, keep_dense=keep_dense) for front in fronts]

    cap = first_true(lambda r: sum(c.params for c in uniform(r)) > max_params, last)
    starts += [found for r in (cap, cap - 1) if r and _size(found := uniform(r)) <= max_params]
    ends = [_filled(fronts, factors, start, max_params, keep_dense=keep_dense) for start in starts]
    parts = [Part(f, x, keep_dense=keep_dense) for f, x in zip(fronts, factors, strict=True)]
    known = min(ends, key=partial(_rank, factors))
    merged = best_sum(parts, Aim(max_params, known.error, by_params=False))
    if merged is None:
        return known
    # Thinned fronts may leave room for a bond.
    better = _filled(fronts, factors, merged, max_params, keep_dense=keep_dense)
    return min(known, better, key=partial(_rank, factors))


def least_params(fronts: Sequence[Front], keep_dense: bool) -> int:
    """Return the parameters of all where each is as small as it can be."""
    return sum(
        min([sum(front.costs), *([front.dense.params] if keep_dense else [])]) for front in fronts
    )


def _rank(factors: Sequence[float], found: Shares) -> tuple[float, float, int]:
    """Return what is compared: where bounds say that all is lost, less of a bound is better."""
    bounds = math.fsum(f * c.share for f, c in zip(factors, found.choices, strict=True))
    return found.error, bounds, found.params


def within_error(
    fronts: Sequence[Front], factors: Sequence[float], allowed: float, *, keep_dense: bool
) -> Shares:
    """Return choices of fewest parameters whose weighted error (squared) is ``allowed`` at most."""
    hulls = [front.hull(keep_dense=keep_dense) for front in fronts]
    climbed = _climbed(hulls, factors, None, allowed)
    found = [_lowered(fronts, factors, climbed, allowed)]
    last = max((max(f.caps) for f in fronts), default=1)

    def uniform(cap: int) -> list[Choice]:
        return [_capped(front, cap, keep_dense=keep_dense) for front in fronts]

    cap = first_true(lambda r: _error(uniform(r), factors) <= allowed, last)
    found.append(_lowered(fronts, factors, uniform(cap), allowed))
    known = min(found, key=lambda shares: (shares.params, shares.error))
    parts = [Part(f, x, keep_dense=keep_dense) for f, x in zip(fronts, factors, strict=True)]
    for limit in (allowed, allowed * (1.0 - _ROUNDING)):
        fewer = best_sum(parts, Aim(known.params - 0.5, limit, by_params=True))
        if fewer is None:
            break
        if (error := _error(fewer, factors)) <= allowed:
            return Shares(tuple(fewer), error)
    return known


def _capped(front: Front, cap: int, *, keep_dense: bool) -> Choice:
    found = front.uniform(cap)
    return front.dense if keep_dense and front.dense.params <= found.params else found


def _size(choices: Sequence[Choice]) -> int:
    return sum(c.params for c in choices)


def _error(choices: Sequence[Choice], factors: Sequence[float]) -> float:
    return math.fsum(f * c.loss for f, c in zip(factors, choices, strict=True))


def _climbed(
    hulls: Sequence[Sequence[Choice]],
    factors: Sequence[float],
    max_params: int | None,
    allowed: float,
) -> list[Choice]:
    """Return the choices after gains have been taken in falling order per parameter.

    A gain that does not fit ends its matrix' climb. It ends for all once ``allowed`` is kept.
    """
    at = [0] * len(hulls)
    choices = [hull[0] for hull in hulls]
    spent, error = _size(choices), _error(choices, factors)

    def gain(k: int) -> tuple[float, int]:
        here, there = hulls[k][at[k]], hulls[k][at[k] + 1]
        return -factors[k] * (here.loss - there.loss) / (there.params - here.params), k

    heap = [gain(k) for k in range(len(hulls)) if len(hulls[k]) > 1]
    heapq.heapify(heap)
    while heap and error > allowed:
        k = heapq.heappop(heap)[1]
        there = hulls[k][at[k] + 1]
        if max_params is not None and spent + there.params - choices[k].params > max_params:
            continue
        spent += there.params - choices[k].params
        at[k] += 1
        choices[k] = there
        error = _error(choices, factors)
        if at[k] + 1 < len(hulls[k]):
            heapq.heappush(heap, gain(k))
    return choices


def _filled(
    fronts: Sequence[Front],
    factors: Sequence[float],
    start: Sequence[Choice],
    max_params: int,
    *,
    keep_dense: bool,
) -> Shares:
    """Return the choices after what is left has gone to the bonds that gain most by it."""
    choices = list(start)
    rest = max_params - _size(choices)
    steps: dict[int, Choice | None] = {}
    touched: dict[int, None] = {}
    while True:
        for k, front in enumerate(fronts):
            step = steps.get(k)
            if k not in steps or (step is not None and step.params - choices[k].params > rest):
                steps[k] = _step(front, choices[k], rest, keep_dense=keep_dense)
        gains = {
            k: factors[k]
            * (choices[k].share - step.share)
            / max(step.params - choices[k].params, 1)
            for k, step in steps.items()
            if step is not None
        }
        best = max(gains, key=lambda k: gains[k], default=None)
        if best is None:
            break
        step = steps.pop(best)
        if step is None:
            break
        rest -= step.params - choices[best].params
        choices[best] = step
        touched[best] = None
    for k in list(touched or range(len(choices)))[-_POLISHED:]:
        choices[k] = _polished(fronts[k], choices[k], rest)
        rest = max_params - _size(choices)
    return Shares(tuple(choices), _error(choices, factors))


def _step(front: Front, here: Choice, rest: int, *, keep_dense: bool) -> Choice | None:
    """Return the next choice with the largest gain per parameter that fits into the rest."""
    if here.bonds is None:
        return None
    dims = front.layout.site_dims
    options = [front.dense] if keep_dense and here.share > 0.0 else []
    for k, tail in enumerate(front.tails):
        bond = here.bonds[k]
        lower = tail[bond + 1 : front.caps[k + 1] + 1]
        if len(lower) and lower[-1] < tail[bond]:
            next_bond = bond + 1 + int((lower < tail[bond]).argmax())
            options.append(front.choice(raised(dims, here.bonds, k, next_bond)))
    fitting = [c for c in options if c.params - here.params <= rest and c.share < here.share]
    return max(
        fitting,
        key=lambda c: (here.share - c.share) / max(c.params - here.params, 1),
        default=None,
    )


def _polished(front: Front, here: Choice, rest: int) -> Choice:
    if here.bonds is None or not front.tails:
        return here
    room, dims = here.params + rest, front.layout.site_dims
    found = front.choice(least_error(front.costs, front.tails, room, front.caps, dims=dims))
    return found if found.share < here.share else here


def _lowered(
    fronts: Sequence[Front], factors: Sequence[float], start: Sequence[Choice], allowed: float
) -> Shares:
    """Return the choices after those that save most have used up what the error leaves."""
    choices = list(start)
    order = sorted(range(len(choices)), key=lambda k: -choices[k].params)
    for k in order[:_POLISHED]:
        front, here = fronts[k], choices[k]
        if factors[k] == 0.0 or not front.tails:
            continue
        room = here.loss + (allowed - _error(choices, factors)) / factors[k]
        dims = front.layout.site_dims
        bonds = fewest_params(front.costs, front.tails, max(room, 0.0), front.caps, dims=dims)
        found = front.choice(bonds)
        if found.loss <= room and found.params < here.params:
            choices[k] = found
    return Shares(tuple(choices), _error(choices, factors))
