"""Spectra shared among layouts: equal to those of each layout by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensornet import eigen
from tensornet.backend import backend_of
from tensornet.fronts import front_of
from tensornet.layout import MatrixLayout, matrix_layout
from tensornet.linalg import low_rank_root
from tensornet.shapes import layouts_of
from tensornet.unfoldings import Unfoldings, sides_of, work

RNG = np.random.default_rng(0)
W = RNG.standard_normal((24, 40))


def libraries(a):
    return [a, pytest.importorskip("torch").from_numpy(a.copy())]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("share", [1e-3, 1e-10, 1e-14])
def test_every_layout_has_the_spectra_of_its_unfoldings(dtype, share):
    data = (W + 1j * RNG.standard_normal(W.shape) if dtype == "complex128" else W).astype(dtype)
    layouts = layouts_of(24, 40, (2, 3, 4))
    for given in libraries(data):
        shared = Unfoldings(given, backend_of(given), share)
        shared.prepare(layouts)
        for layout in layouts:
            front = shared.front(layout)
            tensor = layout.fold(data)
            for k, tail in enumerate(front.tails, start=1):
                flat = tensor.reshape(math.prod(layout.site_dims[:k]), -1)
                s = np.linalg.svd(flat, compute_uv=False).astype(float)
                expected = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0) / np.sum(s**2)
                assert tail == pytest.approx(expected, abs=1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_steep_spectra_are_right_far_below_the_noise_of_squares(dtype):
    i, j = np.arange(240.0), np.arange(240.0)
    data = (1 / (1 + i[:, None] + j)).astype(dtype)
    data = data * np.exp(1j * (i[:, None] - j)) if dtype == "complex128" else data
    shared = Unfoldings(data, backend_of(data), 1e-24)
    for dims in ((15, 16), (60, 4), (6, 4, 10)):
        layout = MatrixLayout(dims, dims[::-1])
        tensor = layout.fold(data)
        for k, tail in enumerate(shared.front(layout, 1e-24).tails, start=1):
            flat = tensor.reshape(math.prod(layout.site_dims[:k]), -1)
            s = np.linalg.svd(flat, compute_uv=False)
            expected = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0) / np.sum(s**2)
            assert np.sqrt(tail) == pytest.approx(np.sqrt(expected), rel=1e-3, abs=1e-13)
    narrow = [root for side, root in shared._roots.items() if root.shape[1] < side.size]
    assert narrow


def test_a_root_of_few_columns_misses_nothing():
    flat = np.diag([1.0] + [1e-4] * 99)
    few = np.diag([1.0, 1e-3] + [1e-16] * 98)
    for a, columns in ((flat, 100), (few, 19)):
        root = low_rank_root(a, 2)
        assert root.shape == (100, columns)
        assert np.abs(root @ root.T - a @ a.T).max() < 1e-15


def test_a_side_is_a_partial_trace_of_a_larger_one():
    inner = sides_of(MatrixLayout((2, 3, 4), (5, 4, 2)))
    assert [side.left for side in inner] == [True, False]
    assert not inner[0].holds(inner[1])
    large = sides_of(MatrixLayout((4, 6), (5, 8)))[0]
    assert large.holds(inner[0])
    assert work(inner[0], W.size, [large]) < work(inner[0], W.size, [])


def test_padded_zero_and_single_site_layouts():
    padded = matrix_layout(23, 40, 3)
    assert padded.padded
    odd = W[:23]
    own = front_of(odd, padded, backend_of(odd))
    found = Unfoldings(odd, backend_of(odd)).front(padded)
    for one, two in zip(own.tails, found.tails, strict=True):
        assert one == pytest.approx(two, abs=1e-14)
    zero = Unfoldings(np.zeros((4, 6)), backend_of(W)).front(MatrixLayout((2, 2), (3, 2)))
    assert zero.norm == 0.0
    assert not zero.tails[0].any()
    assert Unfoldings(W, backend_of(W)).front(MatrixLayout((24,), (40,))).tails == ()


def test_where_no_eigensolver_converges_an_svd_does(monkeypatch):
    monkeypatch.setattr(eigen, "eigenvalues", lambda *_: None)
    layout = MatrixLayout((4, 6), (5, 8))
    tail = Unfoldings(W, backend_of(W)).front(layout).tails[0]
    own = front_of(W, layout, backend_of(W)).tails[0]
    assert tail == pytest.approx(own, abs=1e-12)
