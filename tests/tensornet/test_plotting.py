"""Pictures: what the axes hold, and that nothing global changes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tensornet as tn
from tensornet import errors
from tensornet.plotting import plot_cost, plot_error, plot_spectra

figure = pytest.importorskip("matplotlib.figure", reason="pictures need matplotlib")

W = np.random.default_rng(0).standard_normal((64, 64))


def lines(picture):
    return {line.get_label(): line for line in picture.axes[0].get_lines()}


def test_spectra_are_shares_of_the_norm():
    m = tn.mpo(W, 3)
    drawn = lines(plot_spectra({"gauss": m}))
    assert set(drawn) == {"gauss bond 1", "gauss bond 2"}
    assert np.allclose(drawn["gauss bond 1"].get_ydata(), m.singular_values(1) / m.norm())
    axes = plot_spectra(tn.tt(W.reshape(4, 16, 64))).axes[0]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "share of the norm")


def test_error_against_parameters_is_that_of_the_decompositions():
    drawn = lines(plot_error(W, 3, ratios=(0.5,)))
    for params, error in zip(*drawn["MPO"].get_data(), strict=True):
        if params == tn.mpo(W, 3, max_bond=8).n_params:
            assert error == pytest.approx(tn.mpo(W, 3, max_bond=8).certificate.relative_error)
    params, values = drawn["SVD"].get_data()
    s = np.linalg.svd(W, compute_uv=False)
    assert params[0] == 128
    assert values[0] == pytest.approx(np.sqrt((s[1:] ** 2).sum() / (s**2).sum()))
    assert drawn["search"].get_xdata()[0] <= 0.5 * W.size


def test_complex_and_torch_matrices_have_the_same_picture():
    drawn = lines(plot_error(W + 2j * W, 2))
    plain = lines(plot_error(W, 2))
    for name in ("SVD", "MPO"):
        assert np.allclose(drawn[name].get_ydata(), plain[name].get_ydata(), atol=1e-7)
    torch = pytest.importorskip("torch")
    theirs = lines(plot_error(torch.from_numpy(W).requires_grad_(), 2))
    assert np.allclose(theirs["MPO"].get_ydata(), plain["MPO"].get_ydata(), atol=1e-7)
    half = lines(plot_error(torch.from_numpy(W).bfloat16(), 2))
    assert np.allclose(half["SVD"].get_ydata(), plain["SVD"].get_ydata(), atol=1e-2)


def test_a_zero_matrix_has_no_error():
    drawn = lines(plot_error(np.zeros((16, 16)), 2))
    assert not np.any(drawn["SVD"].get_ydata())
    assert not np.any(drawn["MPO"].get_ydata())
    plot_spectra(tn.mpo(np.zeros((16, 16)), 2)).canvas.draw()


def test_cost_of_the_plan_and_of_the_dense_matrix():
    m = tn.mpo(W, 3, max_bond=2)
    drawn = lines(plot_cost(m, (1, 16)))
    assert list(drawn["matrix"].get_ydata()) == [4096, 65536]
    assert set(drawn) == {"matrix", "dense", "left", "right", "plan of m @ x"}
    for name, line in drawn.items():
        if name != "plan of m @ x":
            expected = [tn.account(m, batch=b).multiply_adds[name] for b in (1, 16)]
            assert list(line.get_ydata()) == expected
    axes = plot_cost(m, (1, 16)).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("number of vectors", "multiply-adds")
    assert list(drawn["plan of m @ x"].get_ydata()) == [m.plan(b).multiply_adds for b in (1, 16)]


def test_given_axes_are_used_and_pyplot_is_left_alone():
    before = "matplotlib.pyplot" in sys.modules
    axes = figure.Figure().add_subplot()
    assert plot_spectra(tn.mpo(W, 2), axes) is axes.figure
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_refusals():
    with pytest.raises(errors.ArrayTypeError, match="networks must be an MPO, a TensorTrain or"):
        plot_spectra(W)
    with pytest.raises(errors.ShapeError, match="have at least one inner bond, got none"):
        plot_spectra(tn.mpo(W, 1))
    with pytest.raises(errors.OptionError, match=r"ratios must lie in \(0, 1\], got 2"):
        plot_error(W, ratios=(2,))
    with pytest.raises(errors.OptionError, match=r"ratios must lie in \(0, 1\], got 'half'"):
        plot_error(W, ratios=("half",))
    with pytest.raises(errors.NonFiniteError, match="W must be finite"):
        plot_error(W * np.nan)
    with pytest.raises(errors.ArrayTypeError, match="m must be an MPO, got ndarray"):
        plot_cost(W)
    with pytest.raises(errors.ShapeError, match=r"batches\[0\] must be an integer of at least 1"):
        plot_cost(tn.mpo(W, 2), (0,))
    with pytest.raises(errors.ShapeError, match="hold at least one number, got none"):
        plot_cost(tn.mpo(W, 2), ())


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(errors.MissingLibraryError, match="pip install matplotlib"):
        plot_spectra(tn.mpo(W, 2))
