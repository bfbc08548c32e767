"""The orders in which a chain of cores meets a matrix, and the products that each consists of.

Neighbouring cores are first joined to segments, then the segments are applied one by one from
the left or from the right. One segment is the matrix itself ("dense"); a segment for each core
is a plain sweep ("left", "right"); what lies between is "factorized".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tensornet.contract.chain import join_order
from tensornet.layout import MAX_SITES, MatrixLayout

# Beyond so many sites only dense, sweeps and two segments are looked at.
_ALL_SEGMENTS = 7


@dataclass(frozen=True)
class Order:
    """Where segments begin (the first at 0), and the side that is applied first."""

    starts: tuple[int, ...]
    side: str
    n: int

    @property
    def name(self) -> str:
        """One of "dense", "left", "right", "factorized"."""
        if len(self.starts) == 1:
            return "dense"
        return self.side if len(self.starts) == self.n else "factorized"

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of the segments, from the left."""
        return tuple(zip(self.starts, (*self.starts[1:], self.n), strict=True))


class Move(NamedTuple):
    """A transposition: its elements, and the pieces without a gap that they are moved in."""

    elements: int
    runs: int


class Product(NamedTuple):
    """``items`` products of (rows, inner) with (inner, cols); the left factor is the same."""

    items: int
    rows: int
    inner: int
    cols: int
    moves: tuple[Move, ...] = ()  # what is transposed to make one product of many

    @property
    def multiply_adds(self) -> int:
        """Multiplications."""
        return self.items * self.rows * self.inner * self.cols

    @property
    def traffic(self) -> int:
        """Elements read and written."""
        columns = self.items * self.cols
        return self.rows * self.inner + columns * (self.inner + self.rows)


def orders(n: int) -> Iterator[Order]:
    """Yield the orders for ``n`` sites."""
    if n <= MAX_SITES:
        yield Order((0,), "left", n)
    if n == 1:
        return
    if n <= _ALL_SEGMENTS:
        cuts = [
            (0, *(k for k in range(1, n) if chosen >> k - 1 & 1))
            for chosen in range(1, 1 << (n - 1))
        ]
    else:
        # A segment is an array with two axes for each of its sites, and two for its bonds.
        halves = (k for k in range(1, n) if max(k, n - k) < MAX_SITES)
        cuts = [tuple(range(n)), *((0, k) for k in halves)]
    for starts in cuts:
        yield Order(starts, "left", n)
        yield Order(starts, "right", n)


def joining(layout: MatrixLayout, bonds: tuple[int, ...], start: int, stop: int) -> list[Product]:
    """Return the products that join the cores of one segment."""
    sites, ends = layout.site_dims[start:stop], bonds[start : stop + 1]
    split = join_order(sites, ends).split
    products = []

    def visit(first: int, last: int) -> None:
        if last - first == 1:
            return
        middle = split[first, last]
        visit(first, middle)
        visit(middle, last)
        rows = ends[first] * math.prod(sites[first:middle])
        cols = math.prod(sites[middle:last]) * ends[last]
        products.append(Product(1, rows, ends[middle], cols))

    visit(0, stop - start)
    return products


def applying(
    order: Order, layout: MatrixLayout, bonds: tuple[int, ...], batch: int, few: int = 1
) -> list[Product]:
    """Return the products that apply the segments, in their order; ``few`` as in Speed."""
    if order.name == "dense":
        return [Product(1, layout.rows, layout.cols, batch)]
    done, todo = 1, layout.padded_shape[1]
    products = []
    left = order.side == "left"
    for start, stop in order.segments if left else order.segments[::-1]:
        i = math.prod(layout.row_dims[start:stop])
        j = math.prod(layout.col_dims[start:stop])
        todo //= j
        incoming, outgoing = (bonds[start], bonds[stop])[:: 1 if left else -1]
        items, cols = (done, todo * batch) if left else (todo, done * batch)
        rows, inner = i * outgoing, j * incoming
        moves: tuple[Move, ...] = ()
        if cols <= few and items > 1:  # then the items are columns of one product
            moves = (
                ()
                if cols == 1
                else (
                    Move(items * cols * inner, items * inner),
                    Move(items * cols * rows, items * rows),
                )
            )
            items, cols = 1, items * cols
        products.append(Product(items, rows, inner, cols, moves))
        done *= i
    return products


def counts(
    order: Order, layout: MatrixLayout, bonds: tuple[int, ...], batch: int
) -> tuple[int, int]:
    """Return the multiply-adds of an order, and the elements that it reads and writes."""
    products = [
        p for segment in order.segments for p in joining(layout, bonds, *segment)
    ] + applying(order, layout, bonds, batch)
    return sum(p.multiply_adds for p in products), sum(p.traffic for p in products)


def product_costs(layout: MatrixLayout, lefts: tuple[int, ...], batch: int) -> dict[str, int]:
    """Return the multiply-adds of W @ x, x of ``batch`` columns: by a sweep, or building W."""
    bonds, n = (*lefts, 1), layout.n_sites
    chosen = {side: Order(tuple(range(n)), side, n) for side in ("left", "right")}
    if n <= MAX_SITES:
        chosen["dense"] = Order((0,), "left", n)
    return {name: counts(order, layout, bonds, batch)[0] for name, order in chosen.items()}
