"""Searches for a shape: what is ranked, what is said, and that figures are true."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tensornet as tn
from tensornet import errors, prospects
from tensornet.prospects import affordable
from tensornet.shapes import layouts_of, near_balanced

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal((48, 64))
KRON = np.kron(RNG.standard_normal((6, 8)), RNG.standard_normal((8, 8)))


def rebuilt_error(result, W, metric=None):
    D = result.build(W, metric).to_matrix() - W
    if metric is None:
        return np.linalg.norm(D) / np.linalg.norm(W)
    return np.sqrt(np.sum((D @ metric) * D) / np.sum((W @ metric) * W))


def test_a_kronecker_product_is_found_exactly():
    result = tn.search_shape(KRON, max_params=200)
    assert result.best.kind == "mpo"
    assert result.best.relative_error < 1e-12


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("budget", [112, 500, 1200])
def test_a_budget_is_kept_and_errors_are_true(library, budget):
    W = NOISE
    if library == "torch":
        W = pytest.importorskip("torch").from_numpy(NOISE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FormatWarning)
        result = tn.search_shape(W, max_params=budget)
    assert [r.relative_error for r in result] == sorted(r.relative_error for r in result)
    for row in result:
        assert row.n_params <= budget
        shape = row.shape
        made = tn.mpo(NOISE, shape, bonds=row.bonds)
        assert made.n_params == row.n_params
        assert made.certificate.relative_error == pytest.approx(row.relative_error, rel=1e-6)


def test_the_svd_is_its_own_closed_form():
    s = np.linalg.svd(NOISE, compute_uv=False)
    rows = {row.kind: row for row in tn.search_shape(NOISE, max_params=1200)}
    rank = 1200 // 112
    assert rows["svd"].bonds == (rank,)
    expected = np.sqrt((s[rank:] ** 2).sum() / (s**2).sum())
    assert rows["svd"].relative_error == pytest.approx(expected, rel=1e-6)
    assert rows["svd"].multiply_adds == rank * 112


def test_a_low_rank_matrix_is_left_to_the_svd_and_said_so():
    W = np.outer(RNG.standard_normal(48), RNG.standard_normal(64))
    with pytest.warns(
        errors.FormatWarning, match="a plain SVD beats every MPO tried: error"
    ) as seen:
        result = tn.search_shape(W, max_params=120)
    assert result.best.kind == "svd"
    assert str(seen[0].message) in str(result)
    assert rebuilt_error(result, W) < 1e-12


def test_dense_wins_where_nothing_is_to_be_saved():
    with pytest.warns(errors.FormatWarning, match="the dense matrix beats every MPO tried"):
        result = tn.search_shape(NOISE, rtol=1e-6)
    assert result.best.kind == "dense"
    with pytest.raises(errors.OptionError, match="the best form must be a chain, got the dense"):
        result.build(NOISE)
    with pytest.warns(errors.FormatWarning):
        assert tn.search_shape(NOISE, max_params=48 * 64).best.kind == "dense"


def test_a_tolerance_is_kept_with_fewest_parameters_first():
    result = tn.search_shape(KRON + 1e-3 * NOISE, rtol=0.1)
    params = [row.n_params for row in result]
    assert params == sorted(params)
    assert all(row.relative_error <= 0.1 for row in result)
    assert {"svd", "dense", "mpo"} == {row.kind for row in result}


def test_a_metric_names_the_whitened_svd():
    U, V = (np.linalg.qr(RNG.standard_normal((d, 48)))[0] for d in (48, 64))
    W = (U / np.arange(1, 49)) @ V.T
    G = RNG.standard_normal((64, 64)) * np.logspace(0, -2, 64)
    H = G.T @ G
    with pytest.warns(errors.FormatWarning, match="a whitened SVD beats every MPO tried"):
        result = tn.search_shape(W, max_params=1200, metric=H)
    assert result.best.kind == "whitened svd"
    assert {"svd", "mpo"} <= {row.kind for row in result}
    assert "error (metric)" in str(result)
    assert rebuilt_error(result, W, H) == pytest.approx(result.best.relative_error, rel=1e-6)
    plain = next(row for row in result if row.kind == "svd")
    u, s, vh = np.linalg.svd(W)
    D = W - (u[:, :10] * s[:10]) @ vh[:10]
    expected = np.sqrt(np.sum((D @ H) * D) / np.sum((W @ H) * W))
    assert plain.relative_error == pytest.approx(expected, rel=1e-6)
    with pytest.raises(errors.OptionError, match="metric must be that of the search, got none"):
        result.build(W)


def test_an_identity_metric_changes_no_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FormatWarning)
        plain = tn.search_shape(NOISE, max_params=112)
        same = tn.search_shape(NOISE, max_params=112, metric=np.eye(64))
    errors_of = [{row.kind: row.relative_error for row in found} for found in (plain, same)]
    assert errors_of[1]["whitened svd"] == pytest.approx(errors_of[0]["svd"], rel=1e-6)


@pytest.mark.parametrize("size", [(7, 13), (1, 1), (1, 30), (31, 2)])
def test_odd_sizes(size):
    W = RNG.standard_normal(size)
    with pytest.warns(errors.FormatWarning):
        result = tn.search_shape(W, max_params=1000)
    assert result.best.kind == "dense"
    assert len(str(result).splitlines()) == len(result) + 4


def test_complex_half_and_zero_matrices():
    for W in (NOISE + 1j * NOISE[::-1], NOISE.astype(np.float16), np.zeros((16, 16))):
        try:
            with pytest.warns(errors.FormatWarning):
                result = tn.search_shape(W, max_params=900)
        except pytest.fail.Exception:
            result = tn.search_shape(W, max_params=900)
        assert result.best.n_params <= 900
        assert 0.0 <= result.best.relative_error < 1.0


def test_the_batch_is_counted():
    one, many = (tn.search_shape(KRON, max_params=200, batch=b) for b in (1, 8))
    assert many.best.multiply_adds > one.best.multiply_adds


def test_layouts_fit_the_matrix():
    for layout in layouts_of(48, 64, (2, 3, 4)):
        assert layout.shape == (48, 64)


REFUSED = [
    ({}, errors.OptionError, "limits must be one of max_params, ratio and rtol, got none"),
    ({"rtol": 0.1, "max_params": 9}, errors.OptionError, "got max_params and rtol"),
    ({"max_params": 3}, errors.OptionError, r"max_params must be at least \d+, the parameters of"),
    ({"max_params": 0}, errors.OptionError, "integer of at least 1, got 0"),
    ({"max_params": 10.0}, errors.OptionError, r"integer of at least 1, got 10\.0"),
    ({"rtol": 0}, errors.ToleranceError, r"rtol must be a number in \(0, 1\)"),
    ({"rtol": 0.1, "n": 1}, errors.ShapeError, "n must be an integer of at least 2, got 1"),
    ({"rtol": 0.1, "n": "5"}, errors.ShapeError, "n must be an integer of at least 2, got '5'"),
    ({"rtol": 0.1, "n": ()}, errors.ShapeError, "n must hold numbers of sites from 2 to 32"),
    (
        {"rtol": 0.1, "n": 40},
        errors.ShapeError,
        "n must hold numbers of sites from 2 to 32, got 40",
    ),
    ({"rtol": 0.1, "batch": 0}, errors.ShapeError, "batch must be an integer of at least 1"),
    ({"rtol": 0.1, "top": 0}, errors.OptionError, "top must be an integer of at least 1"),
    ({"rtol": 0.1, "metric": np.eye(3)}, errors.ShapeError, r"metric must have shape \(64, 64\)"),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_refusals(options, kind, text):
    with pytest.raises(kind, match=text):
        tn.search_shape(NOISE, **options)


def test_bad_values_are_named():
    bad = NOISE.copy()
    bad[3, 4] = np.nan
    with pytest.raises(errors.NonFiniteError, match=r"\(3, 4\)"):
        tn.search_shape(bad, rtol=0.1)


def test_several_factorizations_and_orders_are_tried():
    layouts = layouts_of(48, 64, (2, 3))
    assert len(set(layouts)) == len(layouts) > 20
    assert layouts[0].n_sites == 2
    assert layouts[1].n_sites == 3
    assert {tuple(sorted(layout.row_dims)) for layout in layouts} == {
        (6, 8),
        (4, 12),
        (3, 4, 4),
        (2, 4, 6),
    }
    assert near_balanced(7, 1) == ((7,),)


def test_spectra_that_would_take_long_are_left_out_but_each_length_has_one():
    layouts = layouts_of(4096, 16384, (2, 3, 4, 5))
    chosen = affordable(layouts)
    assert len(chosen) < len(layouts)
    assert {layout.n_sites for layout in chosen} == {2, 3, 4, 5}
    assert affordable(layouts_of(48, 64, (2, 3))) == layouts_of(48, 64, (2, 3))


@pytest.mark.filterwarnings("ignore::tensornet.errors.FormatWarning")
def test_a_low_tolerance_is_kept_by_the_svd_too():
    Q = np.linalg.qr(RNG.standard_normal((120, 120)))[0]
    W = (Q * 10.0 ** -np.linspace(0, 12, 120)) @ Q.T
    s = np.linalg.svd(W, compute_uv=False)
    tails = np.sqrt(np.cumsum(s[::-1] ** 2)[::-1] / np.sum(s**2))
    for rtol in (1e-3, 1e-6, 1e-8, 1e-9):
        rows = tn.search_shape(W, rtol=rtol, n=2)
        svd = next(row for row in rows if row.kind == "svd")
        rank = int(np.argmax(tails <= rtol))
        assert svd.bonds == (rank,)
        assert svd.relative_error == pytest.approx(tails[rank], rel=1e-3)
    rows = tn.search_shape(W, max_params=240 * 50, n=2)
    svd = next(row for row in rows if row.kind == "svd")
    assert svd.relative_error == pytest.approx(tails[50], rel=1e-3)


def test_the_plain_svd_keeps_a_tolerance_in_the_metric_with_a_rank_of_its_own():
    G = RNG.standard_normal((64, 64)) * np.logspace(0, -2, 64)
    H = G.T @ G
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FormatWarning)
        rows = {row.kind: row for row in tn.search_shape(NOISE, rtol=0.3, metric=H, n=2)}
    assert rows["whitened svd"].bonds < rows["svd"].bonds
    u, s, vh = np.linalg.svd(NOISE, full_matrices=False)
    total = np.sum((NOISE @ H) * NOISE)
    for rank, kept in ((rows["svd"].bonds[0], True), (rows["svd"].bonds[0] - 1, False)):
        D = NOISE - (u[:, :rank] * s[:rank]) @ vh[:rank]
        error = np.sqrt(np.sum((D @ H) * D) / total)
        assert (error <= 0.3) == kept
        if kept:
            assert rows["svd"].relative_error == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("rank", [1, 3, 48])
@pytest.mark.filterwarnings("ignore::tensornet.errors.FormatWarning")
def test_budgets_beyond_the_rank(rank):
    W = RNG.standard_normal((48, rank)) @ RNG.standard_normal((rank, 64))
    for limit in ({"max_params": 3000}, {"rtol": 1e-10}):
        rows = {row.kind: row for row in tn.search_shape(W, **limit)}
        if rank < 48:
            assert rows["svd"].bonds == (rank,)
            assert rows["svd"].relative_error < 1e-12


def test_spectra_are_looked_at_again_where_single_precision_says_too_little(monkeypatch):
    asked = []

    class Recorded(prospects.Unfoldings):
        def __init__(self, matrix, backend, share):
            asked.append(share)
            super().__init__(matrix, backend, share)

    monkeypatch.setattr(prospects, "Unfoldings", Recorded)
    near = (KRON + 1e-4 * NOISE).astype(np.float32)
    found = tn.search_shape(near, max_params=200)
    assert asked == [prospects.SAFE_SHARE, prospects.SHARE]
    assert found.best.relative_error < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FormatWarning)
        tn.search_shape(NOISE.astype(np.float32), max_params=200)
    assert asked[2:] == [prospects.SAFE_SHARE]


def test_a_plain_svd_is_built_without_the_metric():
    G = RNG.standard_normal((64, 64))
    layout = tn.MatrixLayout((48, 1), (1, 64))
    row = tn.Candidate("svd", layout, (5,), 560, 0.5, 560)
    result = tn.SearchResult((row,), (48, 64), ("max_params", 600), 1, True)
    u, s, vh = np.linalg.svd(NOISE)
    plain = (u[:, :5] * s[:5]) @ vh[:5]
    assert np.allclose(result.build(NOISE, G.T @ G).to_matrix(), plain)
