"""A network that keeps its matrix: transposes, complex numbers, and gradients asked for later."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

import tensornet as tn

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 6)) + 1j * RNG.normal(size=(4, 6))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_products_from_both_sides_and_with_the_transpose(library):
    make = np.asarray if library == "numpy" else torch.as_tensor
    fast = tn.mpo(make(W), 2).cached()
    x, y = RNG.normal(size=(6, 3)) + 0j, RNG.normal(size=(3, 4)) + 0j
    assert np.allclose(fast @ make(x), W @ x)
    assert np.allclose(make(y) @ fast, y @ W)
    assert np.allclose(fast.T @ make(y[0]), W.T @ y[0])
    assert np.allclose(make(x[:, 0]) @ fast.T, x[:, 0] @ W.T)
    assert fast.T.to_matrix() is not fast.to_matrix()
    assert tuple(fast.T.to_matrix().shape) == (6, 4)
    assert np.allclose(fast.mpo.to_matrix(), W)


def test_gradients_asked_for_after_the_matrix_was_kept():
    core = torch.ones(1, 2, 2, 1)
    fast = tn.MPO([core]).cached()
    kept = fast.to_matrix()
    assert not kept.requires_grad
    core.requires_grad_()
    (fast @ torch.ones(2)).sum().backward()
    assert core.grad.tolist() == torch.ones(1, 2, 2, 1).tolist()
    core.requires_grad_(False)
    assert not fast.to_matrix().requires_grad
    assert fast.to_matrix() is fast.to_matrix()


def test_a_matrix_that_is_no_longer_kept_takes_no_memory():
    core = torch.ones(1, 2, 2, 1)
    fast = tn.MPO([core]).cached()
    before = weakref.ref(fast.to_matrix())
    assert before() is not None
    core.requires_grad_()
    fast.to_matrix()
    assert before() is None


def test_a_kept_matrix_that_wants_gradients_itself_is_dropped():
    fast = tn.MPO([torch.ones(1, 2, 2, 1)]).cached()
    kept = fast.to_matrix()
    kept.requires_grad_()
    with torch.no_grad():
        kept.add_(1.0)
    assert (fast @ torch.ones(2)).tolist() == [2.0, 2.0]


def test_operands_that_do_not_fit_are_told_from_which_side():
    fast = tn.mpo(W, 2).cached()
    with pytest.raises(tn.errors.ShapeError, match=r"x @ m must have .* dimension is 4"):
        np.ones((4, 3), dtype=complex) @ fast
    with pytest.raises(tn.errors.ShapeError, match=r"m @ x must have .* dimension is 6"):
        fast @ np.ones((3, 6), dtype=complex)
    with pytest.raises(TypeError):
        np.ones((4, 4)) + fast
