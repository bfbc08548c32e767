"""Gradients through decompositions: exact values, finite differences, and what has none."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.testing import assert_close, assert_isometric, layouts, matrices

torch = pytest.importorskip("torch")

SITES = ((2, 2), (2, 2))
GRADIENT_OF_DETACHED = re.escape("element 0 of tensors does not require grad")


def leaf(values, dtype=torch.float64):
    return torch.as_tensor(np.asarray(values)).to(dtype).clone().requires_grad_()


def with_spectrum(values, shape, seed=0):
    """A matrix whose unfolding across the middle of two sites has the given values."""
    rows, cols = shape
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(rows[0] * cols[0],) * 2))[0]
    right = np.linalg.qr(rng.normal(size=(rows[1] * cols[1],) * 2))[0]
    n = len(values)
    folded = (left[:, :n] * np.asarray(values, float)) @ right[:n]
    return tn.matrix_layout(rows[0] * rows[1], cols[0] * cols[1], shape).unfold(
        folded.reshape(rows[0] * cols[0], rows[1] * cols[1])
    )


def quantity(m, probe):
    """A smooth function of the matrix alone, linear and quadratic parts."""
    matrix = m.to_matrix()
    return (matrix * probe).sum().real + (matrix * matrix.conj()).sum().real


def gradient(W, probe, **options):
    W = W.detach().clone().requires_grad_()
    quantity(tn.mpo(W, differentiable=True, **options), probe).backward()
    assert torch.isfinite(torch.view_as_real(W.grad) if W.is_complex() else W.grad).all()
    return W.grad


def slope(W, probe, direction, step=1e-5, **options):
    """A central difference of the decomposition without a graph."""
    with torch.no_grad():
        up = quantity(tn.mpo(W + step * direction, **options), probe)
        down = quantity(tn.mpo(W - step * direction, **options), probe)
    return float(up - down) / (2 * step)


def assert_slopes(W, seed=0, rel=2e-6, **options):
    rng = np.random.default_rng(seed)
    draw = lambda: torch.as_tensor(rng.normal(size=tuple(W.shape))).to(W.dtype)  # noqa: E731
    phase = lambda: draw() + (1j * draw() if W.is_complex() else 0)  # noqa: E731
    probe = phase()
    found = gradient(W, probe, **options)
    for _ in range(3):
        direction = phase()
        expected = slope(W, probe, direction, **options)
        got = float((found.conj() * direction).sum().real)
        scale = float(found.norm() * direction.norm())
        assert got == pytest.approx(expected, rel=rel, abs=rel * scale)


def test_t25_identity_at_its_full_bond():
    W = leaf(np.eye(4))
    (tn.mpo(W, SITES, differentiable=True).to_matrix() ** 2).sum().backward()
    assert torch.equal(W.grad, 2 * torch.eye(4, dtype=torch.float64))


def test_t25_rank_one_under_a_cut_through_zeros():
    W = leaf(np.diag([2.0, 0, 0, 0]))
    m = tn.mpo(W, SITES, max_bond=2, differentiable=True)
    (m.to_matrix() ** 2).sum().backward()
    assert torch.allclose(W.grad, torch.diag(torch.tensor([4.0, 0, 0, 0])).double(), atol=1e-14)


@pytest.mark.parametrize("bonds", ["full", [1], None])
def test_t25_zero_has_gradient_zero(bonds):
    W = leaf(np.zeros((4, 4)))
    (tn.mpo(W, SITES, bonds=bonds, differentiable=True).to_matrix() ** 2).sum().backward()
    assert torch.equal(W.grad, torch.zeros_like(W))


@pytest.mark.parametrize("kind", ["identity", "zero", "rank one", "orthogonal", "gaussian"])
@pytest.mark.parametrize("gauge", ["central", "identity"])
def test_exact_networks_follow_every_change(kind, gauge):
    rng = np.random.default_rng(0)
    W = {
        "identity": np.eye(12),
        "zero": np.zeros((12, 12)),
        "rank one": np.outer(rng.normal(size=12), rng.normal(size=12)),
        "orthogonal": np.linalg.qr(rng.normal(size=(12, 12)))[0],
        "gaussian": rng.normal(size=(12, 12)),
    }[kind]
    W, probe = leaf(W), torch.as_tensor(rng.normal(size=(12, 12)))
    m = tn.mpo(W, 3, gauge=gauge, differentiable=True)
    (found,) = torch.autograd.grad(quantity(m, probe), W, create_graph=True)
    assert torch.allclose(found, probe + 2 * W, atol=1e-12)
    (second,) = torch.autograd.grad((found * probe).sum(), W)  # linear: every derivative is right
    assert torch.allclose(second, 2 * probe, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((3, 2, 1, 0.5), 2),
        ((3, 3, 1, 1), 2),  # repeated on both sides of the cut
        ((2, 2, 2, 0), 3),
        ((2, 0, 0, 0), 1),
        ((5, 5, 5, 1), 3),
        ((4, 3, 0.05, 0.01), 3),
    ],
)
def test_cut_through_a_gap(values, kept):
    W = leaf(with_spectrum(values, SITES))
    assert_slopes(W, shape=SITES, bonds=[kept])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("rows", "cols", "shape", "limits"),
    [
        (12, 18, ((2, 3, 2), (3, 2, 3)), {"max_bond": 3}),
        (12, 18, ((2, 3, 2), (3, 2, 3)), {"bonds": [6, 2]}),
        (12, 18, ((2, 3, 2), (3, 2, 3)), {"rtol": 0.4}),
        (11, 17, tn.MatrixLayout((2, 3, 2), (3, 2, 3), 11, 17), {"max_bond": 4}),  # padded
        (16, 16, 4, {"max_bond": 3}),
        (12, 18, ((2, 3, 2), (3, 2, 3)), {"max_params": 70}),
        (16, 16, 4, {"bonds": "full", "max_bond": 5}),
        (2, 60, ((2, 1, 1), (1, 4, 15)), {"max_bond": 2}),
        (60, 2, ((30, 2), (1, 2)), {"max_bond": 1}),
        (30, 1, ((3, 2, 5), (1, 1, 1)), {"bonds": [1, 2]}),  # a tall unfolding after a cut
        (30, 1, ((3, 2, 5), (1, 1, 1)), {"bonds": [1, 1]}),
        (5, 7, 1, {}),
    ],
)
def test_random_matrices_against_differences(rows, cols, shape, limits, dtype):
    rng = np.random.default_rng(3)
    W = leaf(rng.normal(size=(rows, cols)) + 1j * rng.normal(size=(rows, cols)), torch.complex128)
    W = W if dtype.is_complex else leaf(W.detach().real)
    assert_slopes(W, shape=shape, **limits)


@given(st.data())
def test_exact_gradients_are_those_of_the_matrix(data):
    layout = data.draw(layouts(max_size=120))
    W = leaf(data.draw(matrices(layout, kinds=("identity", "low_rank", "zero", "repeated"))))
    probe = torch.as_tensor(np.random.default_rng(0).normal(size=layout.shape))
    found = gradient(W, probe, shape=layout)
    assert torch.allclose(found, probe + 2 * W, atol=1e-10)


@given(st.data())
def test_gradient_of_the_norm_is_twice_the_network(data):
    """For the best basis, the derivative of the squared norm is 2 M wherever there is one."""
    layout = data.draw(layouts(max_size=120))
    W = leaf(data.draw(matrices(layout, kinds=("gaussian", "decaying", "one_entry", "zero"))))
    m = tn.mpo(W, layout, max_bond=data.draw(st.integers(1, 4)), differentiable="subgradient")
    (m.to_matrix() ** 2).sum().backward()
    assert torch.isfinite(W.grad).all()
    if layout.n_sites == 2 and not layout.padded:
        assert_close(W.grad.numpy(), 2 * m.to_matrix().detach().numpy(), 1e-8)


@pytest.mark.parametrize(
    ("values", "kept", "text"),
    [
        ((3, 3, 1, 1), 1, "3 and 3. Keep 2 values there, or take differentiable='subgradient'."),
        ((3, 1, 1, 1), 2, "1 and 1. Keep 4 values there or 1, or take"),
        ((3e9, 1e9, 1e9, 0), 2, "1e+09 and 1e+09. Keep 3 values there or 1, or take"),
    ],
)
def test_a_cut_between_equal_values_has_no_derivative(values, kept, text):
    W = leaf(with_spectrum(values, SITES))
    expected = f"bond 1 must not be cut to {kept} between equal singular values, got {text}"
    with pytest.raises(tn.errors.DerivativeError, match=re.escape(expected)):
        tn.mpo(W, SITES, bonds=[kept], differentiable=True)


def test_the_subgradient_of_the_norm_at_a_tie_is_that_of_a_choice():
    W = leaf(np.eye(4).reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(4, 4))
    m = tn.mpo(W, SITES, bonds=[2], differentiable="subgradient")
    (m.to_matrix() ** 2).sum().backward()
    assert torch.allclose(W.grad, 2 * m.to_matrix().detach(), atol=1e-12)


def test_near_ties_are_told_by_the_element_type():
    W = with_spectrum((2, 1 + 1e-8, 1, 0.5), SITES)
    tn.mpo(leaf(W), SITES, bonds=[2], differentiable=True)
    with pytest.raises(tn.errors.DerivativeError, match="bond 1 must not be cut to 2"):
        tn.mpo(leaf(W, torch.float32), SITES, bonds=[2], differentiable=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_narrow_types_and_scales(dtype, scale):
    W = np.random.default_rng(0).normal(size=(12, 12)) * scale
    found, wide = leaf(W, dtype), leaf(W)
    for matrix in (found, wide):
        m = tn.mpo(matrix, 3, max_bond=4, differentiable=True)
        assert m.dtype == matrix.dtype
        m.to_matrix().abs().sum().backward()
    rough = {torch.float16: 0.1, torch.bfloat16: 0.3}.get(dtype, 1e-4)
    got = found.grad.real if dtype.is_complex else found.grad
    assert (got.double() - wide.grad).norm() < rough * wide.grad.norm()


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_far_scales(scale):
    W = leaf(np.random.default_rng(0).normal(size=(8, 8)) * scale)
    tn.mpo(W, 3, max_bond=3, differentiable=True).to_matrix().sum().backward()
    near = leaf(W.detach() / scale)
    tn.mpo(near, 3, max_bond=3, differentiable=True).to_matrix().sum().backward()
    assert torch.allclose(W.grad, near.grad, rtol=1e-9)


def test_values_are_those_of_the_plain_decomposition():
    W = leaf(np.random.default_rng(0).normal(size=(24, 36)))
    for limits in ({}, {"max_bond": 7}, {"rtol": 0.3}):
        plain, m = tn.mpo(W, 4, **limits), tn.mpo(W, 4, differentiable=True, **limits)
        assert m.bond_dims == plain.bond_dims
        assert torch.allclose(m.to_matrix(), plain.to_matrix(), atol=1e-12)
        assert m.center is None
        assert m.certificate is None
        assert plain.certificate is not None


def test_the_gauge_is_the_one_promised_where_nothing_requires_a_gradient():
    W = torch.as_tensor(np.random.default_rng(0).normal(size=(24, 36))).to(torch.complex128)
    m = tn.mpo(W, 4, max_bond=7, differentiable=True)
    assert m.certificate.relative_error == tn.mpo(W, 4, max_bond=7).certificate.relative_error
    for k, core in enumerate(m.cores):
        if k != m.center:
            assert_isometric(core, "left" if k < m.center else "right")


def test_noncontiguous_and_part_of_a_larger_graph():
    base = leaf(np.random.default_rng(0).normal(size=(9, 16)))
    W = (2 * base).T[::2, :8]
    tn.mpo(W, ((2, 4), (4, 2)), max_bond=3, differentiable=True).to_matrix().sum().backward()
    assert base.grad is not None
    assert torch.count_nonzero(base.grad[8:]) == 0


def test_tensor_trains():
    T = leaf(np.random.default_rng(0).normal(size=(3, 4, 5)))
    t = tn.tt(T, differentiable=True)
    (t.to_tensor() ** 3).sum().backward()
    assert torch.allclose(T.grad, 3 * T.detach() ** 2, atol=1e-12)
    assert tn.tt(T, max_bond=2, differentiable=True).to_tensor().requires_grad


def test_second_derivatives_through_a_cut_are_refused():
    W = leaf(np.random.default_rng(0).normal(size=(8, 8)))
    m = tn.mpo(W, 2, max_bond=3, differentiable=True)
    (found,) = torch.autograd.grad((m.to_matrix() ** 2).sum(), W, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        found.sum().backward()


def test_without_the_flag_the_result_is_detached():
    W = leaf(np.eye(4))
    m = tn.mpo(W, SITES)
    assert not any(core.requires_grad for core in m.cores)
    with pytest.raises(RuntimeError, match=GRADIENT_OF_DETACHED):
        m.to_matrix().sum().backward()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"gauge": "symmetric"},
            tn.errors.OptionError,
            "gauge must be 'central' or 'identity' with differentiable, got 'symmetric'.",
        ),
        (
            {"differentiable": "yes"},
            tn.errors.OptionError,
            "differentiable must be False, True or 'subgradient', got 'yes'.",
        ),
        (
            {"differentiable": 1},
            tn.errors.OptionError,
            "differentiable must be False, True or 'subgradient', got 1.",
        ),
        (
            {"gauge": "identity", "max_bond": 1},
            tn.errors.OptionError,
            "gauge must not be 'identity' with limits",
        ),
    ],
)
def test_refusals(options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        tn.mpo(leaf(np.eye(4)), SITES, **{"differentiable": True, **options})


def test_numpy_has_no_gradients():
    text = "W with differentiable=True must be a torch tensor, got an array of numpy. Convert it"
    with pytest.raises(tn.errors.ArrayTypeError, match=re.escape(text)):
        tn.mpo(np.eye(4), SITES, differentiable=True)
    with pytest.raises(tn.errors.ArrayTypeError, match=re.escape(text)):
        tn.tt(np.eye(4), differentiable=True)


def test_entries_beyond_the_range_of_the_type_are_refused():
    W = leaf(np.full((4, 4), 6e4), torch.float16)
    with pytest.raises((tn.errors.NonFiniteError, tn.errors.ToleranceError), match="core"):
        tn.mpo(W, SITES, max_bond=1, differentiable=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("limits", [{}, {"max_bond": 4}, {"rtol": 0.3}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_on_the_device_equal_those_on_the_host(limits, dtype):
    W = torch.as_tensor(np.random.default_rng(0).normal(size=(24, 36))).to(dtype)
    probe = torch.as_tensor(np.random.default_rng(1).normal(size=(24, 36))).to(dtype)
    there = gradient(W.cuda(), probe.cuda(), shape=4, **limits)
    assert there.is_cuda
    assert torch.allclose(there.cpu(), gradient(W, probe, shape=4, **limits), atol=1e-9)
