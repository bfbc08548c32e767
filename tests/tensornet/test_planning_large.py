"""Networks of more than eight operands under memory limits: met where they can be, or refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import tensornet as tn
from tensornet.contract import beam, large
from tensornet.contract.cost import Terms, as_path, steps
from tensornet.contract.expression import read
from tensornet.contract.search import Table, lowest_peak
from tensornet.errors import MemoryLimitError


def network(seed, n):
    """A connected network with some loops, and labels in the output."""
    rng = random.Random(seed)
    words, output, labels = [[] for _ in range(n)], [], iter(range(10**6))
    for k in range(1, n):
        pairs = [(k, rng.randrange(k))]
        if rng.random() < 0.5:
            pairs.append(tuple(rng.sample(range(n), 2)))
        for pair in pairs:
            label = next(labels)
            for operand in pair:
                words[operand].append(label)
    for word in words:
        if rng.random() < 0.35:
            word.append(next(labels))
            output.append(word[-1])
    size = {label: rng.choice([2, 2, 3, 4, 5]) for word in words for label in word}
    return [*words, output], [tuple(size[label] for label in word) for word in words]


def peak(expression, path):
    return max(step.alive for step in steps(expression, path))


def found_before(expression):
    return min(peak(expression, path) for _, path in large.candidates(expression))


@pytest.mark.parametrize("seed", [0, 8])
def test_the_lowest_peak_of_nine_operands_is_met(seed):
    equation, shapes = network(seed, 9)
    expression = read(equation, shapes)
    lowest = lowest_peak(Table(Terms(expression)))
    plan = tn.plan(equation, *shapes, memory_limit=lowest)
    assert plan.peak_elements <= lowest
    with pytest.raises(MemoryLimitError, match=f"be at least {lowest} elements, the smallest"):
        tn.plan(equation, *shapes, memory_limit=lowest - 1)
    assert tn.plan(equation, *shapes, minimize="peak").peak_elements == lowest


@pytest.mark.parametrize(("n", "seed"), [(9, 7), (10, 7), (11, 8)])
def test_limits_that_usual_orders_break_are_met(n, seed):
    equation, shapes = network(seed, n)
    usual = found_before(read(equation, shapes))
    with pytest.raises(MemoryLimitError) as caught:
        tn.plan(equation, *shapes, memory_limit=sum(math.prod(shape) for shape in shapes))
    lowest = caught.value.smallest_peak
    assert lowest < usual
    plan = tn.plan(equation, *shapes, memory_limit=lowest)
    assert plan.strategy == "low_peak"
    assert plan.peak_elements <= lowest


def test_limits_that_usual_orders_keep_change_nothing():
    equation, shapes = network(1, 12)
    free = tn.plan(equation, *shapes)
    assert tn.plan(equation, *shapes, memory_limit=free.peak_elements) == free


def test_an_order_of_low_peak_contracts_right():
    equation, shapes = network(0, 9)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    plan = tn.plan(equation, *shapes, minimize="peak")
    assert np.allclose(plan.run(*arrays), tn.contract(equation, *arrays))


def test_operands_that_are_reduced_first_and_outer_products_are_counted():
    words = [("a", "a", "b"), ("b", "x"), *(((k, k + 1)) for k in range(7)), ("z",), (7, "a")]
    sizes = {"a": 3, "b": 2, "x": 4, "z": 5} | dict.fromkeys(range(8), 2)
    shapes = [tuple(sizes[label] for label in word) for word in words]
    equation = [*words, (0, "z")]
    expression, terms = read(equation, shapes), Terms(read(equation, shapes))
    for joins in beam.low_peaks(terms, None):
        path = as_path(joins, len(words))
        limit = peak(expression, path)
        assert limit <= found_before(expression)
        for again in beam.low_peaks(terms, limit):
            assert peak(expression, as_path(again, len(words))) <= limit
    assert not list(beam.low_peaks(terms, terms.held))


def test_a_long_network_is_searched_with_few_states():
    n = 24
    words = [(k, k + 1, ("leg", k)) for k in range(n)]
    equation = [*words, (0, n)]
    shapes = [(2, 2, 3)] * n
    plan = tn.plan(equation, *shapes, minimize="peak")
    assert plan.peak_elements <= found_before(read(equation, shapes))


def test_a_very_long_network_is_refused_without_a_search():
    n = 180
    equation, shapes = [*[(k, k + 1) for k in range(n)], (0, n)], [(2, 2)] * n
    assert not list(beam.low_peaks(Terms(read(equation, shapes)), None))
    with pytest.raises(MemoryLimitError, match="the smallest peak found, got 9"):
        tn.plan(equation, *shapes, memory_limit=9)


def test_copies_of_reduced_operands_count_while_they_are_used():
    terms = Terms(read("aab,bx,bc->cx", ((5, 5, 2), (2, 7), (2, 3))))
    sets = beam._Sets(terms)
    # The first operand is reduced to b (2 elements) before it is joined; then bx, then cx.
    assert sets.step((1, 2)) == (14 + 2, 14)
    assert sets.step((3, 4)) == (21, 21 - 14)
