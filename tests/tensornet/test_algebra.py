"""Sums, products and numbers times networks against their dense twins, in every library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import dtype_name, library_of
from tensornet.padding import mask_cores
from tensornet.testing import layouts, mpo_cores, relative_error
from tests.tensornet.twins import EPS, NAMES, OTHER, SMALL, SQUARE, close, host, made, network

errors = tn.errors


torch = pytest.importorskip("torch")


# ------------------------------------------------------------------ one suite, all kinds


KINDS = [
    *[("numpy", d) for d in ("float16", "float32", "float64", "complex64", "complex128")],
    *[("torch", d) for d in ("float16", "bfloat16", "float32", "float64", "complex128")],
]
EVERY = [(*kind, layout) for kind in KINDS for layout in (SQUARE, OTHER)]
# jax compiles every shape anew: as few as possible.
EVERY.append(("jax", "float32", SMALL))


@pytest.mark.parametrize(("library", "dtype", "layout"), EVERY)
def test_everything_equals_its_dense_twin(library, dtype, layout):
    a, b = (network(layout, k, dtype, library) for k in (1, 2))
    A, B = host(a.to_matrix()), host(b.to_matrix())
    results = {
        "sum": (a + b, A + B),
        "difference": (a - b, A - B),
        "negative": (-a, -A),
        "twice": (2 * a, 2 * A),
        "half": (a / 2, A / 2),
        "hadamard": (a.hadamard(b), A * B),
        "product": (a @ b.H, A @ B.conj().T),
        "other product": (a.T @ b, A.T @ B),
    }
    for name, (result, expected) in results.items():
        assert {library_of(c) for c in result.cores} == {NAMES[library]}, name
        assert {dtype_name(c) for c in result.cores} == {dtype}, name
        assert result.center is None, name
        assert result.certificate is None, name
        size = np.linalg.norm(A) * (np.linalg.norm(B) if "product" in name else 1)
        close(result.to_matrix(), expected, dtype, max(size, np.linalg.norm(expected)))
    narrow = "float32" if dtype in ("float16", "bfloat16") else dtype
    size = np.linalg.norm(A) * np.linalg.norm(B)
    for value, expected, bound in (
        (tn.inner(a, b), np.vdot(A, B), size),
        (a.trace(), np.trace(A), np.linalg.norm(A)),
    ):
        assert str(value.dtype).removeprefix("torch.") == narrow
        assert tuple(value.shape) == ()
        close(value, expected, dtype, bound)
    last = layout.rows - 1
    ids = np.array([[last, 0, 3], [3, 3, last - 1]])
    for value, expected in (
        (a.diagonal(), np.diagonal(A)),
        (a.rows(made(ids, library)), A[ids]),
        (a[ids, 2], A[ids, 2]),
        (a[2, last], A[2, last]),
    ):
        assert str(value.dtype).removeprefix("torch.") == dtype
        assert isinstance(value, np.generic) or library_of(value) == NAMES[library]
        close(value, expected, dtype, np.linalg.norm(A))
    assert math.isclose(a.norm(), np.linalg.norm(A), rel_tol=EPS.get(dtype, 1e-12))


@given(st.data())
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_matrices_of_any_layout(dtype, data):
    layout = data.draw(layouts(max_size=300))
    A_, B_ = (tn.MPO(data.draw(mpo_cores(layout, dtype=dtype)), *layout.shape) for _ in range(2))
    A, B = A_.to_matrix(), B_.to_matrix()
    a, b = np.linalg.norm(A), np.linalg.norm(B)
    close((A_ + B_).to_matrix(), A + B, size=a + b)
    close((A_ - B_).to_matrix(), A - B, size=a + b)
    close(A_.hadamard(B_).to_matrix(), A * B, size=a * b)
    close((A_ @ B_.H).to_matrix(), A @ B.conj().T, size=a * b)
    close(tn.inner(A_, B_), np.vdot(A, B), size=a * b)
    close(tn.inner(A_, B_), (A_.H @ B_).trace(), size=a * b)
    close((A_ @ B_.T).T.to_matrix(), (B_ @ A_.T).to_matrix(), size=a * b)
    close(A_.trace(), np.trace(A), size=a)
    close(A_.diagonal(), np.diagonal(A), size=a)
    close(A_.rows(np.arange(layout.rows)), A, size=a)
    i, j = np.indices(layout.shape)
    close(A_[i, j], A, size=a)
    assert math.isclose((A_ - B_).norm(), np.linalg.norm(A - B), rel_tol=1e-9, abs_tol=1e-12 * a)
    assert math.isclose(A_.log10_norm(), math.log10(a), rel_tol=1e-9, abs_tol=1e-9)
    assert A_.norm() == pytest.approx(math.sqrt(abs(tn.inner(A_, A_))), rel=1e-9)


@given(st.data())
def test_ring_axioms(data):
    layout = data.draw(layouts(max_size=100, max_sites=3))
    square = tn.MatrixLayout(layout.row_dims, layout.row_dims, layout.rows, layout.rows)
    a, b, c = (tn.MPO(data.draw(mpo_cores(square)), *square.shape) for _ in range(3))
    size = math.prod(1 + m.norm() for m in (a, b, c))
    for left, right in (
        ((a + b) + c, a + (b + c)),
        (a + b, b + a),
        (a - a, 0 * a),
        ((a @ b) @ c, a @ (b @ c)),
        (a @ (b + c), a @ b + a @ c),
        ((a + b) @ c, a @ c + b @ c),
        ((3 * a) @ b, 3 * (a @ b)),
        (sum([a, b, c]), a + b + c),
        (a.hadamard(b + c), b.hadamard(a) + c.hadamard(a)),
        ((a @ b).H, b.H @ a.H),
    ):
        close(left.to_matrix(), right.to_matrix(), size=size)
        assert (left - right).norm() <= 1e-11 * size


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_masks_mark_the_true_numbers(dims, data):
    size = data.draw(st.integers(1, math.prod(dims)))
    cores = mask_cores(size, dims)
    assert all(core.shape[0] <= 2 for core in cores)
    mask = tn.TensorTrain(cores).to_tensor().ravel()
    assert np.array_equal(mask, np.arange(math.prod(dims)) < size)
    if size == math.prod(dims):
        assert all(core.shape[0] == 1 for core in cores)


# ------------------------------------------------------------------ bonds and rounding


def test_bonds_add_and_multiply():
    layout = tn.MatrixLayout((2, 3, 2), (2, 3, 2))
    a, b = network(layout, 1, bond=3), network(layout, 2, bond=4)
    assert (a + b).bond_dims == (1, 7, 7, 1)
    assert (a - b).bond_dims == (1, 7, 7, 1)
    assert (a @ b).bond_dims == a.hadamard(b).bond_dims == (1, 12, 12, 1)
    assert (2 * a).bond_dims == (-a).bond_dims == a.bond_dims
    assert (0 * a).bond_dims == (1, 1, 1, 1)
    padded = network(tn.MatrixLayout((2, 3, 2), (2, 3, 2), 11, 11), bond=3)
    assert (padded @ padded).bond_dims == (1, 18, 18, 1)
    whole_first = network(tn.MatrixLayout((3, 2, 2), (3, 2, 2), 8, 8), bond=3)
    assert (whole_first @ whole_first).bond_dims == (1, 9, 9, 1)


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
@pytest.mark.parametrize("size", [24, 23])
def test_sums_round_to_what_they_are(gauge, size):
    W = np.random.default_rng(3).normal(size=(size, size))
    A = tn.mpo(W, tn.MatrixLayout((2, 3, 4), (4, 3, 2), size, size), max_bond=5, gauge=gauge)
    twice = (A + A).round()
    assert twice.bond_dims == A.bond_dims
    close(twice.to_matrix(), 2 * A.to_matrix())
    nothing = (A - A).round()
    assert nothing.bond_dims == (1, 1, 1, 1)
    assert nothing.norm() <= 1e-13 * A.norm()
    assert (A - A).norm() <= 1e-13 * A.norm()
    capped = (A + 1e-3 * network(A.layout, bond=2)).round(max_bond=5)
    true = (A + 1e-3 * network(A.layout, bond=2)).to_matrix()
    assert capped.certificate.relative_error == pytest.approx(
        relative_error(capped.to_matrix(), true), rel=1e-6
    )


def test_rounding_a_padded_network_of_many_sites():
    n = 40
    layout = tn.MatrixLayout((2,) * n, (1,) * n, 2**n - 1, 1)
    m = network(layout, bond=2)
    twice = (m + m).round()
    assert twice.bond_dims == m.round().bond_dims
    assert twice.certificate.relative_error < 1e-12
    assert math.isclose(twice.norm(), 2 * m.norm(), rel_tol=1e-12)


# ------------------------------------------------------------------ shapes at the edge


@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize("cols", [1, 7])
def test_one_site_prime_sizes_and_ones(rows, cols):
    W = np.random.default_rng(0).normal(size=(rows, cols))
    for sites in (1, 3):
        layout = tn.MatrixLayout((rows,) + (1,) * (sites - 1), (1,) * (sites - 1) + (cols,))
        m = tn.mpo(W, layout)
        close((m + m - m / 2).to_matrix(), 1.5 * W)
        close(m.hadamard(m).to_matrix(), W * W)
        close((m @ m.T).to_matrix(), W @ W.T)
        close((m.T @ m).trace(), (W * W).sum())
        close(m.diagonal(), np.diagonal(W))
        close(m.rows(np.arange(rows)), W)
        assert m.norm() == pytest.approx(np.linalg.norm(W))


def test_cores_in_any_memory_order():
    rng = np.random.default_rng(0)
    base = [rng.normal(size=(2, 4, 6, 2))[::-1, ::2, ::-2, ::-1] for _ in range(3)]
    cores = [base[0][:1], base[1], base[2][..., :1]]
    m = tn.MPO(cores)
    W = m.to_matrix()
    close((m + m).to_matrix(), 2 * W)
    close((m @ m.T).to_matrix(), W @ W.T)
    strided = tn.MPO([torch.as_tensor(c.copy()).permute(0, 2, 1, 3) for c in cores])
    close((strided @ m_torch(cores)).to_matrix(), W.T @ W)
    close(strided.rows(torch.arange(27).flip(0)), W.T[::-1])
    assert all(c.flags.c_contiguous for c in (m @ m.T + m @ m.T).cores)


def m_torch(cores):
    return tn.MPO([torch.as_tensor(c.copy()) for c in cores])


def test_results_share_no_memory_with_their_operands():
    m = network(SQUARE, library="torch")
    before = host(m.to_matrix())
    for result in (-m, 2 * m, m + m, m.hadamard(m), m @ m, (1 + 0j) * m):
        for core in result.cores:
            core.zero_()
    assert np.array_equal(host(m.to_matrix()), before)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("layout", [SQUARE, OTHER], ids=["square", "other factors"])
def test_gradients_equal_those_of_the_dense_twin(layout):
    cores = [c.clone().requires_grad_() for c in network(layout, 5, library="torch").cores]
    b = network(layout, 6, library="torch")
    B = b.to_matrix()
    c = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([3, 0, 3])

    def both(m):
        W = tn.contract_matrix(cores, layout)
        yield (m + b).to_matrix().pow(2).sum(), (W + B).pow(2).sum()
        yield (m - b).to_matrix().pow(2).sum(), (W - B).pow(2).sum()
        yield (m @ b.T).to_matrix().pow(2).sum(), (W @ B.T).pow(2).sum()
        yield m.hadamard(m).to_matrix().sum(), (W * W).sum()
        yield tn.inner(m, m), (W * W).sum()
        yield tn.inner(b, m) ** 2, (B * W).sum() ** 2
        yield m.trace() ** 2, torch.trace(W[:21, :21]) ** 2
        yield m.diagonal().pow(3).sum(), torch.diagonal(W).pow(3).sum()
        yield m.rows(ids).pow(2).sum(), W[ids].pow(2).sum()
        yield m[2, 20] ** 2, W[2, 20] ** 2
        yield (c * m / 2).to_matrix().pow(2).sum(), (c * W / 2).pow(2).sum()
        yield (m / c).to_matrix().pow(2).sum(), (W / c).pow(2).sum()

    for ours, theirs in both(tn.MPO(cores, *layout.shape)):
        leaves = [*cores, c]
        found = torch.autograd.grad(ours, leaves, allow_unused=True, retain_graph=True)
        expected = torch.autograd.grad(theirs, leaves, allow_unused=True, retain_graph=True)
        for one, two in zip(found, expected, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)


def test_jax_traces_through_sums_and_products():
    jax = pytest.importorskip("jax")
    m = network(SQUARE, dtype="float32", library="jax")

    def loss(cores):
        a = tn.MPO._from(tuple(cores), m.layout, None, None)
        return tn.inner(a, a) + (a @ a + 2 * a).trace()

    value = jax.jit(loss)(m.cores)
    W = host(m.to_matrix()).real
    assert float(value) == pytest.approx((W * W).sum() + np.trace(W @ W + 2 * W), rel=1e-4)
