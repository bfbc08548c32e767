"""The parts one by one: factors, layouts, bonds, rules, bases, contraction orders."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import limits as limits_module
from tensornet.backend import load_backend
from tensornet.bonds import structural_bonds
from tensornet.contract.apply import apply_cores
from tensornet.contract.chain import join_order
from tensornet.factorize import is_fair, next_fair
from tensornet.linalg import fix_signs, side_basis, thin_svd
from tensornet.sweep import meeting_site
from tensornet.testing import assert_close, layouts, mpo_cores, tensors
from tensornet.truncation import Limits, Truncation

NUMPY = load_backend("numpy")


@pytest.mark.parametrize(
    ("size", "n", "factors"),
    [
        (3072, 5, (4, 4, 8, 6, 4)),
        (4096, 5, (4, 4, 8, 8, 4)),
        (768, 5, (3, 4, 4, 4, 4)),
        (1024, 5, (4, 4, 4, 4, 4)),
        (768, 4, (4, 4, 8, 6)),
        (1, 3, (1, 1, 1)),
        (2, 3, (1, 2, 1)),
        (17, 1, (17,)),
        (3, 5, (1, 1, 3, 1, 1)),
        (3, 2, (1, 3)),
    ],
)
def test_factorize(size, n, factors):
    assert tn.factorize(size, n) == factors


@given(st.integers(1, 5000), st.integers(1, 6))
def test_factorize_or_pad(size, n):
    fair = next_fair(size, n)
    factors = tn.factorize(fair, n)
    assert math.prod(factors) == fair >= size
    assert is_fair(factors)
    assert max(factors) == factors[n // 2]
    if fair != size:
        with pytest.raises(tn.errors.ShapeError, match=str(fair)):
            tn.factorize(size, n)


def test_factorize_is_the_most_even_one():
    for size in range(1, 200):
        best = min(
            sum(f) for f in itertools.product(range(1, size + 1), repeat=2) if math.prod(f) == size
        )
        fair = next_fair(size, 2)
        if fair == size:
            assert sum(tn.factorize(size, 2)) == best


@pytest.mark.parametrize("n", [3, 4])
def test_factors_have_the_least_sum_and_then_the_least_largest_one(n):
    for size in [*range(1, 130), 144, 210, 216, 240, 360, 420, 2160]:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        found = [
            (*rest, size // math.prod(rest))
            for rest in itertools.combinations_with_replacement(divisors, n - 1)
            if size % math.prod(rest) == 0
        ]
        best = min((sum(f), max(f), sorted(f)) for f in found)
        if is_fair(tuple(best[2])):
            assert sorted(tn.factorize(size, n)) == best[2]


@pytest.mark.parametrize("bad", [0, -3, 2.0, True, "8", None])
def test_factorize_takes_positive_integers(bad):
    with pytest.raises(tn.errors.ShapeError, match="integer of at least 1"):
        tn.factorize(bad, 2)
    with pytest.raises(tn.errors.ShapeError, match="integer of at least 1"):
        tn.factorize(8, bad)


def test_numpy_integers_are_integers():
    assert tn.factorize(np.int64(768), np.int32(5)) == (3, 4, 4, 4, 4)
    W = np.random.default_rng(0).normal(size=(12, 12))
    m = tn.mpo(W, (np.array([3, 4]), np.array([4, 3])), max_bond=np.int64(3))
    assert m.bond_dims == (1, 3, 1)
    assert all(type(d) is int for d in (*m.row_dims, *m.bond_dims))


@given(layouts(), st.data())
def test_fold_and_unfold(layout, data):
    W = data.draw(tensors(layout.shape))
    folded = layout.fold(W)
    assert folded.shape == layout.site_dims
    assert np.array_equal(layout.unfold(folded), W)
    assert layout.transposed.transposed == layout


def test_fold_is_most_significant_first():
    layout = tn.MatrixLayout((2, 3), (5, 7))
    W = np.arange(6 * 35.0).reshape(6, 35)
    folded = layout.fold(W)
    for i1, i2, j1, j2 in itertools.product(range(2), range(3), range(5), range(7)):
        assert folded[i1 * 5 + j1, i2 * 7 + j2] == W[i1 * 3 + i2, j1 * 7 + j2]


def test_layout_errors():
    with pytest.raises(tn.errors.ShapeError, match="rows must be at most 6"):
        tn.MatrixLayout((2, 3), (2, 2), rows=7)
    with pytest.raises(tn.errors.ShapeError, match=r"matrix must have shape \(6, 4\)"):
        tn.MatrixLayout((2, 3), (2, 2)).fold(np.ones((4, 6)))
    with pytest.raises(tn.errors.ShapeError, match=r"tensor must have shape \(4, 6\)"):
        tn.MatrixLayout((2, 3), (2, 2)).unfold(np.ones((6, 4)))
    with pytest.raises(tn.errors.ShapeError, match="have 3 entries for 2 sites, got 2"):
        tn.MatrixLayout((2, 3), (2, 2)).core_shapes((1, 1))
    with pytest.raises(tn.errors.ShapeError, match="sequence of integers"):
        tn.MatrixLayout(4, (2, 2))
    with pytest.raises(tn.errors.ShapeError, match="0 row factors"):
        tn.MatrixLayout((), ())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_structural_bonds_are_tight(sites, data):
    caps = data.draw(st.lists(st.integers(1, 40), min_size=len(sites) - 1, max_size=len(sites) - 1))
    bonds = structural_bonds(sites, caps)
    for k in range(1, len(sites)):
        limits = (caps[k - 1], bonds[k - 1] * sites[k - 1], bonds[k + 1] * sites[k])
        assert bonds[k] == min(limits)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_meeting_site_has_small_sides(sites):
    meeting = meeting_site(tuple(sites))
    total = math.prod(sites)
    for k in range(1, len(sites)):
        left = math.prod(sites[:k])
        assert left * left <= total if k <= meeting else left * left >= total


def test_truncation_rules():
    weights = np.array([16.0, 4.0, 1.0, 0.0])
    assert Truncation(4).cut(weights).kept == 3
    assert Truncation(2).cut(weights).kept == 2
    assert Truncation(4, 1.0).cut(weights).kept == 2
    assert Truncation(4, 100.0).cut(weights).kept == 1
    assert Truncation(4, forced=True).cut(weights).kept == 4
    assert Truncation(2).cut(weights).discarded == 1.0


def test_unused_budget_goes_to_the_bonds_that_follow():
    limits = Limits((1, 8, 8, 8, 1), allowed=3.0)
    assert limits.rule(1, {}).allowed == 1.0
    assert limits.rule(2, {1: 0.0}).allowed == 1.5
    assert limits.rule(3, {1: 0.0, 2: 0.5}).allowed == 2.5
    reserved = Limits((1, 8, 8, 1), allowed=3.0, reserve=(0.0, 2.0, 0.0, 0.0))
    assert reserved.rule(1, {}).allowed == 2.5
    assert reserved.rule(2, {1: 2.0}).allowed == 1.0


def test_a_cap_that_overdraws_the_budget_is_paid_by_the_others():
    rng = np.random.default_rng(0)
    W = rng.normal(size=(64, 64))
    free = tn.mpo(W, 3, rtol=0.5)
    least = tn.mpo(W, 3, bonds=[free.bond_dims[1], 4])
    rtol = least.certificate.relative_error * 1.0001
    m = tn.mpo(W, 3, bonds=[1000, 4], rtol=min(rtol, 0.99))
    assert m.certificate.relative_error <= rtol
    assert m.bond_dims[2] <= 4


def test_impossible_tolerance_says_what_can():
    W = np.random.default_rng(0).normal(size=(64, 64))
    with pytest.raises(tn.errors.ToleranceError) as caught:
        tn.mpo(W, 2, max_bond=5, rtol=0.1)
    reached = tn.mpo(W, 2, max_bond=5).certificate.relative_error
    needed = tn.mpo(W, 2, rtol=0.1).bond_dims[1]
    assert "under these bonds, got 0.1" in str(caught.value)
    advised = float(re.search("at least ([0-9.]+)", str(caught.value))[1])
    assert advised == pytest.approx(reached, rel=1e-5)
    assert max(tn.mpo(W, 2, max_bond=5, rtol=advised).bond_dims) == 5
    assert f"needs [{needed}]" in str(caught.value)


@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (6, 6)])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_side_basis_is_accurate_where_the_gram_matrix_is_not(shape, scale):
    rng = np.random.default_rng(0)
    k = min(shape)
    u, v = (
        np.linalg.qr(rng.normal(size=(shape[0], k)))[0],
        np.linalg.qr(rng.normal(size=(shape[1], k)))[0],
    )
    s = np.array([1.0] * (k - 2) + [scale, scale / 7])
    a = (u * s) @ v.T
    basis = side_basis(a, Truncation(k - 1), False, NUMPY)
    assert basis.cut.kept == k - 1
    assert basis.cut.discarded**0.5 == pytest.approx(scale / 7, rel=1e-6)
    assert np.allclose(np.sqrt(basis.weights[:k]), s, rtol=1e-6)


def test_full_rank_is_proven_without_a_spectrum():
    a = np.random.default_rng(0).normal(size=(8, 100))
    basis = side_basis(a, Truncation(8, 1e-28), True, NUMPY)
    assert basis.vectors is None
    assert basis.weights is None
    deficient = np.vstack([a[:7], a[:1]])
    assert side_basis(deficient, Truncation(8, 1e-20), True, NUMPY).cut.kept == 7


def test_without_convergence_the_older_algorithm_is_used():
    a = np.random.default_rng(0).normal(size=(6, 6))
    exact = np.linalg.svd(a, compute_uv=False)

    def fail(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    broken = SimpleNamespace(
        svd=fail, eigh=fail, qr=np.linalg.qr, to_numpy=np.asarray, flip=np.flip, reshape=np.reshape
    )
    backend = replace(NUMPY, tl=broken)
    u, s, vh = thin_svd(a, backend)
    assert np.allclose(s, exact)
    assert np.allclose((u * s) @ vh, a)
    basis = side_basis(a, Truncation(3), False, backend)
    assert np.allclose(np.sqrt(basis.weights), exact)


@given(tensors((5, 4), dtype="complex128", kinds=("gaussian", "repeated")))
def test_signs_are_fixed(vectors):
    fixed = fix_signs(vectors, NUMPY)
    again = fix_signs(vectors * np.exp(1j * np.arange(4)), NUMPY)
    assert_close(fixed, again, 1e-10)
    assert_close(np.abs(fixed), np.abs(vectors), 1e-12)


@given(layouts(max_sites=4), st.data())
def test_join_order_equals_brute_force(layout, data):
    cores = data.draw(mpo_cores(layout))
    bonds = (*(c.shape[0] for c in cores), 1)
    sites = layout.site_dims

    def brute(segments):
        if len(segments) == 1:
            return 0
        costs = []
        for k in range(len(segments) - 1):
            (a, b), (_, d) = segments[k], segments[k + 1]
            cost = bonds[a] * math.prod(sites[a:d]) * bonds[d] * bonds[b]
            costs.append(cost + brute([*segments[:k], (a, d), *segments[k + 2 :]]))
        return min(costs)

    expected = brute([(k, k + 1) for k in range(len(sites))])
    assert join_order(sites, bonds).multiply_adds == expected


@given(layouts(), st.data(), st.sampled_from([1, 2, 50]))
def test_every_strategy_gives_the_product(layout, data, batch):
    cores = tuple(data.draw(mpo_cores(layout)))
    x = np.random.default_rng(0).normal(size=(layout.cols, batch))
    expected = tn.contract_matrix(cores, layout) @ x
    assert_close(apply_cores(cores, layout, x), expected, 1e-11)


def test_noise_is_measured_by_the_element_type():
    assert limits_module.noise("float64", 256) < 1e-13
    assert limits_module.noise("float32", 256) < 1e-6
    assert limits_module.noise("bfloat16", 4) < 2.0**-8


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_tolerance_below_the_type_is_an_error(dtype):
    W = np.eye(8, dtype=dtype)
    with pytest.raises(tn.errors.ToleranceError, match=f"cores in {dtype}"):
        tn.mpo(W, 3, rtol=1e-17)


def test_a_chain_of_sixty_sites():
    shift = np.array([[1.0, 1.0], [0.0, 1.0]])
    first, last = shift[:1, None, :], shift[:, None, 1:]
    t = tn.TensorTrain([first, *[shift[:, None, :]] * 59, last])
    assert t.to_tensor().item() == 61.0
