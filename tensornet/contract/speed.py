"""How long an order is expected to take, by library and device: times of simple steps, added."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from tensornet.contract.chain import join_order
from tensornet.contract.orders import Move, Order, Product, applying, joining, orders
from tensornet.layout import MatrixLayout

# Fewer columns do not fill the registers of a product of two matrices.
THIN = 16
# An array of so many elements (8 MiB in single precision) leaves little room in a cache.
_FAR = 1 << 21
# One of more than so many (32 MiB) is given back to the system at once, and the next one that
# takes its place meets its pages for the first time.
_FRESH = 1 << 23


class Speed(NamedTuple):
    """Seconds of what an order consists of, to be added up.

    Attributes
    ----------
    call, join, copy, item : float
        A segment that is applied, a product that joins cores, a transposition, and each single
        product where one call has several.
    multiply_add, thin : float
        One multiply-add, and one that is lost because columns come in blocks.
    left, right, written : float
        An element of a left factor, a right factor and a result.
    run : float
        A piece without a gap that a transposition moves.
    far, fresh : float
        What an element of a new array takes longer that a cache has no room for, and that the
        system has to give memory to.
    few : int
        Many products with at most so many columns each are made as one, side by side.
    """

    call: float
    join: float
    copy: float
    item: float
    multiply_add: float
    thin: float
    left: float
    right: float
    written: float
    run: float
    far: float
    fresh: float
    few: int


# Measured by benchmarks/planning.py in float32 on one thread; only ratios matter.
HOST = {
    "numpy": Speed(
        1.25e-5,
        1.4e-5,
        5e-6,
        5e-8,
        2.45e-11,
        5e-12,
        1.15e-10,
        1e-10,
        2.4e-10,
        7e-9,
        2e-10,
        4e-10,
        4,
    ),
    "pytorch": Speed(
        2.6e-5,
        3.3e-5,
        1.05e-5,
        1e-7,
        2.3e-11,
        2e-11,
        1.75e-10,
        5e-11,
        2.4e-10,
        4.5e-9,
        2.3e-10,
        2.1e-9,
        15,
    ),
}
# An accelerator starts each call late and then does much at once. Measured on one NVIDIA H200.
DEVICE = Speed(6e-5, 7.5e-5, 3.1e-5, 1e-9, 4e-14, 0.0, 1e-12, 1e-12, 1e-12, 1e-11, 0.0, 0.0, 4)


def features(
    order: Order, layout: MatrixLayout, bonds: tuple[int, ...], batch: int, few: int
) -> tuple[int, ...]:
    """Return the numbers that :class:`Speed` has a time for."""
    joined = [p for segment in order.segments for p in joining(layout, bonds, *segment)]
    applied = applying(order, layout, bonds, batch, few)
    products = joined + applied
    written = [p.items * p.rows * p.cols for p in products]
    moves = [move for p in applied for move in p.moves] + _sorting(order, layout, bonds)
    made = [*written, *(move.elements for move in moves)]
    return (
        len(order.segments),
        len(joined),
        len(moves),
        sum(p.items for p in products),
        sum(p.multiply_adds for p in products),
        sum(_lost(p, 40) for p in joined) + sum(_lost(p, THIN) for p in applied),
        sum(p.items * p.rows * p.inner for p in products),
        sum(p.items * p.inner * p.cols for p in products),
        sum(written),
        sum(move.runs for move in moves),
        sum(n for n in made if n >= _FAR),
        sum(n for n in made if n > _FRESH),
    )


def _sorting(order: Order, layout: MatrixLayout, bonds: tuple[int, ...]) -> list[Move]:
    """Return the transpositions that make matrices of the segments; see join_matrix, _segment."""
    n = layout.n_sites
    if n == 1:
        return []
    if order.name == "dense":
        middle = join_order(layout.site_dims, bonds).split[0, n]
        rows, cols = layout.padded_shape
        last = Move(rows * cols, rows * math.prod(layout.col_dims[:middle]))
        halves = [(0, middle), (middle, n)]
        return [_moved(layout, bonds, *half) for half in halves if half[1] - half[0] > 1] + [last]
    left = order.side == "left"
    return [  # from the right a core alone is used as it lies
        _moved(layout, bonds, start, stop, sideways=left)
        for start, stop in order.segments
        if stop - start > 1 or left
    ]


def _moved(
    layout: MatrixLayout, bonds: tuple[int, ...], start: int, stop: int, *, sideways: bool = False
) -> Move:
    elements = bonds[start] * math.prod(layout.site_dims[start:stop]) * bonds[stop]
    together = (
        bonds[stop] if sideways and bonds[stop] > 1 else bonds[stop] * layout.col_dims[stop - 1]
    )
    return Move(elements, elements // together)


def _lost(p: Product, fewest: int) -> int:
    """Return the multiply-adds that could be made while those of a product are.

    Columns are multiplied in blocks of 16. Fewer take as long as ``fewest``, 2 and 3 as three
    times as many; a single one is a product with a vector.
    """
    lost = -p.cols % THIN if p.cols > THIN else min(fewest - p.cols, 2 * p.cols)
    return 0 if p.cols == 1 else p.items * p.rows * p.inner * lost


def expected_seconds(
    order: Order, layout: MatrixLayout, bonds: tuple[int, ...], batch: int, speed: Speed
) -> float:
    """Return how long an order is expected to take."""
    *times, few = speed
    made = features(order, layout, bonds, batch, few)
    return sum(float(count) * s for count, s in zip(made, times, strict=True))


def ranked(
    layout: MatrixLayout, bonds: tuple[int, ...], batch: int, speed: Speed
) -> tuple[Order, ...]:
    """Return the orders, the one that is expected to be fastest first."""
    return tuple(
        sorted(
            orders(layout.n_sites),
            key=lambda order: expected_seconds(order, layout, bonds, batch, speed),
        )
    )


@lru_cache(maxsize=4096)
def fastest(
    layout: MatrixLayout, bonds: tuple[int, ...], batch: int, library: str, place: str
) -> Order:
    """Return the order that is expected to be fastest for a library on a device."""
    return ranked(layout, bonds, batch, speed_of(library, place))[0]


def speed_of(library: str, place: str) -> Speed:
    """Return what is known of the speed of a library on a device."""
    on_host = "cpu" in place.lower()  # jax has called it "TFRT_CPU_0" too
    return HOST.get(library, HOST["pytorch"]) if on_host else DEVICE
