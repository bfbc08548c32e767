"""``tn.plan`` and ``tn.contract``: the best pairwise order of a contraction, and its execution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensornet.backend import backend_of
from tensornet.checks import choice, integer
from tensornet.contract import large
from tensornet.contract.cost import Path, Terms, as_path, steps
from tensornet.contract.expression import Expression, read, split
from tensornet.contract.plan import MINIMIZE, Plan
from tensornet.contract.search import (
    Table,
    cheapest_order,
    cheapest_tree,
    lowest_order,
    lowest_peak,
)
from tensornet.errors import MemoryLimitError, OptionError, ShapeError, complaint
from tensornet.typing import Array, Equation, Minimize

EXACT_OPERANDS = 8


def plan(
    equation: Equation,
    *shapes: Sequence[int],
    memory_limit: int | None = None,
    minimize: Minimize = "multiply_adds",
    itemsize: int = 4,
) -> Plan:
    """Return the best order to contract a network, two operands at a time.

    Up to eight operands the order is the best there is: by dynamic programming over subsets,
    or over all sets of live tensors where memory counts. Larger networks take the best of
    opt_einsum's orders and plain sweeps, each run in an order of low peak. Where none of these
    keeps a memory limit, and for the least peak, a search over sets of live tensors follows those
    that hold the fewest elements. It is not exhaustive: of 60 random networks of 9 to 14
    operands, given the lowest peak known of them as limit, it refuses 1, where without it 40
    would be refused. Beyond 170 operands there is no such search.

    Parameters
    ----------
    equation : str or sequence of sequences
        ``"ab,bc->ac"`` with any letters of unicode, or a list of labels for each operand and
        one for the output, with any labels. A label may stand in several operands, and several
        times in one (its diagonal is taken). Without "->" the labels that stand once remain,
        in alphabetical order.
    *shapes : sequence of int
        The shape of each operand.
    memory_limit : int, optional
        Most elements alive at any moment: the inputs, intermediates and the result of the step
        that runs. Copies that a library makes inside a step are not counted.
    minimize : {"multiply_adds", "peak", "traffic"}
        What is least: multiplications, elements alive at the worst moment, or elements read
        and written. Orders equal in it are told apart by the other counts.
    itemsize : int
        Bytes of an element, for ``Plan.bytes_moved``.

    Returns
    -------
    Plan
        Immutable; prints as a table of its steps.

    Raises
    ------
    ShapeError
        If the equation cannot be read, or the shapes do not fit it or one another.
    MemoryLimitError
        If no order keeps the limit; the message has the smallest peak (for more than eight
        operands: the smallest found).
    OptionError
        If an option is not one of those listed.

    Examples
    --------
    >>> p = plan("nqx,nxv,nx->nqv", (32, 4, 2048), (32, 2048, 64), (32, 2048))
    >>> p.path, p.multiply_adds, p.strategy
    (((0, 2), (0, 1)), 17039360, 'exact')
    >>> p.run(*(np.ones(shape) for shape in p.shapes))[0, 0, 0].item()
    2048.0
    """
    expression = read(equation, shapes)
    word = choice("minimize", minimize, MINIMIZE)
    limit = memory_limit
    if limit is not None:
        limit = integer("memory_limit", limit, 1, OptionError)
    path, strategy = best_path(expression, limit, word)
    return Plan(expression.equation, expression.shapes, path, strategy, itemsize)


def contract(equation: Equation | Plan, *arrays: Array, **options: Any) -> Array:
    """Return the contraction of arrays, in the best pairwise order or that of a plan.

    Parameters
    ----------
    equation : str, sequence of sequences or Plan
        As for :func:`tensornet.plan`, or what it returned.
    *arrays : Array
        The operands: of one library, element type and device.
    **options
        ``memory_limit`` and ``minimize`` as for :func:`tensornet.plan`.

    Returns
    -------
    Array
        In the operands' library and element type. Half precision is contracted in float32 and
        rounded once at the end. torch differentiates through it.

    Raises
    ------
    ShapeError, MemoryLimitError, OptionError
        As for :func:`tensornet.plan`.
    ArrayTypeError, DTypeError
        If the operands are no arrays of one library, element type and device.

    Examples
    --------
    >>> contract("ij,jk,kl->il", np.eye(2), np.eye(2), 3 * np.eye(2)).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    if isinstance(equation, Plan):
        if options:
            given = ", ".join(sorted(options))
            raise OptionError(complaint("options", "be left out beside a plan", given))
        return equation.run(*arrays)
    expected = len(split(equation)[0])
    if len(arrays) != expected:
        text = f"be {expected}, one for each operand of the equation"
        raise ShapeError(complaint("the number of arrays", text, len(arrays)))
    backend_of(*arrays, argument="arrays")
    shapes = (tuple(int(d) for d in a.shape) for a in arrays)
    return plan(equation, *shapes, **options).run(*arrays)


