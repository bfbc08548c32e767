"""Plans of the product of an MPO with a batch of vectors, and where its cores beat the matrix."""

from __future__ import annotations

from typing import NamedTuple, cast

from tensornet.checks import choice, describe, integer
from tensornet.contract.chain import join_order
from tensornet.contract.cost import as_path
from tensornet.contract.expression import read
from tensornet.contract.orders import Order, counts, orders
from tensornet.contract.plan import MINIMIZE, Plan
from tensornet.contract.planner import EXACT_OPERANDS, plan
from tensornet.contract.speed import Speed, ranked
from tensornet.errors import MemoryLimitError, OptionError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.typing import Minimize

Joins = list[tuple[int, int]]
_COUNT = {"multiply_adds": "multiply_adds", "peak": "peak_elements", "traffic": "traffic"}


class BreakEven(NamedTuple):
    """The largest uniform bond at which cores beat the dense matrix; 0 where none does.

    A bond is capped at what the layout can need. Where the largest that the layout can need
    still wins, that one is returned.

    Attributes
    ----------
    multiply_adds : int
        By the multiply-adds of the product with a batch.
    bytes_moved : int
        By the bytes that the steps of the product read and write.

    Examples
    --------
    >>> BreakEven(multiply_adds=12, bytes_moved=7).bytes_moved
    7
    """

    multiply_adds: int
    bytes_moved: int


def matrix_plan(
    layout: MatrixLayout,
    bonds: tuple[int, ...],
    batch: int,
    *,
    memory_limit: int | None,
    minimize: str,
    itemsize: int,
    speed: Speed,
) -> Plan:
    """Return the plan of W @ x for the cores of W and x of shape (*col_dims, batch)."""
    batch = integer("batch", batch, 1, ShapeError)
    aim = choice("minimize", minimize, ("time", *MINIMIZE))
    if memory_limit is not None:
        memory_limit = integer("memory_limit", memory_limit, 1, OptionError)
    words, shapes = _network(layout, bonds, batch)
    found = []
    for order in ranked(layout, bonds, batch, speed):
        path = as_path(_joins(order, layout, bonds), layout.n_sites + 1)
        found.append(Plan(words, shapes, path, order.name, itemsize))
    if aim != "time":
        found.sort(key=lambda made: getattr(made, _COUNT[aim]))  # stable: ties by expected time
    kept = [p for p in found if memory_limit is None or p.peak_elements <= memory_limit]
    exact = layout.n_sites + 1 <= EXACT_OPERANDS
    if kept and (aim == "time" or not exact):
        return kept[0]
    smallest = min(p.peak_elements for p in found)
    word: Minimize = "peak" if aim == "time" else cast(Minimize, aim)
    try:
        general = plan(words, *shapes, memory_limit=memory_limit, minimize=word, itemsize=itemsize)
    except MemoryLimitError as refusal:
        peak = min(smallest, refusal.smallest_peak or smallest)
        what = "the smallest possible peak" if exact else "the smallest peak found"
        expected = f"be at least {peak} elements, {what}"
        raise MemoryLimitError(complaint("memory_limit", expected, memory_limit), peak) from None
    if kept and getattr(kept[0], _COUNT[word]) <= getattr(general, _COUNT[word]):
        return kept[0]
    return Plan(words, shapes, general.path, "factorized", itemsize)


def break_even(layout: MatrixLayout, batch: int = 1) -> BreakEven:
    """Return the largest uniform bond at which the cores beat the dense matrix for a batch.

    The cores are applied in the best order that does not build the matrix, and the dense matrix
    is there already. Both counts grow with the bond, so bonds below the result win too.

    Parameters
    ----------
    layout : MatrixLayout
        Sites and size of the matrix.
    batch : int
        Number of vectors that it is multiplied with.

    Returns
    -------
    BreakEven
        One bond by multiply-adds, one by bytes moved.

    Raises
    ------
    ShapeError
        If ``layout`` is no layout or ``batch`` no positive integer.

    Examples
    --------
    >>> layout = MatrixLayout((4, 4, 4, 4), (4, 4, 4, 4))
    >>> break_even(layout, batch=1)
    BreakEven(multiply_adds=5, bytes_moved=47)
    """
    if not isinstance(layout, MatrixLayout):
        raise ShapeError(complaint("layout", "be a MatrixLayout", describe(layout)))
    batch = integer("batch", batch, 1, ShapeError)
    rows, cols = layout.shape
    dense = (rows * cols * batch, rows * cols + (rows + cols) * batch)
    factored = [order for order in orders(layout.n_sites) if order.name != "dense"]
    return BreakEven(*(_largest(layout, batch, factored, k, dense[k]) for k in range(2)))


def _largest(
    layout: MatrixLayout, batch: int, factored: list[Order], which: int, dense: int
) -> int:
    def wins(bond: int) -> bool:
        bonds = layout.structural_bonds(bond)
        return any(counts(order, layout, bonds, batch)[which] < dense for order in factored)

    low, high = 0, max(layout.structural_bonds()) + 1  # wins at low, loses at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low


def _network(
    layout: MatrixLayout, bonds: tuple[int, ...], batch: int
) -> tuple[str, tuple[tuple[int, ...], ...]]:
    n = layout.n_sites
    words: list[list[str]] = [[f"b{k}", f"i{k}", f"j{k}", f"b{k + 1}"] for k in range(n)]
    words.append([*(f"j{k}" for k in range(n)), "batch"])
    words.append([*(f"i{k}" for k in range(n)), "batch"])
    shapes = (*layout.core_shapes(bonds), (*layout.col_dims, batch))
    return read(words, shapes).equation, shapes


def _joins(order: Order, layout: MatrixLayout, bonds: tuple[int, ...]) -> Joins:
    joins: Joins = []

    def segment(start: int, stop: int) -> int:
        if stop - start == 1:
            return 1 << start
        split = join_order(layout.site_dims[first:last], bonds[first : last + 1]).split
        middle = first + split[start - first, stop - first]
        one, two = segment(start, middle), segment(middle, stop)
        joins.append((one, two))
        return one | two

    state = 1 << layout.n_sites
    for first, last in order.segments if order.side == "left" else order.segments[::-1]:
        members = segment(first, last)
        joins.append((members, state))
        state |= members
    return joins
