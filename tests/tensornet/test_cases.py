"""Small inputs whose right outcome is known by hand: ranks, errors, counts, orders."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensornet as tn

torch = pytest.importorskip("torch")

RNG24 = np.random.default_rng(0).normal(size=(24, 24))
SINE24 = np.sin(np.arange(576.0)).reshape(24, 24)
SITES24 = ((2, 3, 4), (4, 3, 2))
GRID = np.linspace(0, 1, 64)
EXP64 = np.exp(-GRID[:, None] * GRID)


def test_t02_bond_above_the_possible_one():
    m = tn.mpo(RNG24, SITES24, max_bond=50)
    assert m.bond_dims == (1, 8, 8, 1)
    assert m.n_params == 704
    assert np.abs(m.to_matrix() - RNG24).max() < 1e-13


@pytest.mark.parametrize("cap", [5, 8, 50, None])
def test_t02_numerical_rank_limits_the_bond(cap):
    m = tn.mpo(SINE24, SITES24, max_bond=cap)
    assert m.bond_dims == (1, 2, 2, 1)
    assert m.n_params == 68
    assert np.abs(m.to_matrix() - SINE24).max() < 1e-13


def test_t02_bonds_from_a_specification_alone():
    layout = tn.MatrixLayout((2, 2, 2, 567), (2, 2, 5, 5))
    assert layout.structural_bonds() == (1, 4, 16, 160, 1)
    capped = layout.structural_bonds(max_bond=10)
    assert capped == (1, 4, 10, 10, 1)
    assert layout.n_params(capped) == 29_526
    assert math.prod(layout.shape) == 453_600


@pytest.mark.parametrize("max_bond", [None, 3, 50])
@pytest.mark.parametrize("matrix", [RNG24, SINE24, np.zeros((24, 24))])
def test_t02_full_bonds_give_the_shapes_of_the_specification(matrix, max_bond):
    m = tn.mpo(matrix, SITES24, bonds="full", max_bond=max_bond)
    expected = m.layout.core_shapes(m.layout.structural_bonds(max_bond))
    assert tuple(core.shape for core in m.cores) == expected


@pytest.mark.parametrize(
    ("bonds", "text"),
    [
        ([3, 2, 2, 1], "bonds must have 1 as first bond when it lists all 4, got 3."),
        ([1, 2, 2, 4], "bonds must have 1 as last bond when it lists all 4, got 4."),
        ([2, 2, 2, 2, 2], "2 inner bonds, or 4 with 1 at both ends, got 5 values."),
        ([2], "2 inner bonds, or 4 with 1 at both ends, got 1 values."),
        ([2, -1], "bonds[1] must be an integer of at least 1, got -1."),
        ([2, 2.5], "bonds[1] must be an integer of at least 1, got 2.5."),
    ],
)
def test_t03_wrong_bond_lists(bonds, text):
    with pytest.raises(tn.errors.BondError) as caught:
        tn.mpo(RNG24, SITES24, bonds=bonds)
    assert text in str(caught.value)


def test_t03_inner_and_full_lists_mean_the_same():
    inner = tn.mpo(RNG24, SITES24, bonds=[2, 3])
    assert inner.bond_dims == tn.mpo(RNG24, SITES24, bonds=[1, 2, 3, 1]).bond_dims == (1, 2, 3, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_t04_non_finite_entries_are_counted_and_located(bad, make):
    W = np.arange(24.0).reshape(4, 6)
    W[1, 2] = bad
    with pytest.raises(tn.errors.NonFiniteError) as caught:
        tn.mpo(make(W), ((2, 2), (2, 3)))
    assert "1 non-finite value, the first at index (1, 2)" in str(caught.value)


@pytest.mark.parametrize(
    ("rtol", "kept"), [(0.20, 3), (0.2182, 3), (0.2183, 2), (0.48, 2), (0.487, 2), (0.49, 1)]
)
def test_t07_rtol_is_relative_to_the_whole_norm(rtol, kept):
    d = np.diag([2.0, 4.0, 1.0])
    assert tn.tt(d, rtol=rtol).bond_dims == (1, kept, 1)


def test_t07_total_error_over_several_cuts():
    m = tn.mpo(EXP64, ((4, 4, 4), (4, 4, 4)), rtol=1e-3)
    assert m.certificate.relative_error <= 1e-3
    assert np.linalg.norm(m.to_matrix() - EXP64) <= 1e-3 * np.linalg.norm(EXP64)


@pytest.mark.parametrize(
    ("rtol", "bond", "params", "error"),
    [(1e-3, 3, 384, 1.22e-4), (1e-6, 6, 768, 6.3e-7), (1e-12, 19, 2432, 2.1e-13)],
)
def test_t08_tolerance_at_decomposition_and_at_rounding(rtol, bond, params, error):
    direct = tn.mpo(EXP64, ((8, 8), (8, 8)), rtol=rtol)
    rounded = tn.mpo(EXP64, ((8, 8), (8, 8)), bonds="full").round(rtol=rtol)
    for m in (direct, rounded):
        assert m.bond_dims == (1, bond, 1)
        assert m.n_params == params
        true = np.linalg.norm(m.to_matrix() - EXP64) / np.linalg.norm(EXP64)
        assert true == pytest.approx(error, rel=0.05)
        assert m.certificate.relative_error == pytest.approx(true, rel=1e-2)


def test_t08_unknown_options_raise():
    with pytest.raises(TypeError, match="tolerance"):
        tn.mpo(EXP64, tolerance=1e-3)


@pytest.mark.parametrize(
    ("cap", "params", "compression", "error"),
    [(2, 256, 128.0, 6.9765e-2), (3, 480, 68.2667, 1.31867e-2), (5, 1120, 29.2571, 2.925e-4)],
)
def test_t12_compression_and_bytes_on_disk(cap, params, compression, error, tmp_path):
    i = np.arange(32.0)
    T = 1 / (1 + i[:, None, None] + i[:, None] + i)
    t = tn.tt(T, max_bond=cap)
    report = tn.account(t)
    assert report.unique == t.n_params == params
    assert report.compression == pytest.approx(compression, abs=1e-4)
    assert t.certificate.relative_error == pytest.approx(error, rel=1e-4)
    assert all(core.base is None or core.base.size == core.size for core in t.cores)
    tn.save(t, tmp_path / "t.safetensors")
    assert (tmp_path / "t.safetensors").stat().st_size < params * 8 + 4096


def test_t13_larger_than_the_original_is_said():
    W = np.random.default_rng(0).normal(size=(64, 64))
    m = tn.mpo(W, ((4, 4, 4), (4, 4, 4)))
    report = tn.account(m)
    assert [core.size for core in m.cores] == [256, 4096, 256]
    assert report.unique == 4608
    assert report.ratio == 1.125
    assert report.compression == pytest.approx(0.8889, abs=1e-4)
    assert "larger than the dense form" in str(report)
    assert "larger" in repr(m)
    assert tn.mpo(RNG24, SITES24).n_params == 704 > RNG24.size
    assert tn.mpo(W, ((4, 4, 4), (4, 4, 4)), max_bond=15).n_params < 4096
    assert tn.mpo(W, ((4, 4, 4), (4, 4, 4)), max_bond=16).n_params > 4096


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (((4, 8, 4, 4), (4, 8, 8, 12)), "number of rows 768, got (4, 8, 4, 4) with product 512"),
        (
            ((4, 8, 4, 6), (4, 8, 8, 8)),
            "number of columns 3072, got (4, 8, 8, 8) with product 2048",
        ),
        (((4, 8, 24), (4, 8, 8, 12)), "got 3 row factors and 4 column factors"),
        (((0, 768), (4, 768)), "row_dims[0] must be an integer of at least 1, got 0"),
        (((-4, -192), (4, 768)), "row_dims[0] must be an integer of at least 1, got -4"),
    ],
)
def test_t14_sites_that_do_not_fit(shape, text):
    with pytest.raises(tn.errors.ShapeError) as caught:
        tn.mpo(np.zeros((768, 3072)), shape)
    assert text in str(caught.value)


@pytest.mark.parametrize("view", ["T", "strided", "fortran", "reversed", "readonly"])
def test_t15_strides_do_not_matter(view):
    A = np.random.default_rng(1).normal(size=(24, 24))
    W = {
        "T": A.T,
        "strided": np.random.default_rng(1).normal(size=(24, 48))[:, ::2],
        "fortran": np.asfortranarray(A),
        "reversed": A[::-1],
        "readonly": A,
    }[view]
    if view == "readonly":
        W.flags.writeable = False
    before = W.copy()
    m = tn.mpo(W, SITES24, max_bond=5)
    same = tn.mpo(np.ascontiguousarray(W), SITES24, max_bond=5)
    assert all(np.array_equal(a, b) for a, b in zip(m.cores, same.cores, strict=True))
    assert np.array_equal(W, before)


def test_t15_strided_torch_input():
    A = torch.as_tensor(RNG24)
    m = tn.mpo(A.T, SITES24, max_bond=5)
    same = tn.mpo(A.T.contiguous(), SITES24, max_bond=5)
    assert all(torch.equal(a, b) for a, b in zip(m.cores, same.cores, strict=True))
    x = torch.as_tensor(np.random.default_rng(2).normal(size=(3, 24)))
    assert torch.equal(m @ x.T, m @ x.T.contiguous())


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_t24_the_array_decides_and_the_users_backend_stays(backend):
    import tensorly as tl

    before = tl.get_backend()
    tl.set_backend(backend)
    try:
        assert isinstance(tn.mpo(RNG24, SITES24).central, np.ndarray)
        t = tn.tt(torch.ones(4, 4, 4))
        assert isinstance(t.central, torch.Tensor)
        assert t.dtype == torch.float32
        assert tl.get_backend() == backend
    finally:
        tl.set_backend(before)


def test_t24_threads_with_different_arrays():
    def work(W):
        return {type(tn.mpo(W, SITES24, max_bond=3).central) for _ in range(20)}

    jobs = [RNG24, torch.as_tensor(RNG24)] * 2
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, jobs)) == [{np.ndarray}, {torch.Tensor}] * 2


def test_t27_sites_keep_their_order():
    A, B = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 10], [100, 1000]])
    m = tn.mpo(np.kron(A, B), ((2, 2), (2, 2)))
    assert m.bond_dims == (1, 1, 1)
    first, second = m.cores[0][0, :, :, 0], m.cores[1][0, :, :, 0]
    assert np.allclose(first / first[0, 0], A)
    assert np.allclose(second / second[0, 0], B)
    assert np.allclose(m.to_matrix(), np.kron(A, B), rtol=1e-14)


def test_t27_rectangular_kron_and_both_products():
    rng = np.random.default_rng(3)
    A, B = rng.normal(size=(2, 3)), rng.normal(size=(4, 5))
    W = np.kron(A, B)
    m = tn.mpo(W, ((2, 4), (3, 5)))
    assert m.bond_dims == (1, 1, 1)
    x, y = rng.normal(size=15), rng.normal(size=8)
    assert np.allclose(m @ x, W @ x)
    assert np.allclose(y @ m, y @ W)


def test_t28_sizes_without_balanced_factors_are_padded_never_cut():
    for rows, n in ((30522, 3), (30522, 5), (103, 5)):
        layout = tn.matrix_layout(rows, 32, n)
        assert layout.shape == (rows, 32)
        assert layout.padded_shape[0] >= rows
    with pytest.raises(tn.errors.ShapeError, match="prime factor 5087"):
        tn.factorize(30522, 3)
    W = np.random.default_rng(0).normal(size=(103, 32))
    m = tn.mpo(W, 3)
    assert m.to_matrix().shape == (103, 32)
    assert np.allclose(m.to_matrix(), W)
    assert tn.account(m).dense == 103 * 32
    with pytest.raises(tn.errors.ShapeError, match="pad=True"):
        tn.mpo(W, 3, pad=False)


def test_t30_the_same_cores_everywhere():
    W = np.arange(64.0).reshape(8, 8)
    sites = ((2, 4), (4, 2))
    first, again = tn.mpo(W, sites), tn.mpo(W, sites)
    other = tn.mpo(torch.as_tensor(W), sites)
    for a, b, c in zip(first.cores, again.cores, other.cores, strict=True):
        assert np.array_equal(a, b)
        assert np.abs(a - c.numpy()).max() < 1e-10
    assert first.singular_values(1) == pytest.approx([290.390471, 31.896306], abs=1e-6)
    cut = tn.mpo(W, sites, max_bond=1)
    assert cut.certificate.relative_error == pytest.approx(0.109182715, abs=1e-9)
    assert tn.mpo(W, sites, max_bond=2).certificate.relative_error < 1e-14


def test_m05_a_core_held_by_several_networks_counts_once():
    rng = np.random.default_rng(0)
    central = torch.as_tensor(rng.normal(size=(16, 4, 4, 16)))
    chains = [
        tn.MPO(
            [
                torch.as_tensor(rng.normal(size=(1, 4, 4, 16))),
                central,
                torch.as_tensor(rng.normal(size=(16, 4, 4, 1))),
            ]
        )
        for _ in range(12)
    ]
    report = tn.account(chains)
    assert report.unique == 10_240
    assert report.total == 55_296
    assert report.dense == 49_152
    assert report.shared == 4096
    assert report.by_kind == {"central": 4096, "auxiliary": 6144}
