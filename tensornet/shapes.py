"""Layouts worth trying for one matrix: balanced and nearly balanced factors in several orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache

from tensornet.factorize import factorize, is_fair, next_fair
from tensornet.layout import MatrixLayout, matrix_layout

_NEAR = 2
# Sizes with many divisors have far more factorizations than anybody would try.
_LOOKED_AT = 20_000


def layouts_of(rows: int, cols: int, sites: Iterable[int]) -> list[MatrixLayout]:
    """Return layouts with these numbers of sites, the most balanced of each number first.

    Rows and columns take their balanced factors and the next best ones; in the order of
    :func:`factorize`, rising, falling, large ones outside, and rows and columns against each
    other. Sizes without balanced factors are padded, in one layout for each number of sites.

    Examples
    --------
    >>> [(layout.row_dims, layout.col_dims) for layout in layouts_of(8, 4, [2])][:3]
    [((2, 4), (2, 2)), ((4, 2), (2, 2)), ((2, 4), (1, 4))]
    """
    columns = [list(_of_length(rows, cols, n)) for n in dict.fromkeys(sites)]
    rounds = itertools.zip_longest(*columns)
    return [layout for turn in rounds for layout in turn if layout is not None]


def _of_length(rows: int, cols: int, n: int) -> dict[MatrixLayout, None]:
    base = matrix_layout(rows, cols, n)
    if base.padded:
        return {base: None}
    found = {base: None}
    row_sets, col_sets = near_balanced(rows, n), near_balanced(cols, n)
    for a, b in itertools.product(row_sets, col_sets):
        pairs = list(zip(_orders(a), _orders(b), strict=True))
        pairs += [(a, b[::-1]), (a[::-1], b)]
        found |= {MatrixLayout(*pair): None for pair in pairs}
    return found


def _orders(rising: tuple[int, ...]) -> list[tuple[int, ...]]:
    outside = (*rising[1::2][::-1], *rising[::2])
    return [_middle(rising), rising, rising[::-1], outside]


def _middle(rising: tuple[int, ...]) -> tuple[int, ...]:
    """Return factors with the largest in the middle, as :func:`factorize` puts them."""
    n, placed = len(rising), [1] * len(rising)
    order = sorted(range(n), key=lambda k: (abs(k - n // 2), k < n // 2))
    for position, factor in zip(order, rising[::-1], strict=True):
        placed[position] = factor
    return tuple(placed)


@lru_cache(maxsize=1024)
def near_balanced(size: int, n: int) -> tuple[tuple[int, ...], ...]:
    """Return the most balanced rising factors of a size, and the next to them.

    Examples
    --------
    >>> near_balanced(768, 5)
    ((3, 4, 4, 4, 4), (2, 4, 4, 4, 6))
    """
    balanced = tuple(sorted(factorize(next_fair(size, n), n)))
    found = itertools.islice(_rising(size, n, 1), _LOOKED_AT)
    others = sorted((sum(f), max(f), f) for f in found if is_fair(f) and f != balanced)
    return (balanced, *(f for _, _, f in others[: _NEAR - 1]))


def _rising(size: int, n: int, least: int) -> Iterable[tuple[int, ...]]:
    if n == 1:
        if size >= least:
            yield (size,)
        return
    top = round(size ** (1.0 / n) * (1 + 1e-9)) + 1
    for d in range(min(top, size), least - 1, -1):
        if size % d == 0:
            yield from ((d, *rest) for rest in _rising(size // d, n - 1, d))
