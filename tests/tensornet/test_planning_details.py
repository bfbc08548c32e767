"""Equations, plans as values, operands as they lie, and orders of networks of many operands."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.contract.cost import Terms, as_path
from tensornet.contract.expression import read
from tensornet.contract.large import _low, candidates
from tensornet.errors import ArrayTypeError, ShapeError

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("aaa->a", [(3, 3, 3)]),
        ("aaab->b", [(3, 3, 3, 2)]),
        ("abab->ba", [(2, 3, 2, 3)]),
        ("aab,bcc->ac", [(2, 2, 3), (3, 4, 4)]),
        ("baca,cb->", [(2, 3, 4, 3), (4, 2)]),
        ("ab,ab->ba", [(2, 3), (2, 3)]),
        ("abc,bad->dbca", [(2, 3, 4), (3, 2, 5)]),
        ("xab,xbc->cxa", [(3, 2, 4), (3, 4, 5)]),
        ("a,b->ba", [(2,), (3,)]),
        (",a->a", [(), (4,)]),
    ],
)
def test_diagonals_and_orders_of_labels(equation, shapes):
    arrays = [RNG.normal(size=shape) for shape in shapes]
    assert np.allclose(tn.contract(equation, *arrays), np.einsum(equation, *arrays))


def test_what_comes_back_is_no_view_of_an_operand():
    a = RNG.normal(size=(3, 4))
    for equation in ("ab->ab", "ab->ba"):
        assert not np.shares_memory(tn.contract(equation, a), a)
    assert not np.shares_memory(tn.contract("aa->a", a[:, :3]), a)


def test_spaces_are_skipped_and_outputs_may_be_left_out():
    assert read(" ab, bc -> a c ", ((2, 3), (3, 4))).equation == "ab,bc->ac"
    assert read("cb,ba", ((2, 3), (3, 4))).equation == "cb,ba->ac"
    assert read("aab", ((2, 2, 3),)).equation == "aab->b"
    assert read("ba->", ((2, 3),)).output == ""
    assert read([(3, "x"), ("x", 7), (7, 3)], ((2, 3), (3, 4))).equation == "ab,bc->ca"


@pytest.mark.parametrize("equation", ["a-b,bc->ac", "ab>ba", "ab,bc-ac", "a.b->ab", "ab-->ba"])
def test_signs_that_are_no_labels_are_refused(equation):
    with pytest.raises(ShapeError, match="have labels, commas and at most one '->'"):
        tn.plan(equation, *[(2, 2)] * (equation.count(",") + 1))


def test_plans_made_by_hand_are_as_those_that_were_searched_for():
    plan = tn.Plan("ab,bc", [[2, 3], [3, 4]], [[0, 1]], "by hand", itemsize=2)
    assert plan.equation == "ab,bc->ac"
    assert plan.shapes == ((2, 3), (3, 4))
    assert plan.path == ((0, 1),)
    assert hash(plan) == hash(tn.Plan("ab,bc->ac", ((2, 3), (3, 4)), ((0, 1),), "by hand", 2))
    assert (plan.multiply_adds, plan.traffic, plan.bytes_moved) == (24, 26, 52)
    for wrong in ([[-1, 0]], [[0, -2]], [[0, 2]], [[0, 1, 1]], [[0, 0.5]]):
        with pytest.raises(ShapeError, match="path"):
            tn.Plan("ab,bc", ((2, 3), (3, 4)), wrong, "by hand")
    with pytest.raises(tn.errors.OptionError, match="strategy must be a word, got 7"):
        tn.Plan("ab,bc", ((2, 3), (3, 4)), ((0, 1),), 7)


def test_the_table_of_a_plan():
    plan = tn.Plan("ab,bc,cd->ad", ((2, 900), (900, 2), (2, 9)), ((0, 1), (0, 1)), "exact")
    assert str(plan).splitlines() == [
        "step      multiply-adds traffic alive",
        "ab,bc->ac         3,600   3,604 3,622",
        "cd,ac->ad            36      40 3,640",
        "-------------------------------------",
        "exact             3,636   3,644 3,640",
        "alive: peak in the last row; 14,576 bytes moved at 4 bytes an element",
    ]


@pytest.mark.parametrize("name", ["multiply_adds", "peak_elements", "traffic"])
def test_every_count_of_a_written_plan_is_checked(name):
    plan = tn.plan("ab,bc,cd", (2, 3), (3, 4), (4, 5))
    record = json.loads(plan.to_json())
    record[name] += 1
    with pytest.raises(tn.errors.OptionError, match=f"text must have {name} {getattr(plan, name)}"):
        tn.Plan.from_json(json.dumps(record))


def test_operands_on_two_devices_are_refused():
    a, b = torch.ones(2, 3), torch.ones(3, 4, device="meta")
    with pytest.raises(ArrayTypeError, match=r"arrays\[1\] must be .* device, got meta with .*cpu"):
        tn.contract("ab,bc", a, b)


def test_the_last_array_is_checked_in_every_dimension():
    with pytest.raises(ShapeError, match=r"arrays\[0\] must have shape \(2, 3\), got \(2, 4\)"):
        tn.plan("ab,bc", (2, 3), (3, 4)).run(np.ones((2, 4)), np.ones((3, 4)))


# Networks of more operands than all orders are looked at for.


def network(n, rng):
    """Return an expression of n operands: a ring with chords, and a label in three of them."""
    edges = [{k, (k + 1) % n} for k in range(n)] + [{0, n // 2}, {1, 3, n - 1}]
    words = ["".join(chr(97 + e) for e, ends in enumerate(edges) if k in ends) for k in range(n)]
    words[2] += words[2][0]  # a diagonal, which is reduced before it is joined
    size = {chr(97 + e): int(rng.integers(2, 9)) for e in range(len(edges))}
    shapes = tuple(tuple(size[c] for c in word) for word in words)
    return read(f"{','.join(words)}->{words[0][:1]}", shapes)


def sparse(n, rng):
    """Return an expression of n small operands, some of which are joined without a common label."""
    size = {chr(97 + e): int(rng.choice([2, 3, 20])) for e in range(10)}
    drawn = (rng.choice(list(size), int(rng.integers(1, 4))) for _ in range(n))
    words = ["".join(sorted(set(word))) for word in drawn]
    shapes = tuple(tuple(size[c] for c in word) for word in words)
    return read(f"{','.join(words)}->{words[0][:1]}", shapes)


def tree(n, rng):
    todo, joins = [1 << k for k in range(n)], []
    while len(todo) > 1:
        one, two = (todo.pop(int(rng.integers(len(todo)))) for _ in range(2))
        joins.append((one, two))
        todo.append(one | two)
    return joins


def by_depth(joins):
    """Return all orders of a tree's joins that finish a branch before they begin another."""
    children = {one | two: (one, two) for one, two in joins}

    def orders(node):
        if node not in children:
            return [[]]
        found = []
        for first, second in itertools.permutations(children[node]):
            pairs = itertools.product(orders(first), orders(second))
            found += [[*a, *b, children[node]] for a, b in pairs]
        return found

    return orders(max(children))


