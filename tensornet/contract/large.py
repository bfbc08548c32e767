"""Orders for networks of more than eight operands: opt_einsum's, sweeps, and those of low peak."""

from __future__ import annotations

from collections.abc import Iterator

from tensornet.contract.beam import low_peaks
from tensornet.contract.cost import Path, Terms, as_path
from tensornet.contract.expression import Expression

Joins = list[tuple[int, int]]
_OPTIMIZERS = ("auto", "greedy")


def candidates(expression: Expression) -> list[tuple[str, Path]]:
    """Return named paths, all pairwise: opt_einsum's and sweeps over the operands both ways."""
    import opt_einsum

    terms, n = Terms(expression), len(expression.inputs)
    found: list[tuple[str, Joins]] = []
    for optimizer in _OPTIMIZERS:
        path, _ = opt_einsum.contract_path(
            expression.equation, *expression.shapes, shapes=True, optimize=optimizer
        )
        found.append(("opt_einsum", _joins(path, n)))
    found += [("left", _sweep(range(n))), ("right", _sweep(range(n - 1, -1, -1)))]
    return [(name, as_path(_low(joins, terms), n)) for name, joins in found]


def low_candidates(expression: Expression, limit: int | None) -> Iterator[tuple[str, Path]]:
    """Yield named paths whose peak is low, and at most ``limit``: see the search for them."""
    terms = Terms(expression)
    for joins in low_peaks(terms, limit):
        yield "low_peak", as_path(joins, len(expression.inputs))


def _joins(path: list[tuple[int, ...]], n: int) -> Joins:
    todo, joins = [1 << k for k in range(n)], []
    for positions in path:
        taken = [todo[k] for k in positions]
        todo = [item for k, item in enumerate(todo) if k not in positions]
        result = taken[0]
        for other in taken[1:]:
            joins.append((result, other))
            result |= other
        todo.append(result)
    return joins


def _sweep(order: range) -> Joins:
    joins, done = [], 1 << order[0]
    for k in order[1:]:
        joins.append((done, 1 << k))
        done |= 1 << k
    return joins


def _low(joins: Joins, terms: Terms) -> Joins:
    """Return the tree's joins in an order with a low peak.

    Of two branches the one whose peak exceeds what it leaves by more comes first; this is the
    best among orders that finish a branch before they begin another.
    """
    every = terms.masks
    state: dict[int, tuple[int, int, Joins]] = {1 << k: (0, 0, []) for k in range(len(terms.words))}
    union = {1 << k: every[k] for k in range(len(terms.words))}
    for one, two in joins:
        union[one | two] = union[one] | union[two]
        size = terms.size(terms.kept(one | two, union[one | two]))
        parts = sorted((one, two), key=lambda m: state[m][0] - state[m][1], reverse=True)
        (peak, own, first), (other, rest, second) = (state.pop(m) for m in parts)
        copies = sum(terms.weight(m.bit_length() - 1) for m in parts if not m & (m - 1))
        reached = max(peak, own + other, own + rest + copies + size)
        state[one | two] = (reached, size, [*first, *second, (one, two)])
    ((_, _, order),) = state.values()
    return order
