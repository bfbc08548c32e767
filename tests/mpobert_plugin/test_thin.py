"""Products of thin matrices: the gradient is that of any product, whatever is summed in pieces."""

from __future__ import annotations

import pytest
import torch

from mpobert_plugin import thin
from mpobert_plugin.thin import ThinProduct, thin_product

SHAPES = [(2, 3, 8), (8, 3, 2), (8, 2, 8), (12, 5, 12), (7, 3, 2), (2, 3, 10), (1, 1, 1)]


@pytest.fixture
def short(monkeypatch):
    """Let sums of eight numbers be long, and pieces have four."""
    monkeypatch.setattr(thin, "_LONG", 8)
    monkeypatch.setattr(thin, "_PIECE", 4)
    monkeypatch.setattr(thin, "_THIN", 5)


def factors(shape, device="cpu", dtype=torch.float64):
    m, k, n = shape
    draw = torch.Generator().manual_seed(0)
    made = (torch.randn(3, *sizes, generator=draw) for sizes in ((m, k), (k, n)))
    return [x.to(device, dtype).requires_grad_() for x in made]


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_a_product(shape, short):
    assert torch.autograd.gradcheck(ThinProduct.apply, factors(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_gradients_too(shape, short):
    assert torch.autograd.gradgradcheck(ThinProduct.apply, factors(shape))


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_factor_gets_no_gradient(frozen, short):
    own = factors((8, 3, 2))
    own[frozen].requires_grad_(False)
    ThinProduct.apply(*own).sum().backward()
    assert own[frozen].grad is None
    assert own[1 - frozen].grad is not None


def test_transposed_factors_are_taken(short):
    a, b = (x.detach().mT.contiguous().mT.requires_grad_() for x in factors((8, 3, 8)))
    assert torch.autograd.gradcheck(ThinProduct.apply, (a, b))


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 8, 0, 3), (2, 0, 3, 8), (2, 8, 3, 0)])
def test_empty_factors_have_empty_gradients(shape, short):
    stack, m, k, n = shape
    own = [torch.ones(stack, m, k).requires_grad_(), torch.ones(stack, k, n).requires_grad_()]
    ThinProduct.apply(*own).sum().backward()
    for x in own:
        assert x.grad.shape == x.shape


def test_a_backward_under_autocast_is_that_without(short):
    own, again = factors((8, 3, 2), dtype=torch.float32), factors((8, 3, 2), dtype=torch.float32)
    ThinProduct.apply(*own).sum().backward()
    out = ThinProduct.apply(*again).sum()
    with torch.autocast("cpu", torch.bfloat16):
        out.backward()
    for x, y in zip(own, again, strict=True):
        assert torch.equal(x.grad, y.grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(16, 16, 4096), (4096, 16, 16), (16, 16, 100)])
def test_on_a_gpu_long_sums_are_near_those_in_float64(shape):
    own, exact = factors(shape, "cuda", torch.float32), factors(shape)
    thin_product(*own).square().sum().backward()
    (exact[0] @ exact[1]).square().sum().backward()
    for found, right in zip(own, exact, strict=True):
        assert torch.allclose(found.grad.cpu().double(), right.grad, rtol=1e-4, atol=1e-2)
