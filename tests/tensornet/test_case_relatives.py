"""Relatives of cases from the field: the same kinds of trouble, met elsewhere in the library."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.contract.planner import plan as planned

RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(24, 24))
SHAPE = ((2, 3, 4), (4, 3, 2))
SMOOTH = np.exp(-np.outer(np.linspace(0, 1, 64), np.linspace(0, 1, 64)))


def error(m, w):
    return np.linalg.norm(np.asarray(m.to_matrix()) - w) / np.linalg.norm(w)


# T02: more is asked for than there can be.


def test_t02_a_batch_under_a_cap_beyond_its_bonds():
    made = tn.mpo(np.stack([DENSE, 2 * DENSE]), SHAPE, max_bond=50)
    assert made.bond_dims == (1, 8, 8, 1)
    assert np.abs(made.to_matrices()[1] - 2 * DENSE).max() < 1e-12


def test_t02_rounding_above_the_bonds_changes_nothing():
    m = tn.mpo(DENSE, SHAPE, max_bond=3)
    assert m.round(max_bond=99).bond_dims == m.bond_dims
    assert (m + m).round(max_bond=99).bond_dims == m.bond_dims


def test_t02_padded_sizes_and_trains():
    w = RNG.normal(size=(13, 11))
    assert error(tn.mpo(w, 3, max_bond=10**6), w) < 1e-13
    t = tn.tt(w.reshape(13, 11, 1), max_bond=10**6)
    assert t.bond_dims == (1, 11, 1, 1)


# T03: lists of bonds.


@pytest.mark.parametrize(
    "bonds", [[3, 2, 2, 1], [2, 2, 2, 2, 2], [2, -1], [2, 2.5], [True, 2], "x"]
)
def test_t03_wrong_lists_everywhere(bonds):
    for call in (
        lambda: tn.mpo(np.stack([DENSE, DENSE]), SHAPE, bonds=bonds),
        lambda: tn.tt(DENSE.reshape(8, 9, 8), bonds=bonds),
        lambda: tn.shared_mpo(np.stack([DENSE, DENSE]), SHAPE, bonds=bonds),
        lambda: tn.mpo(DENSE, SHAPE, bonds=bonds, metric=np.eye(24)),
    ):
        with pytest.raises(ValueError, match="bond"):
            call()


# T04: values that are no numbers.


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "complex128"])
def test_t04_every_element_type(bad, dtype):
    w = np.arange(24.0).reshape(4, 6).astype(dtype)
    w[1, 2] = bad
    with pytest.raises(tn.errors.NonFiniteError, match=r"1 .*\(1, 2\)"):
        tn.mpo(w, ((2, 2), (2, 3)))


def test_t04_every_door():
    bad = DENSE.copy()
    bad[3, 4] = np.nan
    stack = np.stack([DENSE, bad])
    for call in (
        lambda: tn.mpo(stack, SHAPE),
        lambda: tn.shared_mpo(stack, SHAPE),
        lambda: tn.tt(bad.reshape(8, 9, 8)),
        lambda: tn.search_shape(bad, max_params=100),
        lambda: tn.allocate({"w": bad}, max_params=500),
        lambda: tn.mpo(DENSE, SHAPE, metric=bad),
        lambda: tn.mpo(torch.from_numpy(bad), SHAPE, differentiable=True),
    ):
        with pytest.raises(tn.errors.NonFiniteError, match=r"1 |3, 4|\(1, 3, 4\)"):
            call()


# T07 and T08: what a tolerance promises.


@pytest.mark.parametrize("rtol", [0.2, 0.05, 1e-3, 1e-6])
def test_t07_the_promise_holds_at_every_door(rtol):
    assert error(tn.mpo(SMOOTH, 3, rtol=rtol), SMOOTH) <= rtol
    assert error(tn.mpo(SMOOTH, 6, rtol=rtol, gauge="symmetric"), SMOOTH) <= rtol
    batch = tn.mpo(np.stack([SMOOTH, SMOOTH.T[::-1]]), 3, rtol=rtol)
    assert max(c.relative_error for c in batch.certificates) <= rtol
    t = tn.tt(SMOOTH.reshape(8, 8, 8, 8), rtol=rtol)
    full = t.to_tensor()
    assert np.linalg.norm(full.reshape(64, 64) - SMOOTH) <= rtol * np.linalg.norm(SMOOTH)
    rounded = tn.mpo(SMOOTH, 3).round(rtol=rtol)
    assert error(rounded, SMOOTH) <= rtol


@pytest.mark.parametrize("option", ["tolerance", "rank", "eps", "max_rank", "cutoff"])
def test_t08_unknown_options_raise_at_every_door(option):
    m = tn.mpo(SMOOTH, 3)
    for call in (
        lambda **k: tn.mpo(SMOOTH, 3, **k),
        lambda **k: tn.tt(SMOOTH, **k),
        m.round,
        lambda **k: tn.shared_mpo(np.stack([SMOOTH, SMOOTH]), 3, **k),
        lambda **k: tn.search_shape(SMOOTH, rtol=0.1, **k),
        lambda **k: tn.allocate({"w": SMOOTH}, rtol=0.1, **k),
    ):
        with pytest.raises(TypeError, match=option):
            call(**{option: 2})


# T12 and T13: what is counted.


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_t12_cores_own_their_memory(library, tmp_path):
    w = SMOOTH if library == "numpy" else torch.from_numpy(SMOOTH)
    for k, made in enumerate((tn.mpo(w, 3, max_bond=2), tn.tt(w, max_bond=2))):
        for core in made.cores:
            if library == "torch":
                assert core.untyped_storage().nbytes() == core.numel() * 8
            else:
                assert core.base is None or core.base.size == core.size
        path = tmp_path / f"{k}.safetensors"
        tn.save(made, path)
        assert path.stat().st_size < made.n_params * 8 + 4096


def test_t13_it_is_said_wherever_it_is_shown():
    m = tn.mpo(DENSE, SHAPE)
    batch = tn.mpo(np.stack([DENSE, DENSE]), SHAPE)
    for value in (m, batch, tn.account(m), batch.account()):
        assert "larger" in str(value) + repr(value)
    assert tn.account(m).unique == 704


# T14: sites that do not fit.


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (((2, 3, 5), (4, 3, 2)), "30"),
        (((2, 3, 4), (24,)), "3 row factors and 1"),
        (((2, 0, 4), (4, 3, 2)), "0"),
        (((-2, -3, 4), (4, 3, 2)), "-2"),
    ],
)
def test_t14_every_door(shape, text):
    for call in (
        lambda: tn.mpo(DENSE, shape),
        lambda: tn.mpo(np.stack([DENSE, DENSE]), shape),
        lambda: tn.shared_mpo(np.stack([DENSE, DENSE]), shape),
        lambda: tn.matrix_layout(24, 24, shape),
        lambda: tn.allocate({"w": DENSE}, rtol=0.1, shape=shape),
    ):
        with pytest.raises(ValueError, match=text):
            call()


# T15: strides.


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_t15_vectors_and_batches_with_strides(library):
    m = tn.mpo(DENSE, SHAPE)
    wide = RNG.normal(size=(48, 10))
    if library == "torch":
        m, wide = tn.mpo(torch.from_numpy(DENSE), SHAPE), torch.from_numpy(wide)
    views = [wide[::2], wide[:24, ::3], wide.T[:, :24].T, wide[24:]]
    for x in views:
        assert np.abs(np.asarray(m @ x) - DENSE @ np.asarray(x)).max() < 1e-12
        assert np.abs(np.asarray(x.T @ m) - np.asarray(x).T @ DENSE).max() < 1e-12


def test_t15_stacks_metrics_and_spectra_with_strides():
    stack = RNG.normal(size=(24, 24, 3)).transpose(2, 0, 1)
    plain = np.ascontiguousarray(stack)
    for a, b in zip(tn.mpo(stack, SHAPE).cores, tn.mpo(plain, SHAPE).cores, strict=True):
        assert np.array_equal(a, b)
    x = RNG.normal(size=(24, 60))
    metric = x @ x.T
    turned = np.asfortranarray(metric)[::-1, ::-1][::-1, ::-1]
    one, two = (tn.mpo(DENSE, SHAPE, max_bond=3, metric=h) for h in (metric, turned))
    assert np.allclose(one.to_matrix(), two.to_matrix())
    first, second = (tn.allocate({"w": w}, max_params=300).error for w in (DENSE, DENSE.copy("F")))
    assert first == pytest.approx(second, rel=1e-9)


# T17 and T19: planning.


def cheapest(shapes, equation):
    """Multiply-adds of the best order, by trying all."""
    words, output = equation.split("->")
    words = words.split(",")
    size = {
        c: d
        for word, shape in zip(words, shapes, strict=True)
        for c, d in zip(word, shape, strict=True)
    }

    def best(todo):
        if len(todo) == 1:
            return 0
        found = []
        for a, b in itertools.combinations(range(len(todo)), 2):
            rest = [w for k, w in enumerate(todo) if k not in (a, b)]
            kept = set(output).union(*rest) if rest else set(output)
            both = set(todo[a]) | set(todo[b])
            cost = 1
            for c in both:
                cost *= size[c]
            found.append(cost + best([*rest, both & kept]))
        return min(found)

    return best([set(w) for w in words])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("nqx,nxv,nx->nqv", [(8, 4, 64), (8, 64, 16), (8, 64)]),
        ("ab,ac,ad,ae->bcde", [(9, 2), (9, 3), (9, 4), (9, 5)]),
        ("xab,xbc,xcd,xda->x", [(7, 2, 3), (7, 3, 4), (7, 4, 5), (7, 5, 2)]),
        ("ab,cd,ef->abcdef", [(2, 3), (4, 5), (2, 2)]),
        ("ij,jk,kl,lm,mi->", [(5, 6), (6, 2), (2, 9), (9, 3), (3, 5)]),
    ],
)
def test_t17_the_best_order_is_the_best(equation, shapes):
    assert planned(equation, *shapes).multiply_adds == cheapest(shapes, equation)


def test_t19_long_networks_of_every_kind():
    n = 60
    core = np.array([[1.0, 1.0], [0.0, 1.0]])
    ends = [np.ones((1, 2, 2)), *[core.reshape(2, 1, 2).repeat(2, 1)] * (n - 2), np.ones((2, 2, 1))]
    train = tn.TensorTrain(ends)
    assert tn.inner(train, train) == pytest.approx(float(train.norm()) ** 2, rel=1e-10)
    operator = tn.MPO([np.eye(2).reshape(1, 2, 2, 1)] * 72)
    assert operator.trace() == 2.0**72
    assert tn.account(operator).dense == 2**144
    assert (operator @ operator).trace() == 2.0**72


# T23 and T24: devices and libraries.


def test_t23_another_default_device_does_not_matter():
    w, x = torch.from_numpy(DENSE), torch.from_numpy(RNG.normal(size=(24, 5)))
    padded = torch.from_numpy(RNG.normal(size=(13, 11)))
    with torch.device("meta"):
        m = tn.mpo(w, SHAPE, bonds=[5, 6])
        made = [
            m,
            tn.mpo(padded, 3, bonds=[2, 3]),
            tn.mpo(w, SHAPE, rtol=0.1),
            tn.mpo(w, SHAPE, max_params=200),
            tn.mpo(w, SHAPE, max_bond=3, metric=w @ w.T),
            tn.mpo(w, SHAPE, max_bond=3, differentiable=True),
            tn.tt(w.reshape(8, 9, 8), max_bond=3),
            (m + m).round(max_bond=4),
            m.hadamard(m),
            m.move_center(0),
            tn.mpo(torch.stack([w, w]), SHAPE, max_bond=3),
            tn.shared_mpo(torch.stack([w, 2 * w]), SHAPE, max_bond=4, max_sweeps=3)[1],
        ]
        product = m @ x
        tn.search_shape(w, max_params=300)
    for value in made:
        assert all(core.device.type == "cpu" for core in value.cores)
    assert np.abs(np.asarray(product - m.to_matrix() @ x)).max() < 1e-12


def test_t24_mixed_libraries_are_named():
    m = tn.mpo(DENSE, SHAPE)
    other = tn.mpo(torch.from_numpy(DENSE), SHAPE)
    for call in (
        lambda: m @ torch.ones(24, dtype=torch.float64),
        lambda: other @ np.ones(24),
        lambda: m + other,
        lambda: m @ other,
        lambda: tn.inner(m, other),
        lambda: tn.mpo(DENSE, SHAPE, max_bond=2, metric=torch.eye(24, dtype=torch.float64)),
    ):
        with pytest.raises(TypeError, match=r"numpy|pytorch|torch"):
            call()


# T25: gradients on degenerate spectra.


@pytest.mark.parametrize("kind", ["isometry", "kron", "twins", "padded", "zero rows"])
def test_t25_gradients_of_the_norm_are_exact(kind):
    eye = torch.eye(4, dtype=torch.float64)
    w = {
        "isometry": torch.cat([eye, eye]) / 2**0.5,
        "kron": torch.kron(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64), eye),
        "twins": torch.diag(torch.tensor([3.0, 3.0, 1.0, 1.0], dtype=torch.float64)),
        "padded": torch.eye(7, dtype=torch.float64),
        "zero rows": torch.diag(torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)),
    }[kind].requires_grad_()
    m = tn.mpo(w, 2, differentiable=True)
    (m.to_matrix() ** 2).sum().backward()
    assert torch.allclose(w.grad, 2 * w.detach(), atol=1e-12)


# T27, T28 and T30: order of sites, sizes without factors, the same cores everywhere.


@pytest.mark.parametrize(
    "sizes", [((2, 3), (4, 5)), ((3, 2), (2, 2), (2, 5)), ((1, 4), (4, 1), (2, 2))]
)
def test_t27_products_of_kronecker_factors(sizes):
    parts = [RNG.normal(size=size) for size in sizes]
    w = parts[0]
    for part in parts[1:]:
        w = np.kron(w, part)
    m = tn.mpo(w, (tuple(s[0] for s in sizes), tuple(s[1] for s in sizes)))
    assert set(m.bond_dims) == {1}
    for core, part in zip(m.cores, parts, strict=True):
        site = core[0, :, :, 0]
        assert np.allclose(site / np.linalg.norm(site), part / np.linalg.norm(part)) or np.allclose(
            site / np.linalg.norm(site), -part / np.linalg.norm(part)
        )


@pytest.mark.parametrize(
    ("rows", "cols", "n"), [(103, 32, 5), (101, 103, 3), (2, 5087, 3), (1, 7, 4)]
)
def test_t28_primes_are_padded_and_come_back(rows, cols, n):
    w = RNG.normal(size=(rows, cols))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = tn.mpo(w, n)
    assert m.shape == (rows, cols)
    assert error(m, w) < 1e-12
    x = RNG.normal(size=(cols, 3))
    assert np.allclose(m @ x, w @ x)
    assert tn.account(m).dense == rows * cols
    with pytest.raises(tn.errors.ShapeError, match="ids must be 0 to"):
        m.rows([rows])


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
def test_t30_batches_threads_and_libraries_agree(gauge):
    w = SMOOTH[:24, :24] + np.eye(24)
    plain = tn.mpo(w, SHAPE, max_bond=4, gauge=gauge)
    again = tn.mpo(w, SHAPE, max_bond=4, gauge=gauge)
    batch = tn.mpo(np.stack([w, w]), SHAPE, max_bond=4, gauge=gauge)
    other = tn.mpo(torch.from_numpy(w), SHAPE, max_bond=4, gauge=gauge)
    for k, core in enumerate(plain.cores):
        assert np.array_equal(core, again.cores[k])
        assert np.abs(batch.cores[k][0] - core).max() < 1e-10
        assert np.abs(np.asarray(other.cores[k]) - core).max() < 1e-10
