"""What the steps of a contraction cost: multiply-adds, elements alive, elements moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensornet.contract.expression import Expression

Path = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Step:
    """One step: two operands are joined, or one is summed over labels that only it has.

    Labels of size 1 are left out: nothing is to be done for them.

    Attributes
    ----------
    operands : tuple of str
        Labels of the one or two operands.
    result : str
        Labels of the result.
    multiply_adds : int
        The product of all sizes involved; 0 for sums within one operand.
    traffic : int
        Elements read and written.
    alive : int
        Elements alive during the step: all inputs, what is kept from before, and the result.
    """

    operands: tuple[str, ...]
    result: str
    multiply_adds: int
    traffic: int
    alive: int

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.result}"


class Terms:
    """An expression as bit masks: bit k of an index mask stands for label k of size above 1."""

    def __init__(self, expression: Expression) -> None:
        wide = [(label, size) for label, size in expression.sizes if size > 1]
        self.labels = [label for label, _ in wide]
        self.dims = [size for _, size in wide]
        bit = {label: 1 << k for k, label in enumerate(self.labels)}
        self.words = ["".join(c for c in word if c in bit) for word in expression.inputs]
        self.output_word = "".join(c for c in expression.output if c in bit)
        self.everything = (1 << len(wide)) - 1
        self.output = sum(bit[c] for c in self.output_word)
        size = dict(expression.sizes)
        self.input_sizes = [math.prod(size[c] for c in word) for word in expression.inputs]
        self.held = sum(self.input_sizes)
        self.masks = [sum(bit[c] for c in set(word)) for word in self.words]
        self._size: dict[int, int] = {0: 1}
        n = len(self.words)
        self.leaves = [self.kept(1 << k, self.masks[k]) for k in range(n)]
        # An operand with a diagonal or labels of its own is reduced before it is joined.
        self.reduced = [
            bin(self.leaves[k]).count("1") < len(self.words[k]) and n > 1 for k in range(n)
        ]

    def size(self, mask: int) -> int:
        """Return the number of elements of a tensor with these labels."""
        known = self._size.get(mask)
        if known is None:
            low = mask & -mask
            known = self.dims[low.bit_length() - 1] * self.size(mask ^ low)
            self._size[mask] = known
        return known

    def kept(self, operands: int, mask: int) -> int:
        """Return which labels of ``mask`` live on once the given operands are joined."""
        outside = self.output
        for k, other in enumerate(self.masks):
            if not operands >> k & 1:
                outside |= other
        return mask & outside

    def weight(self, operand: int) -> int:
        """Return the elements that an operand adds while it is used: its reduced copy, if any."""
        return self.size(self.leaves[operand]) if self.reduced[operand] else 0


class Join(NamedTuple):
    """One join of a path: positions of its operands, the sums before it, and its own step."""

    first: int
    second: int
    sums: tuple[Step | None, Step | None]
    step: Step


def steps(expression: Expression, path: Path) -> tuple[Step, ...]:
    """Return the steps of a path in the order in which they run."""
    if not path:
        return (alone(expression),)
    every = (
        step for join in schedule(expression, path) for step in (*join.sums, join.step) if step
    )
    return tuple(every)


def alone(expression: Expression) -> Step:
    """Return the step of a network with one operand."""
    terms = Terms(expression)
    moved = terms.held + terms.size(terms.output)
    return Step((terms.words[0],), terms.output_word, 0, moved, moved)


def schedule(expression: Expression, path: Path) -> list[Join]:
    """Return the joins of a path; positions as in opt_einsum: results go to the end."""
    terms = Terms(expression)
    live, joins = terms.held, []
    # Each operand left: the operands in it, its labels, what of it is alive beside the inputs.
    todo = [(1 << k, word, 0) for k, word in enumerate(terms.words)]
    for number, (first, second) in enumerate(path):
        pair, sums = [todo[first], todo[second]], list[Step | None]()
        todo = [item for k, item in enumerate(todo) if k not in (first, second)]
        for side, (members, word, _) in enumerate(pair):
            k = members.bit_length() - 1
            if members & (members - 1) or not terms.reduced[k]:
                sums.append(None)
                continue
            small, own = _only(word, terms.leaves[k], terms), terms.weight(k)
            live += own
            sums.append(Step((word,), small, 0, terms.input_sizes[k] + own, live))
            pair[side] = (members, small, own)
        (one, left, _), (two, right, _) = pair
        last = number == len(path) - 1
        word = terms.output_word if last else _joined(left, right, one | two, terms)
        masks = [_mask(w, terms) for w in (left, right, word)]
        moved, size = sum(terms.size(mask) for mask in masks), terms.size(masks[2])
        work, alive = terms.size(masks[0] | masks[1]), live + size
        step = Step((left, right), word, work, moved, alive)
        joins.append(Join(first, second, (sums[0], sums[1]), step))
        live = alive - sum(own for _, _, own in pair)
        todo.append((one | two, word, size))
    return joins


def _only(word: str, mask: int, terms: Terms) -> str:
    kept = {terms.labels[k] for k in range(len(terms.labels)) if mask >> k & 1}
    return "".join(dict.fromkeys(c for c in word if c in kept))


def _mask(word: str, terms: Terms) -> int:
    return sum(1 << terms.labels.index(c) for c in word)


def _joined(left: str, right: str, operands: int, terms: Terms) -> str:
    """Return the labels of a result in the order in which a batched product leaves them."""
    both = [c for c in left if c in right]
    order = both + [c for c in left if c not in both] + [c for c in right if c not in both]
    return _only("".join(order), terms.kept(operands, _mask("".join(order), terms)), terms)


def as_path(tree: Sequence[tuple[int, int]], n: int) -> Path:
    """Return the path of joins given as pairs of operand sets, in the order given."""
    todo = [1 << k for k in range(n)]
    path = []
    for one, two in tree:
        first, second = sorted((todo.index(one), todo.index(two)))
        path.append((first, second))
        todo = [item for k, item in enumerate(todo) if k not in (first, second)]
        todo.append(one | two)
    return tuple(path)
