"""The best pairwise order, by dynamic programming: over subsets, or over all live tensors.

Additive costs (multiply-adds, traffic) depend on the tree of joins alone, and the best tree of
a set of operands consists of best trees of its two parts: 3^n splits. The peak of memory depends
on the order too, so it needs states that say what is alive: the partitions of the operands.
"""

from __future__ import annotations

from tensornet.contract.cost import Terms

Joins = list[tuple[int, int]]


class Table:
    """Labels and sizes of every joined set of up to eight operands."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.n = len(terms.words)
        self.full = (1 << self.n) - 1
        union = [0] * (self.full + 1)
        for members in range(1, self.full + 1):
            low = members & -members
            union[members] = union[members ^ low] | terms.leaves[low.bit_length() - 1]
        output = terms.output
        # What a set keeps is what the other operands or the output have too.
        self.kept = [u & (union[self.full ^ m] | output) for m, u in enumerate(union)]
        self.size = [terms.size(mask) for mask in self.kept]
        # What a set adds to the memory held by the inputs while it is alive.
        self.own = list(self.size)
        for k in range(self.n):
            self.own[1 << k] = 0
        # Two sums in one number: the first times this, which the second never reaches.
        self.scale = 1 << (terms.size(terms.everything).bit_length() + 16)

    def join(self, one: int, two: int) -> int:
        """Return the multiply-adds of one join."""
        return self.terms.size(self.kept[one] | self.kept[two])

    def moved(self, one: int, two: int) -> int:
        """Return the elements read and written by one join."""
        return self.size[one] + self.size[two] + self.size[one | two]


def cheapest_tree(table: Table, minimize: str) -> Joins:
    """Return the joins of the tree with the least multiply-adds or traffic, children first.

    Of equals the one that is better in the other count.
    """
    size, kept, product = table.size, table.kept, table.terms.size
    scale = table.scale
    by_traffic = minimize == "traffic"
    best, split = [0] * (table.full + 1), [0] * (table.full + 1)
    for members in range(3, table.full + 1):
        low = members & -members
        rest = members ^ low
        if not rest:
            continue
        least, where = -1, 0
        part = rest
        while part:  # every part that lacks the lowest operand: each split once
            other = members ^ part
            work = product(kept[part] | kept[other])
            moved = size[part] + size[other]
            own = moved * scale + work if by_traffic else work * scale + moved
            cost = best[part] + best[other] + own
            if least < 0 or cost < least:
                least, where = cost, part
            part = (part - 1) & rest
        extra = size[members] * (scale if by_traffic else 1)
        best[members], split[members] = least + extra, where
    joins: Joins = []
    _collect(table.full, split, joins)
    return joins


def _collect(members: int, split: list[int], joins: Joins) -> None:
    if members & (members - 1):
        one, two = split[members], members ^ split[members]
        _collect(one, split, joins)
        _collect(two, split, joins)
        joins.append((one, two))


def lowest_order(table: Table, joins: Joins) -> Joins:
    """Return the order of a tree's joins with the lowest peak: over all sets of joins done."""
    parents = {one | two: (one, two) for one, two in joins}
    nodes = [one | two for one, two in joins]
    bit = {node: 1 << k for k, node in enumerate(nodes)}
    needs = [sum(bit.get(part, 0) for part in parents[node]) for node in nodes]
    rise = [_rise(table, *parents[node]) for node in nodes]
    change = [table.own[node] - sum(table.own[part] for part in parents[node]) for node in nodes]
    # done -> (peak so far, order); what is alive depends on ``done`` alone.
    front: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for _ in nodes:
        following: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for done, (peak, live, order) in front.items():
            for k, need in enumerate(needs):
                if done >> k & 1 or done & need != need:
                    continue
                reached = max(peak, live + rise[k])
                known = following.get(done | 1 << k)
                if known is None or reached < known[0]:
                    following[done | 1 << k] = (reached, live + change[k], (*order, k))
        front = following
    ((_, _, order),) = front.values()
    return [parents[nodes[k]] for k in order]


def _rise(table: Table, one: int, two: int) -> int:
    """Return the elements that are alive beside the others while a join runs."""
    extra = sum(table.terms.weight(m.bit_length() - 1) for m in (one, two) if not m & (m - 1))
    return table.size[one | two] + extra


def lowest_peak(table: Table) -> int:
    """Return the smallest peak that any order has: all live elements at the worst moment."""
    return _over_partitions(table, None, "peak")[0] + table.terms.held


def cheapest_order(table: Table, limit: int | None, minimize: str) -> Joins | None:
    """Return the joins of the cheapest order whose peak is at most ``limit``, if there is one.

    With ``minimize="peak"`` the peak comes first, then multiply-adds.
    """
    if minimize == "peak":
        lowest = lowest_peak(table)
        if limit is not None and lowest > limit:
            return None
        limit, minimize = lowest, "multiply_adds"
    room = None if limit is None else limit - table.terms.held
    return _over_partitions(table, room, minimize)[1]


def _over_partitions(table: Table, room: int | None, minimize: str) -> tuple[int, Joins | None]:
    """Return the least cost and its joins, over every order of joining pairs.

    A state is the set of tensors that are left; what led there matters only by its cost, the
    peak so far (``minimize="peak"``) or a sum.
    """
    start = tuple(1 << k for k in range(table.n))
    front: dict[tuple[int, ...], int] = {start: 0}
    came: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, int]]] = {}
    prices: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(table.n - 1):
        following: dict[tuple[int, ...], int] = {}
        for state, cost in front.items():
            live = sum(table.own[m] for m in state)
            for i, one in enumerate(state):
                for j in range(i):
                    two = state[j]
                    pair = (two, one)
                    if pair not in prices:
                        prices[pair] = _price(table, pair, minimize)
                    rise, price = prices[pair]
                    if room is not None and live + rise > room:
                        continue
                    total = max(cost, live + rise) if minimize == "peak" else cost + price
                    rest = state[:j] + state[j + 1 : i] + state[i + 1 :]
                    new = tuple(sorted((*rest, one | two)))
                    if new not in following or total < following[new]:
                        following[new] = total
                        came[new] = (state, pair)
        front = following
    if not front:
        return -1, None
    ((state, cost),) = front.items()
    joins: Joins = []
    while state != start:
        state, pair = came[state]
        joins.append(pair)
    return cost, joins[::-1]


def _price(table: Table, pair: tuple[int, int], minimize: str) -> tuple[int, int]:
    """Return what a join adds to the memory while it runs, and its cost."""
    work, moved, scale = table.join(*pair), table.moved(*pair), table.scale
    price = moved * scale + work if minimize == "traffic" else work * scale + moved
    return _rise(table, *pair), price
