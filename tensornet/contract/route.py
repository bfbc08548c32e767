"""How a matrix goes through a chain of cores, in numbers: found once, not for every product.

For small matrices the host needs longer to say what is to be done than it takes to do it. Which
order is the fastest, and all shapes on the way, follow from sizes alone, so they are kept.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from tensornet.contract.orders import Order
from tensornet.contract.speed import fastest, speed_of
from tensornet.layout import MatrixLayout

Shape = tuple[int, ...]


class Stage(NamedTuple):
    """One segment: how its cores become a matrix, and how that meets what is there so far.

    Attributes
    ----------
    start, stop : int
        Its cores.
    axes : tuple of int or None
        Transposition of the joined cores; None where they are a matrix as they lie.
    matrix : tuple of int
        Shape of that matrix.
    turned : bool
        Whether the factor is the transpose of the matrix.
    way : {"one", "vectors", "many", "beside"}
        One product of two matrices; a product with vectors that lie side by side; one product
        for each item; or many with few columns, made as one.
    state : tuple of int
        Shape in which the product takes what is there.
    """

    start: int
    stop: int
    axes: Shape | None
    matrix: Shape
    turned: bool
    way: str
    state: Shape


class Route(NamedTuple):
    """An order, its stages in the order in which they run, and the rows that come out.

    Without stages the matrix itself is formed. ``missing`` counts the rows of zeros that pad
    what goes in.
    """

    order: Order
    stages: tuple[Stage, ...]
    missing: int
    padded_rows: int


@lru_cache(maxsize=4096)
def fastest_route(
    layout: MatrixLayout, bonds: Shape, batch: int, library: str, place: str
) -> Route:
    """Return the route that is expected to be fastest for a library on a device."""
    order = fastest(layout, bonds, batch or 1, library, place)
    return route(order, layout, bonds, batch, speed_of(library, place).few)


@lru_cache(maxsize=4096)
def route(order: Order, layout: MatrixLayout, bonds: Shape, batch: int, few: int) -> Route:
    """Return the route of ``batch`` vectors in a given order; ``few`` as in Speed.

    Examples
    --------
    >>> layout = MatrixLayout((2, 2), (3, 3))
    >>> [stage.way for stage in route(Order((0, 1), "left", 2), layout, (1, 4, 1), 8, 1).stages]
    ['one', 'many']
    """
    missing = layout.padded_shape[1] - layout.cols
    rows = layout.padded_shape[0]
    if order.name == "dense":
        return Route(order, (), missing, rows)
    left, done, todo = order.side == "left", 1, layout.padded_shape[1]
    stages = []
    for start, stop in order.segments if left else order.segments[::-1]:
        i, j = math.prod(layout.row_dims[start:stop]), math.prod(layout.col_dims[start:stop])
        todo //= j
        inner = j * (bonds[start] if left else bonds[stop])
        # From the left: (rows done, bond and columns, columns to do and batch); from the right:
        # (columns to do, columns and bond, rows done and batch). Both are views.
        size = (done, inner, todo * batch) if left else (todo, inner, done * batch)
        ends = (bonds[start], i, j, bonds[stop])
        matrix = _sideways(stop - start, *ends) if left else _upright(stop - start, *ends)
        stages.append(Stage(start, stop, *matrix, *_met(size, few)))
        done *= i
    return Route(order, tuple(stages), missing, rows)


def _met(size: Shape, few: int) -> tuple[str, Shape]:
    """Return how a factor meets a state of a size (items, inner, columns), and its shape then."""
    items, inner, cols = size
    if items == 1:
        return "one", (inner, cols)
    if cols == 1:
        return "vectors", (items, inner)
    return ("many" if cols > few else "beside"), size


def _sideways(n: int, first: int, i: int, j: int, last: int) -> tuple[Shape | None, Shape, bool]:
    """Return how a segment becomes (rows and right bond, left bond and columns).

    Elements that lie side by side stay together where they can: the transpose is formed where
    there is a right bond.
    """
    rows, cols, end = tuple(range(1, 2 * n, 2)), tuple(range(2, 2 * n + 1, 2)), 2 * n + 1
    if last == 1:
        return (*rows, end, 0, *cols), (i, first * j), False
    return (0, *cols, *rows, end), (first * j, i * last), True


def _upright(n: int, first: int, i: int, j: int, last: int) -> tuple[Shape | None, Shape, bool]:
    """Return how a segment becomes (left bond and rows, columns and right bond)."""
    rows, cols, end = tuple(range(1, 2 * n, 2)), tuple(range(2, 2 * n + 1, 2)), 2 * n + 1
    return (None if n == 1 else (0, *rows, *cols, end)), (first * i, j * last), False
