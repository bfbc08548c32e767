"""Plans: equal to brute force over every order, counted by a counting scalar, run everywhere."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import load_backend
from tensornet.contract.execute import follow
from tensornet.contract.expression import read
from tensornet.errors import MemoryLimitError, OptionError, ShapeError
from tensornet.testing import assert_close

torch = pytest.importorskip("torch")
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}


class Counted:
    """A number that counts its multiplications."""

    multiplications = 0

    def __init__(self, value):
        self.value = value

    def __mul__(self, other):
        Counted.multiplications += 1
        return Counted(self.value * other.value)

    def __add__(self, other):
        return Counted(self.value + (other.value if isinstance(other, Counted) else other))

    __radd__ = __add__


def objects(values):
    made = np.empty(values.shape, dtype=object)
    for at in np.ndindex(values.shape):
        made[at] = Counted(int(values[at]))
    return made


@st.composite
def networks(draw, max_operands=4, max_rank=3):
    n = draw(st.integers(1, max_operands))
    labels = "abcde"
    word = st.lists(st.sampled_from(labels), min_size=0, max_size=max_rank).map("".join)
    inputs = draw(st.lists(word, min_size=n, max_size=n))
    present = sorted(set("".join(inputs)))
    output = "".join(draw(st.permutations(present))[: draw(st.integers(0, len(present)))])
    sizes = {label: draw(st.integers(1, 3)) for label in present}
    shapes = [tuple(sizes[c] for c in w) for w in inputs]
    return f"{','.join(inputs)}->{output}", shapes


def brute_force(equation, shapes):
    """Return (multiply-adds, traffic, peak) of every order of joining pairs."""
    left, output = equation.split("->")
    sizes = {}
    for word, shape in zip(left.split(","), shapes, strict=True):
        sizes.update(zip(word, shape, strict=True))
    held = sum(math.prod(s) for s in shapes)
    reducing = 0

    def elements(labels):
        return math.prod(sizes[c] for c in labels)

    start = []
    for k, word in enumerate(left.split(",")):
        others = set(output).union(*(w for j, w in enumerate(left.split(",")) if j != k))
        kept = frozenset(c for c in word if c in others and sizes[c] > 1)
        wide = [c for c in word if sizes[c] > 1]
        extra = elements(kept) if len(kept) < len(wide) else 0
        reducing += extra + elements(word) if extra else 0
        start.append((kept, 0, extra))  # labels, alive while it waits, alive while it is used
    found = []

    def go(items, work, moved, peak):
        if len(items) == 1:
            found.append((work, moved + reducing, peak))
        for i, j in itertools.combinations(range(len(items)), 2):
            (a, _, extra_a), (b, _, extra_b) = items[i], items[j]
            rest = [item for k, item in enumerate(items) if k not in (i, j)]
            live = held + sum(own for _, own, _ in items)
            result = frozenset((a | b) & set(output).union(*(r[0] for r in rest)))
            n = elements(result)
            now = live + extra_a + extra_b + n
            step = elements(a) + elements(b) + n
            go([*rest, (result, n, 0)], work + elements(a | b), moved + step, max(peak, now))

    go(start, 0, 0, 0)
    return found


@settings(max_examples=60)
@given(networks(max_operands=5), st.data())
def test_plans_equal_brute_force_under_every_aim_and_limit(network, data):
    equation, shapes = network
    if len(shapes) == 1:
        return
    found = brute_force(equation, shapes)
    for k, aim in enumerate(["multiply_adds", "traffic", "peak"]):
        plan = tn.plan(equation, *shapes, minimize=aim)
        counts = (plan.multiply_adds, plan.traffic, plan.peak_elements)
        assert counts in found
        assert counts[k] == min(f[k] for f in found)
    limit = data.draw(st.integers(1, max(f[2] for f in found)))
    kept = [f for f in found if f[2] <= limit]
    if not kept:
        with pytest.raises(MemoryLimitError) as refusal:
            tn.plan(equation, *shapes, memory_limit=limit)
        assert refusal.value.smallest_peak == min(f[2] for f in found)
        return
    plan = tn.plan(equation, *shapes, memory_limit=limit)
    assert plan.peak_elements <= limit
    assert plan.multiply_adds == min(f[0] for f in kept)


def test_six_operands_equal_brute_force_under_limits():
    rng = np.random.default_rng(1)
    for _ in range(3):
        words = ["".join(rng.choice(list("abcdefg"), 3, replace=False)) for _ in range(6)]
        sizes = dict(zip("abcdefg", rng.integers(2, 9, 7).tolist(), strict=True))
        equation = ",".join(words) + "->" + words[0][0]
        shapes = [tuple(sizes[c] for c in w) for w in words]
        found = brute_force(equation, shapes)
        assert tn.plan(equation, *shapes).multiply_adds == min(f[0] for f in found)
        peaks = sorted({f[2] for f in found})
        for limit in (peaks[0], peaks[len(peaks) // 2]):
            plan = tn.plan(equation, *shapes, memory_limit=limit)
            assert plan.multiply_adds == min(f[0] for f in found if f[2] <= limit)
            assert plan.peak_elements <= limit


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=100)
@given(network=networks())
def test_contractions_equal_einsum(library, network):
    equation, shapes = network
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    expected = np.asarray(np.einsum(equation, *arrays))
    got = tn.contract(equation, *(LIBRARIES[library](a) for a in arrays))
    assert tuple(got.shape) == expected.shape
    assert_close(np.asarray(got), expected, 1e-12)


@given(networks())
def test_multiply_adds_are_the_multiplications_done(network):
    equation, shapes = network
    rng = np.random.default_rng(0)
    plan = tn.plan(equation, *shapes)
    values = [np.asarray(rng.integers(-3, 4, shape)) for shape in shapes]
    arrays = [objects(v) for v in values]
    Counted.multiplications = 0
    expression = read(plan.equation, plan.shapes)
    result = follow(expression, plan.path, arrays, load_backend("numpy"))
    assert Counted.multiplications == plan.multiply_adds
    plain = np.frompyfunc(lambda c: getattr(c, "value", c), 1, 1)(result)
    assert np.array_equal(np.asarray(plain, dtype=float), np.einsum(equation, *values))


def test_t17_a_label_in_three_operands():
    plan = tn.plan("nqx,nxv,nx->nqv", (32, 4, 2048), (32, 2048, 64), (32, 2048))
    assert plan.multiply_adds == 17_039_360
    assert plan.path[0] == (0, 2)
    assert max(step.alive for step in plan.steps) == plan.peak_elements
    inputs = sum(math.prod(s) for s in plan.shapes)
    assert plan.steps[0].alive - inputs == 262_144
    bad = tn.Plan(plan.equation, plan.shapes, ((1, 2), (0, 1)), "by hand")
    assert bad.multiply_adds == 20_971_520
    assert bad.steps[0].alive - inputs == 4_194_304


@pytest.mark.parametrize("library", LIBRARIES)
def test_t19_more_labels_than_letters(library):
    a = LIBRARIES[library](np.array([[1.0, 1.0], [0.0, 1.0]]))
    lists = [(k, k + 1) for k in range(61)] + [(0, 61)]
    assert np.asarray(tn.contract(lists, *[a] * 61)).tolist() == [[1.0, 61.0], [0.0, 1.0]]
    plan = tn.plan(lists, *[(2, 2)] * 61)
    assert plan.multiply_adds == 60 * 8
    assert tn.contract(plan, *[a] * 61)[0, 1] == 61
    assert len(set(plan.equation)) == 62 + 3


@pytest.mark.parametrize("library", LIBRARIES)
def test_t19_a_long_operator_on_a_batch(library):
    rng = np.random.default_rng(0)
    n, make = 30, LIBRARIES[library]
    dims = [2 if k < 6 else 1 for k in range(n)]
    cores = [
        rng.normal(size=(1 if k == 0 else 3, d, d, 1 if k == n - 1 else 3))
        for k, d in enumerate(dims)
    ]
    x = rng.normal(size=(64, 5))
    m = tn.MPO([make(c) for c in cores])
    expected = np.asarray(m.to_matrix()) @ x
    assert_close(np.asarray(m @ make(x)), expected, 1e-12)
    words = [(f"b{k}", f"i{k}", f"j{k}", f"b{k + 1}") for k in range(n)]
    inner = [*(f"j{k}" for k in range(n)), "batch"]
    outer = [*(f"i{k}" for k in range(n)), "batch"]
    made = tn.contract([*words, inner, outer], *m.cores, make(x).reshape(*dims, 5))
    assert_close(np.asarray(made).reshape(64, 5), expected, 1e-12)


@pytest.mark.parametrize(
    ("equation", "shapes", "text"),
    [
        (
            "ab,bc->ac",
            [(2, 3), (4, 5)],
            "shapes[1] must have size 3 at label 'b', as before, got 4.",
        ),
        ("ab,bc->ac", [(2, 3), (1, 5)], "as before, got 1."),
        ("ab,bc->ac", [(2, 3)], "shapes must have 2 operands, as the equation has, got 1."),
        (
            "ab,bc->ad",
            [(2, 3), (3, 4)],
            "equation must have output labels that an operand has, got 'd'.",
        ),
        (
            "ab,bc->aa",
            [(2, 3), (3, 4)],
            "equation must have each label once in the output, got 'a' twice.",
        ),
        ("ab,bc->a->c", [(2, 3), (3, 4)], "at most one '->', got 'ab,bc->a->c'."),
        ("ab,bc->a,c", [(2, 3), (3, 4)], "equation must have one output, got 'ab,bc->a,c'."),
        ("a...,b->ab", [(2, 3), (3,)], "Give every index a label."),
        (
            "ab->ba",
            [(2, 3, 4)],
            "shapes[0] must have 2 dimensions for the labels 'ab', got (2, 3, 4).",
        ),
        ("ab->ba", [(2, 0)], "shapes[0][1] must be an integer of at least 1, got 0."),
        ("ab->ba", [(2, 1.5)], "shapes[0][1] must be an integer of at least 1, got 1.5."),
        (7, [(2,)], "got int."),
        ([[0, 1]], [(2, 2)], "one for each operand, then the output's, got list."),
        ([[0, 1], 3], [(2, 2)], "got 3 in it."),
        ([[0, []], [0]], [(2, 2)], "got the label []."),
    ],
)
@pytest.mark.parametrize("options", [{}, {"minimize": "peak"}, {"memory_limit": 10**9}])
def test_wrong_equations_and_shapes_are_refused(equation, shapes, text, options):
    with pytest.raises(ShapeError) as refusal:
        tn.plan(equation, *shapes, **options)
    assert str(refusal.value).endswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"minimize": "flops"}, "minimize must be one of 'multiply_adds', 'peak', 'traffic', got"),
        ({"memory_limit": 0}, "memory_limit must be an integer of at least 1, got 0."),
        ({"memory_limit": 2.5}, "memory_limit must be an integer of at least 1, got 2.5."),
        ({"itemsize": 0}, "itemsize must be an integer of at least 1, got 0."),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(OptionError) as refusal:
        tn.plan("ab,bc", (2, 3), (3, 4), **options)
    assert str(refusal.value).startswith(text)


def test_a_limit_that_cannot_be_kept_is_refused_with_the_smallest_peak():
    chain = "ab,bc,cd,de,ef,fg,gh,hi->ai"
    with pytest.raises(MemoryLimitError) as refusal:
        tn.plan(chain, *[(5, 5)] * 8, memory_limit=100)
    expected = "memory_limit must be at least 250 elements, the smallest possible peak, got 100."
    assert str(refusal.value) == expected
    assert refusal.value.smallest_peak == 250
    assert tn.plan(chain, *[(5, 5)] * 8, memory_limit=250).peak_elements == 250
    with pytest.raises(MemoryLimitError, match="at least 12 elements, the smallest possible"):
        tn.plan("ab->ba", (2, 3), memory_limit=5)
    lists = [(k, k + 1) for k in range(61)] + [(0, 61)]
    with pytest.raises(MemoryLimitError, match="the smallest peak found, got 100") as refusal:
        tn.plan(lists, *[(2, 2)] * 61, memory_limit=100)
    smallest = refusal.value.smallest_peak
    assert tn.plan(lists, *[(2, 2)] * 61, memory_limit=smallest).peak_elements == smallest


def test_large_networks_are_at_least_as_good_as_opt_einsum():
    import opt_einsum

    rng = np.random.default_rng(0)
    for n in (9, 12, 20):
        # A ring with chords: each label in two operands, two of them open.
        edges = [(k, (k + 1) % n) for k in range(n)] + [(k, (k + 4) % n) for k in range(0, n, 3)]
        letters = [chr(ord("a") + e) for e in range(len(edges))]
        words = ["".join(letters[e] for e, ends in enumerate(edges) if k in ends) for k in range(n)]
        sizes = dict(zip(letters, rng.integers(2, 4, len(edges)).tolist(), strict=True))
        equation = f"{','.join(words)}->{letters[1]}{letters[0]}"
        arrays = [rng.normal(size=[sizes[c] for c in word]) for word in words]
        plan = tn.plan(equation, *(a.shape for a in arrays))
        path, _ = opt_einsum.contract_path(equation, *arrays, optimize="auto")
        twin = tn.Plan(plan.equation, plan.shapes, tuple(map(tuple, path)), "opt_einsum")
        assert plan.multiply_adds <= twin.multiply_adds
        expected = opt_einsum.contract(equation, *arrays)
        assert_close(np.asarray(plan.run(*arrays)), np.asarray(expected), 1e-10)
        for minimize in ("peak", "traffic"):
            other = tn.plan(equation, *(a.shape for a in arrays), minimize=minimize)
            name = {"peak": "peak_elements"}.get(minimize, minimize)
            assert getattr(other, name) <= getattr(plan, name)


def test_plans_are_values():
    plan = tn.plan("ab,bc,cd", (2, 3), (3, 4), (4, 5), itemsize=8)
    same = tn.plan([(0, 1), (1, 2), (2, 3), (0, 3)], (2, 3), (3, 4), (4, 5), itemsize=8)
    assert plan == same
    assert hash(plan) == hash(same)
    assert plan != tn.plan("ab,bc,cd", (2, 3), (3, 4), (4, 5))
    assert tn.Plan.from_json(plan.to_json()) == plan
    assert plan.bytes_moved == 8 * plan.traffic
    with pytest.raises(AttributeError):
        plan.path = ()
    assert str(plan).splitlines()[0].split() == ["step", "multiply-adds", "traffic", "alive"]
    assert f"{plan.multiply_adds:,}" in str(plan)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"multiply_adds": 1}, "text must have multiply_adds 64, as its path has, got 1."),
        ({"path": [[0, 9], [0, 1]]}, "got [0, 9] where 3 are left."),
        ({"path": [[0, 0], [0, 1]]}, "got [0, 0] where 3 are left."),
        ({"path": [[0, 1]]}, "got [[0, 1]]."),
        ({"path": [[0, 1], 3]}, "got 3 in it."),
        ({"shapes": [[2, 3], [3, 4], [5, 5]]}, "as before, got 5."),
        ({"equation": 3}, "other types"),
        ({"strategy": ""}, "strategy must be a word, got ''."),
        ({"more": 1}, "text must have the entries"),
    ],
)
def test_damaged_json_is_refused(change, text):
    record = json.loads(tn.plan("ab,bc,cd", (2, 3), (3, 4), (4, 5)).to_json())
    with pytest.raises((ShapeError, OptionError)) as refusal:
        tn.Plan.from_json(json.dumps({**record, **change}))
    assert text in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(OptionError, match="text must"):
        tn.Plan.from_json(text)


def test_operands_are_checked():
    plan = tn.plan("ab,bc", (2, 3), (3, 4))
    a, b = np.ones((2, 3)), np.ones((3, 4))
    with pytest.raises(ShapeError, match=r"the number of arrays must be 2, .* got 1"):
        plan.run(a)
    with pytest.raises(ShapeError, match=r"the number of arrays must be 2, .* got 3"):
        tn.contract("ab,bc", a, b, b)
    with pytest.raises(ShapeError, match=r"arrays\[1\] must have shape \(3, 4\), got \(4, 3\)"):
        plan.run(a, b.T)
    with pytest.raises(tn.errors.DTypeError, match="element type float64, got float32"):
        plan.run(a, b.astype("float32"))
    with pytest.raises(tn.errors.ArrayTypeError, match="all come from one library"):
        plan.run(a, torch.as_tensor(b))
    with pytest.raises(tn.errors.ArrayTypeError, match="numpy array"):
        tn.contract("ab,bc", [[1.0]], [[1.0]])
    with pytest.raises(OptionError, match="beside a plan, got minimize"):
        tn.contract(plan, a, b, minimize="peak")


def test_half_precision_accumulates_in_single():
    a = torch.full((1, 4096), 0.01, dtype=torch.bfloat16)
    ones = torch.ones((4096, 1), dtype=torch.bfloat16)
    got = tn.contract("ab,bc->ac", a, ones)
    assert got.dtype == torch.bfloat16
    assert abs(got.item() - 4096 * a[0, 0].item()) < 0.2
    half = tn.contract("ab->", np.full((64, 64), 16.0, dtype=np.float16))
    assert half.dtype == np.float16


def test_gradients_flow():
    rng = np.random.default_rng(0)
    a = torch.as_tensor(rng.normal(size=(3, 3, 4))).requires_grad_()
    b = torch.as_tensor(rng.normal(size=(4, 5))).requires_grad_()
    torch.autograd.gradcheck(lambda x, y: tn.contract("aab,bc->ac", x, y), (a, b))