@pytest.mark.parametrize(
    ("made", "n", "seed"),
    [
        *((network, 7, seed) for seed in (0, 10, 32, 76)),
        *((sparse, 6, seed) for seed in (0, 7, 25, 39, 49, 82)),
        *((sparse, 7, seed) for seed in (2, 5, 48)),
    ],
)
def test_branches_come_in_the_order_of_the_lowest_peak(made, n, seed):
    rng = np.random.default_rng(seed)
    expression = made(n, rng)
    joins = tree(n, rng)

    def peak(order):
        path = as_path(order, n)
        return tn.Plan(expression.equation, expression.shapes, path, "x").peak_elements

    assert peak(_low(joins, Terms(expression))) == min(peak(order) for order in by_depth(joins))


def test_sweeps_go_both_ways_beside_what_opt_einsum_finds():
    expression = read(
        ",".join(chr(97 + k) + chr(98 + k) for k in range(10)) + "->ak", [(2, 2)] * 10
    )
    found = candidates(expression)
    assert [name for name, _ in found] == ["opt_einsum", "opt_einsum", "left", "right"]
    left, right = found[2][1], found[3][1]
    assert left[:2] == ((0, 1), (0, 8))
    assert right[:2] == ((8, 9), (7, 8))


def test_a_network_that_only_a_sweep_from_the_right_keeps_small():
    # Widths that fall from left to right: joined from the left everything stays wide.
    dims = [40, 1, *[30] * 8, 2]
    letters = [chr(97 + k) for k in range(11)]
    words = [letters[k] + letters[k + 1] for k in range(10)]
    shapes = [(dims[k], dims[k + 1]) for k in range(10)]
    plan = tn.plan(",".join(words) + "->ak", *shapes)
    assert plan.multiply_adds <= 30 * 2 + 7 * 30 * 30 * 2 + 30 * 2 + 40 * 2