@lru_cache(maxsize=4096)
def best_path(expression: Expression, limit: int | None, minimize: str) -> tuple[Path, str]:
    """Return the best path of an expression and how it was found."""
    n = len(expression.inputs)
    if n == 1:
        _keep(limit, steps(expression, ())[0].alive, "the smallest possible peak")
        return (), "exact"
    if n > EXACT_OPERANDS:
        return _best_found(expression, limit, minimize)
    table = Table(Terms(expression))
    if minimize != "peak":
        path = as_path(lowest_order(table, cheapest_tree(table, minimize)), n)
        if limit is None or _peak(expression, path) <= limit:
            return path, "exact"
    joins = cheapest_order(table, limit, minimize)
    if joins is None:
        raise _refusal(limit, lowest_peak(table), "the smallest possible peak")
    return as_path(joins, n), "exact"


def _best_found(expression: Expression, limit: int | None, minimize: str) -> tuple[Path, str]:
    ranked = [_ranked(expression, *found, minimize) for found in large.candidates(expression)]
    if minimize == "peak":
        found = large.low_candidates(expression, None)
        ranked += [_ranked(expression, *one, minimize) for one in found]
    if limit is not None and min(entry.peak for entry in ranked) > limit:
        ranked += _within(expression, limit, minimize)
        _keep(limit, min(entry.peak for entry in ranked), "the smallest peak found")
    kept = [entry for entry in ranked if limit is None or entry.peak <= limit]
    best = min(kept, key=lambda entry: entry.counts)
    return best.path, best.name


class _Ranked(NamedTuple):
    """What is compared of a path, its peak, and how it was found."""

    counts: list[int]
    peak: int
    path: Path
    name: str


def _ranked(expression: Expression, name: str, path: Path, minimize: str) -> _Ranked:
    made = steps(expression, path)
    counts = {
        "multiply_adds": sum(s.multiply_adds for s in made),
        "peak": max(s.alive for s in made),
        "traffic": sum(s.traffic for s in made),
    }
    return _Ranked([counts[minimize], *counts.values()], counts["peak"], path, name)


def _within(expression: Expression, limit: int, minimize: str) -> list[_Ranked]:
    """Return paths that keep a limit, or those of the lowest peaks found if there are none."""
    for most in (limit, None):
        found = large.low_candidates(expression, most)
        ranked = [_ranked(expression, *one, minimize) for one in found]
        if ranked:
            return ranked
    return []


def _peak(expression: Expression, path: Path) -> int:
    return max(step.alive for step in steps(expression, path))


def _keep(limit: int | None, peak: int, what: str) -> None:
    if limit is not None and peak > limit:
        raise _refusal(limit, peak, what)


def _refusal(limit: int | None, peak: int, what: str) -> MemoryLimitError:
    expected = f"be at least {peak} elements, {what}"
    return MemoryLimitError(complaint("memory_limit", expected, limit), peak)
