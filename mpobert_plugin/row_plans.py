"""Choose how rows and products of a tall MPO are computed: by its cores, or by rebuilding it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, int, int, int]
# Numbers of rows for which a plan is made; one serves all numbers up to the next.
_COUNTS = tuple(2**k for k in range(25))


@dataclass(frozen=True)
class RowPlan:
    """How many rows are looked up, or multiplied, by the cores of an MPO.

    The chain is cut at a bond. On either side, rows that begin (or end) with the same digits
    share a table as long as it has no more entries than there are rows; the sites after it are
    gathered row by row.

    Parameters
    ----------
    most : int
        The plan is for up to so many rows.
    dense : bool
        Whether the whole matrix is rebuilt instead.
    meet : int
        Number of sites left of the cut.
    left_tables, right_tables : int
        Number of sites of either side that go into its table.
    left_first : bool
        For products: whether the left side meets the input first.
    multiply_adds : int
        For `most` rows.
    peak_elements : int
        Elements of the largest step for `most` rows: what it reads and what it makes.
    """

    most: int
    dense: bool = True
    meet: int = 0
    left_tables: int = 0
    right_tables: int = 0
    left_first: bool = True
    multiply_adds: int = 0
    peak_elements: int = 0


def lookup_plans(shapes: Sequence[Shape], rebuilding: int) -> tuple[RowPlan, ...]:
    """Return the cheapest ways to look up rows, for growing numbers of rows.

    A way by the cores is taken when it needs fewer multiply-adds than rebuilding the matrix and no
    more memory.

    Parameters
    ----------
    shapes : sequence of (int, int, int, int)
        Shape (left bond, row factor, column factor, right bond) of each core.
    rebuilding : int
        Multiply-adds of rebuilding the matrix.

    Returns
    -------
    tuple of RowPlan
        Ascending in `most`; the last one is for any number of rows.

    Examples
    --------
    >>> shapes = [(1, 8, 4, 16), (16, 8, 4, 16), (16, 8, 4, 1)]
    >>> [(plan.most, plan.dense) for plan in lookup_plans(shapes, 40_000)]
    [(4, False), (16777216, True)]
    """
    size = math.prod(i * j for _, i, j, _ in shapes)
    cols = math.prod(j for _, _, j, _ in shapes)
    found = []
    for count in _COUNTS:
        dense = RowPlan(count, multiply_adds=rebuilding, peak_elements=size + count * cols)
        ways = [_lookup(shapes, meet, count) for meet in range(len(shapes) + 1)]
        found.append(_cheapest(dense, ways))
    return _merged(found)


def product_plans(
    shapes: Sequence[Shape], rebuilding: int, rows: int, cols: int
) -> tuple[RowPlan, ...]:
    """Return the cheapest ways to multiply inputs with the matrix, for growing numbers of inputs.

    Parameters
    ----------
    shapes : sequence of (int, int, int, int)
        Shape of each core.
    rebuilding : int
        Multiply-adds of rebuilding the matrix.
    rows, cols : int
        True size of the matrix.

    Returns
    -------
    tuple of RowPlan
        Ascending in `most`; the last one is for any number of inputs.

    Examples
    --------
    >>> shapes = [(1, 8, 4, 2), (2, 8, 4, 2), (2, 8, 4, 1)]
    >>> [(plan.most, plan.dense) for plan in product_plans(shapes, 70_000, 512, 64)]
    [(64, False), (128, False), (16777216, True)]
    """
    size = math.prod(i * j for _, i, j, _ in shapes)
    found = []
    for count in _COUNTS:
        cost = rebuilding + count * rows * cols
        dense = RowPlan(count, multiply_adds=cost, peak_elements=size + count * (rows + cols))
        ways = [
            _product(shapes, meet, count, left_first)
            for meet in range(1, len(shapes))
            for left_first in (True, False)
        ]
        found.append(_cheapest(dense, ways))
    return _merged(found)


def plan_for(plans: Sequence[RowPlan], count: int) -> RowPlan:
    """Return the plan for a number of rows.

    Parameters
    ----------
    plans : sequence of RowPlan
        Ascending in `most`.
    count : int
        Number of rows.

    Returns
    -------
    RowPlan
        The first one that is made for so many, else the last.

    Examples
    --------
    >>> plan_for((RowPlan(8), RowPlan(64)), 9).most
    64
    """
    for plan in plans:
        if count <= plan.most:
            return plan
    return plans[-1]


def _cheapest(dense: RowPlan, ways: Sequence[RowPlan]) -> RowPlan:
    small = [way for way in ways if way.peak_elements <= dense.peak_elements]
    return min([dense, *small], key=lambda way: (way.multiply_adds, way.peak_elements))


def _merged(plans: Sequence[RowPlan]) -> tuple[RowPlan, ...]:
    """Join plans that say the same for neighbouring numbers of rows."""
    merged: list[RowPlan] = []
    for plan in plans:
        if merged and _way(merged[-1]) == _way(plan):
            merged.pop()
        merged.append(plan)
    return tuple(merged)


def _way(plan: RowPlan) -> RowPlan:
    return replace(plan, most=0, multiply_adds=0, peak_elements=0)


def _lookup(shapes: Sequence[Shape], meet: int, count: int) -> RowPlan:
    left, right = shapes[:meet], _mirrored(shapes[meet:])
    left_cost, left_peak, left_tables = _side(left, count)
    right_cost, right_peak, right_tables = _side(right, count)
    bond = left[-1][3] if left else 1
    left_cols, right_cols = (math.prod(j for _, _, j, _ in side) for side in (left, right))
    cost = left_cost + right_cost + count * left_cols * right_cols * bond
    joined = count * (bond * (left_cols + right_cols) + left_cols * right_cols)
    return RowPlan(
        count,
        dense=False,
        meet=meet,
        left_tables=left_tables,
        right_tables=right_tables,
        multiply_adds=cost,
        peak_elements=max(left_peak, right_peak, joined),
    )


def _side(shapes: Sequence[Shape], count: int) -> tuple[int, int, int]:
    """Return multiply-adds, largest step and number of sites in the table of one side."""
    cost = peak = tables = 0
    known = done = 1
    for site, (left, i, j, right) in enumerate(shapes):
        core = left * i * j * right
        if tables == site and (site == 0 or known * i <= count):
            tables = site + 1
            cost += known * done * core if site else 0
            held = (known * done * left + core if site else 0) + known * i * done * j * right
            known *= i
        else:
            cost += count * done * left * j * right
            held = count * (left * j * right + done * left + done * j * right)
        peak = max(peak, held)
        done *= j
    return cost, peak, tables


def _product(shapes: Sequence[Shape], meet: int, count: int, left_first: bool) -> RowPlan:
    left, right = shapes[:meet], _mirrored(shapes[meet:])
    left_rows, right_rows = (math.prod(i for _, i, _, _ in side) for side in (left, right))
    left_cols, right_cols = (math.prod(j for _, _, j, _ in side) for side in (left, right))
    # With so many rows both sides are whole tables.
    left_cost, left_peak, left_tables = _side(left, left_rows)
    right_cost, right_peak, right_tables = _side(right, right_rows)
    rows, cols, bond = left_rows * right_rows, left_cols * right_cols, left[-1][3]
    if left_first:
        step, middle = cols * left_rows * bond + rows * right_cols * bond, right_cols * left_rows
    else:
        step, middle = cols * right_rows * bond + rows * left_cols * bond, left_cols * right_rows
    tables = bond * (left_rows * left_cols + right_rows * right_cols)
    held = tables + count * (middle * bond + max(rows, cols))
    return RowPlan(
        count,
        dense=False,
        meet=meet,
        left_tables=left_tables,
        right_tables=right_tables,
        left_first=left_first,
        multiply_adds=left_cost + right_cost + count * step,
        peak_elements=max(left_peak, right_peak, held),
    )


def _mirrored(shapes: Sequence[Shape]) -> list[Shape]:
    return [(right, i, j, left) for left, i, j, right in reversed(shapes)]
