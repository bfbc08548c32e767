"""Which bonds a budget buys: exactly optimal for the bound that the spectra's tails give.

The error of a chain is at most the sum of what its bonds discard one by one, and its parameters
are a sum over neighbouring bonds. So chains of bonds are paths, and two prices, of a parameter
and of discarded weight, make each choice a shortest path. Prices that put the budget between two
neighbouring paths bound the optimum from below; what lies between is searched through.
Source: Handler and Zang 1980 (constrained shortest paths).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensornet.paths import Array1, Paths


def fewest_params(
    sites: Sequence[int],
    tails: Sequence[Array1],
    allowed: float,
    caps: Sequence[int],
    *,
    exact: bool = True,
    dims: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the n - 1 inner bonds with the fewest parameters whose tails add up to ``allowed``.

    Where even the caps discard more, the caps come back.

    Parameters
    ----------
    sites : sequence of int
        Dimensions of the n sites, or what a site costs for bonds of 1.
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
    dims : sequence of int, optional
        Dimensions of the sites: only chains that can be are chosen, see
        :class:`tensornet.paths.Paths`.

    Examples
    --------
    >>> tails = [np.array([9.0, 5.0, 1.0, 0.0]), np.array([9.0, 4.0, 0.0])]
    >>> fewest_params((3, 4, 2), tails, 1.0, (1, 3, 2, 1))
    (2, 2)
    """
    if not tails:
        return ()
    paths = Paths(sites, tails, caps, allowed, dims)
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
    dims: Sequence[int] | None = None,
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
    dims : sequence of int, optional
        As in :func:`fewest_params`.

    Examples
    --------
    >>> tails = [np.array([9.0, 5.0, 1.0, 0.0]), np.array([9.0, 4.0, 0.0])]
    >>> least_error((3, 4, 2), tails, 18, (1, 3, 2, 1))
    (1, 2)
    """
    if not tails:
        return ()
    paths = Paths(sites, tails, caps, dims=dims)
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
    sites: Sequence[int],
    tails: Sequence[Array1],
    caps: Sequence[int],
    most: int = 256,
    dims: Sequence[int] | None = None,
) -> list[tuple[tuple[int, ...], int, float]]:
    """Return chains that are best at some price: inner bonds, parameters, sum of tails.

    From the smallest to that which discards the least, each optimal for its size. Together they
    are the lower convex hull of all chains, up to gaps of one ``most``-th of the largest size.

    Parameters
    ----------
    sites, tails, caps, dims
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
    paths = Paths(sites, tails, caps, dims=dims)
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
