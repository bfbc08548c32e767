"""Products in float16 on scaled operands: how much they err, and that nothing overflows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpobert_plugin.halves import LONGEST_SUM, half_of, times, wide_product
from mpobert_plugin.joining import Joining, fits_half
from mpobert_plugin.reconstruct import joining_of, rebuild, recipe
from mpobert_plugin.spec import BankSpec

SPECS = {
    "five sites": BankSpec(
        "q", 96, 64, (2, 4, 3, 2, 2), (2, 2, 4, 2, 2), (1, 4, 16, 8, 4, 1), (0,) * 3, (0, 1, 2)
    ),
    "two groups": BankSpec("q", 24, 24, (4, 3, 2), (2, 3, 4), (1, 8, 8, 1), (0, 0, 1), (0, 1, 2)),
    "right first": BankSpec("q", 64, 6, (32, 2), (3, 2), (1, 4, 1), (0, 0), (0, 1)),
    "adapters": BankSpec(
        "q", 24, 23, (4, 3, 2), (2, 3, 4), (1, 8, 8, 1), (0, 0), (0, 1), None, 2, 4.0
    ),
    "one site": BankSpec("q", 8, 8, (8,), (8,), (1, 1), (0, 1), (0, 0)),
}


def tensors_of(spec, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in spec.tensor_shapes().items():
        found[name] = torch.randn(shape, generator=generator)
    found["central"] *= scale
    for name in found:
        if name == "auxiliary_0":
            found[name] /= scale
    return found


def relative(a, b):
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


def results(spec, tensors, kind, half, loss_scale=1.0, recompute=True):
    own = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    made = rebuild(spec, recipe(spec), own, kind, recompute=recompute, half=half)
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(w.shape, generator=generator) * loss_scale for w in made]
    torch.autograd.backward(made, [g.to(kind) for g in gradients])
    return made, {name: tensor.grad / loss_scale for name, tensor in own.items()}


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_matrices_and_gradients_are_close_to_the_exact_ones(name, kind, recompute):
    spec = SPECS[name]
    tensors = tensors_of(spec)
    exact, gradients = results(spec, tensors, torch.float32, half=False)
    found, others = results(spec, tensors, kind, half=True, recompute=recompute)
    # Four operands are rounded to 11 bits beside the matrix itself, which may have 8.
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == kind
        assert relative(a, b) < 1.1 * relative(b.to(kind), b) + 5e-4
    for key, gradient in gradients.items():
        assert others[key].dtype == torch.float32
        assert relative(others[key], gradient) < (3e-3 if kind == torch.float16 else 6e-3), key


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4, 1e9])
def test_an_uneven_gauge_neither_overflows_nor_vanishes(scale):
    spec = SPECS["five sites"]
    exact, gradients = results(spec, tensors_of(spec, scale), torch.float32, half=False)
    found, others = results(spec, tensors_of(spec, scale), torch.float16, half=True)
    assert relative(found[0], exact[0]) < 8e-4
    for key, gradient in gradients.items():
        assert relative(others[key], gradient) < 3e-3, key


@pytest.mark.parametrize("loss_scale", [1e-3, 1.0, 1e4])
def test_gradients_of_any_size(loss_scale):
    spec = SPECS["two groups"]
    _, gradients = results(spec, tensors_of(spec), torch.float32, half=False)
    _, others = results(spec, tensors_of(spec), torch.float16, half=True, loss_scale=loss_scale)
    for key, gradient in gradients.items():
        assert relative(others[key], gradient) < 3e-3, key


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_stays_so(bad):
    spec = SPECS["five sites"]
    own = {name: tensor.requires_grad_() for name, tensor in tensors_of(spec).items()}
    made = rebuild(spec, recipe(spec), own, torch.float16, recompute=True, half=True)
    gradients = [torch.zeros_like(matrix) for matrix in made]
    gradients[1][3, 4] = bad
    torch.autograd.backward(made, gradients)
    for name, tensor in own.items():
        assert not torch.isfinite(tensor.grad).all(), name


def test_the_largest_operands_do_not_overflow():
    spec = BankSpec("q", 64, 64, (4, 4, 4), (4, 4, 4), (1, 16, 16, 1), (0, 0), (0, 1))
    ones = {name: torch.full(shape, 3.0) for name, shape in spec.tensor_shapes().items()}
    found = rebuild(spec, recipe(spec), ones, torch.bfloat16, half=True)
    assert torch.equal(found[0].float(), torch.full((64, 64), 27.0 * 256))


def test_too_long_sums_are_left_to_float32():
    spec = SPECS["five sites"]
    how = joining_of(spec, recipe(spec), torch.float16, half=True)
    assert how.half
    assert fits_half(how, (LONGEST_SUM, 1))
    assert not fits_half(how, (LONGEST_SUM + 1, 1))
    assert not fits_half(replace(how, row_dims=(90, 1, 1), col_dims=(90, 1, 1)), (1, 1))
    long = BankSpec("q", 9000, 9000, (9000, 1), (1, 9000), (1, 9000, 1), (0,), (0,))
    assert not joining_of(long, recipe(long), torch.float16, half=True).half
    assert not joining_of(spec, recipe(spec), torch.float32, half=True).half


@given(st.floats(1e-12, 1e12), st.integers(1, 5000))
def test_scaled_entries_are_small_and_exact(largest, divisor):
    tensor = torch.tensor([largest, -largest / 2, 0.0])
    half, scale = half_of(tensor, divisor)
    assert half.abs().max() <= 2 / divisor * 1.001
    assert float(torch.log2(scale)) == round(float(torch.log2(scale)))
    torch.testing.assert_close(half.float() * scale, tensor, rtol=1e-3, atol=0)


def test_zeros_stay_zeros():
    half, scale = half_of(torch.zeros(3))
    assert not half.any()
    assert torch.isfinite(scale).all()


def test_helpers_with_a_graph_give_the_same_values():
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    factor = torch.tensor([0.25])
    assert torch.equal(times(x.mT, factor, torch.float16), (x.mT * 0.25).half())
    with torch.no_grad():
        made = times(x.mT, factor, torch.float16)
    assert made.is_contiguous()
    assert torch.equal(made, (x.mT * 0.25).half())
    assert wide_product(x.half(), x.half().mT).dtype == torch.float32
    assert Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float16).outer == (1, 1)


def test_a_kernel_that_cannot_run_is_told_and_left(caplog, monkeypatch):
    from mpobert_plugin import kernels

    def broken(_name):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernels, "import_module", broken)
    kernels._tried.cache_clear()
    assert kernels._tried("unfold_kernel", torch.device("cpu"), torch.float16) is None
    assert "torch's operations are used: Failed to find C compiler" in caplog.text
    kernels._tried.cache_clear()
