"""Searches near rounding: what squares cannot show is looked at again, and only that."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import tensornet as tn
from tensornet import candidates, errors, prospects, unfoldings
from tensornet.backend import backend_of
from tensornet.fitting import TensorSource
from tensornet.prospects import Prospects
from tensornet.shapes import layouts_of
from tensornet.unfoldings import Unfoldings, sides_of

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal((48, 64))


def hilbert(rows, cols):
    return 1.0 / (1.0 + np.arange(rows)[:, None] + np.arange(cols))


def searched(W, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FormatWarning)
        return tn.search_shape(W, **options)


def rebuilt_error(row, W):
    made = tn.mpo(W, row.shape, bonds=row.bonds)
    assert made.n_params == row.n_params
    return np.linalg.norm(made.to_matrix() - W) / np.linalg.norm(W)


@pytest.mark.parametrize("budget", [30_000, 60_000])
def test_an_ample_budget_reaches_what_a_layout_reaches(budget):
    W = hilbert(192, 256)
    result = searched(W, max_params=budget)
    assert result.best.kind == "mpo"
    for row in result:
        if row.kind == "mpo":
            alone = tn.mpo(W, row.shape, max_params=budget)
            assert row.n_params == alone.n_params
            assert row.relative_error == pytest.approx(
                alone.certificate.relative_error, abs=result.noise
            )
        if row.kind != "dense":
            # Rounding of the products with the cores adds to what is cut.
            assert rebuilt_error(row, W) == pytest.approx(row.relative_error, abs=5e-15)
    params = [row.n_params for row in result]
    assert params == sorted(params)
    assert result.rows[-1].kind == ("dense" if budget == 60_000 else "svd")


def test_the_svd_says_what_it_leaves_out_and_no_less():
    W = hilbert(192, 256)
    for options in ({"max_params": 30_000}, {"rtol": 1e-12}):
        row = next(row for row in searched(W, **options) if row.kind == "svd")
        s = np.linalg.svd(W, compute_uv=False)
        left = np.sqrt(np.sum(s[row.bonds[0] :] ** 2) / np.sum(s**2))
        assert 0.0 < left < 1e-12
        assert row.relative_error == pytest.approx(left, rel=0.1)


def test_single_precision_ranks_what_is_rounding_by_parameters():
    W = hilbert(96, 128).astype(np.float32)
    result = searched(W, max_params=96 * 128)
    assert all(row.relative_error <= result.noise for row in result)
    params = [row.n_params for row in result]
    assert params == sorted(params)
    assert {row.kind for row in result} == {"mpo", "svd", "dense"}


def test_budgets_that_reach_less_than_squares_show_are_kept():
    W = hilbert(96, 128)
    for budget in (700, 1200):
        result = searched(W, max_params=budget, n=(3, 4))
        best = result.best
        assert best.n_params <= budget
        assert rebuilt_error(best, W) == pytest.approx(best.relative_error, rel=1e-3, abs=1e-14)
        least = min(
            tn.mpo(W, layout, max_params=budget).certificate.relative_error
            for layout in layouts_of(96, 128, (3, 4))
            if sum(layout.site_dims) <= budget
        )
        assert best.relative_error <= 1.5 * least + 1e-14


def form(kind, params, error):
    layout = None if kind == "dense" else tn.MatrixLayout((48, 1), (1, 64))
    return tn.Candidate(kind, layout, () if layout is None else (1,), params, error, params)


def note(*rows, noise=1e-13):
    ordered = candidates.ranked(rows, by_params=False, noise=noise)
    limit = ("max_params", 9999)
    return candidates.table_warning(tn.SearchResult(ordered, (48, 64), limit, 1, False, noise))


def test_a_note_claims_nothing_that_is_rounding():
    svd, chain = form("svd", 300, 1e-14), form("mpo", 200, 3e-14)
    assert note(svd, chain) == ""
    assert note(form("svd", 200, 0.0), chain) == ""
    text = note(form("svd", 100, 4e-14), chain)
    assert text.endswith("tried: 100 parameters against 200, both exact to rounding.")
    assert "error 0.1 with 300 parameters" in note(form("svd", 300, 0.1), form("mpo", 200, 0.2))
    assert note(form("dense", 3072, 0.0), chain) == ""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limit", [{"rtol": 1e-5}, {"rtol": 0.1}, {"max_params": 500}])
def test_no_spectrum_is_looked_at_again_where_no_value_is_small(dtype, limit, monkeypatch):
    for place, name in ((unfoldings, "low_rank_root"), (unfoldings, "front_of")):
        monkeypatch.setattr(place, name, None)
    monkeypatch.setattr(TensorSource, "_exact", None)
    result = searched(NOISE.astype(dtype), **limit)
    assert {"mpo", "svd"} <= {row.kind for row in result}


def counted(monkeypatch, place, name):
    seen, inner = [], getattr(place, name)

    def counting(*args, **options):
        seen.append(args)
        return inner(*args, **options)

    monkeypatch.setattr(place, name, counting)
    return seen


@pytest.mark.parametrize("limit", [("rtol", 1e-8), ("max_params", 3000)])
def test_each_unfolding_is_decomposed_once_at_most(limit, monkeypatch):
    seen = counted(monkeypatch, unfoldings, "singular_values")
    grams = counted(monkeypatch, unfoldings, "spectrum")
    layouts = layouts_of(48, 64, (2, 3, 4))
    W = hilbert(48, 64)
    Prospects(W, backend_of(W), limit, layouts, 3)
    sides = {side for layout in layouts for side in sides_of(layout)}
    assert 0 < len(seen) <= len(sides)
    assert len(grams) == len(sides)


def test_exact_spectra_beyond_the_leading_layouts_have_a_budget(monkeypatch):
    monkeypatch.setattr(prospects, "_EXACT_WORK", 0.0)
    seen = counted(monkeypatch, unfoldings, "singular_values")
    layouts = layouts_of(48, 64, (2, 3, 4))
    W = hilbert(48, 64)
    few = Prospects(W, backend_of(W), ("max_params", 3000), layouts, 1)
    first = len(seen)
    monkeypatch.setattr(prospects, "_EXACT_WORK", 1e12)
    many = Prospects(W, backend_of(W), ("max_params", 3000), layouts, 1)
    assert first < len(seen) - first
    assert many.found[0].second <= few.found[0].second
    assert len(few.found) == len(many.found) == 2


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_roots_of_larger_sides_serve_smaller_ones_to_all_digits(dtype, library):
    W = hilbert(24, 40) * (1.0 if dtype == "float64" else np.exp(0.3j * np.arange(40)))
    given = pytest.importorskip("torch").from_numpy(W) if library == "torch" else W
    shared = Unfoldings(given, backend_of(given), 1e-10)
    layouts = layouts_of(24, 40, (2, 3, 4))
    shared.prepare(layouts, 0.0)
    for layout in layouts:
        tensor = layout.fold(W)
        for k, side in enumerate(sides_of(layout), start=1):
            flat = tensor.reshape(math.prod(layout.site_dims[:k]), -1)
            s = np.linalg.svd(flat, compute_uv=False)
            expected = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0) / np.sum(s**2)
            found = shared.tail(side, 0.0)
            assert np.sqrt(found) == pytest.approx(np.sqrt(expected), rel=1e-3, abs=2e-15)


@pytest.mark.parametrize("size", [(23, 41), (48, 1), (1, 64)])
def test_padded_and_thin_matrices_near_rounding(size):
    W = hilbert(*size)
    for options in ({"max_params": 500}, {"rtol": 1e-9}):
        for row in searched(W, **options):
            if row.kind == "svd":
                assert rebuilt_error(row, W) == pytest.approx(row.relative_error, abs=5e-15)
            if row.kind == "mpo" and "rtol" in options:
                assert row.relative_error <= 1e-9
