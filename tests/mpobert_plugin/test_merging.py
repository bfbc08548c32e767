"""Neighbours of a chain as one: a sum over their bond, by torch's operations or by kernels."""

from __future__ import annotations

import pytest
import torch

from mpobert_plugin.merging import Merge, Merging, _plain_gradients, merged_left, merged_right

SIZES = [
    ((4, 4), 16, (4, 4, 32)),
    ((2, 3), 5, (3, 2, 7)),
    ((1, 1), 1, (1, 1, 1)),
    ((5, 4), 20, (9, 2, 11)),
    ((8, 8), 64, (2, 4, 40)),
    ((9, 8), 3, (2, 2, 2)),
]


def neighbours(size, left, device="cpu", dtype=torch.float64):
    (x, y), k, (a, b, c) = size
    shapes = ((3, x, y, k), (3, k, a, b, c)) if left else ((3, k, x, y), (3, a, b, c, k))
    make = torch.Generator().manual_seed(0)
    drawn = (torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes)
    return [each.to(device, dtype).requires_grad_() for each in drawn]


def expected(chain, core, left):
    if left:
        made = torch.einsum("sxyk,skabc->sxaybc", chain, core)
        return made.flatten(1, 2).flatten(2, 3)
    return torch.einsum("sabck,skxy->sabxcy", core, chain).flatten(2, 3).flatten(3, 4)


def merged(chain, core, left):
    return merged_left(chain, core) if left else merged_right(core, chain)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_merged_neighbours_are_their_sum_over_the_bond(size, left):
    chain, core = neighbours(size, left)
    found, wanted = merged(chain, core, left), expected(chain, core, left)
    assert found.shape == Merging(left, 3, *size).shape
    torch.testing.assert_close(found, wanted)
    grad = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(one, (chain, core), grad) for one in (found, wanted))
    torch.testing.assert_close(ours, theirs)
    # What the kernels' function falls back on.
    plain = _plain_gradients(grad, chain.detach(), core.detach(), Merging(left, 3, *size))
    torch.testing.assert_close(plain, theirs)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_agree_with_double_precision(size, left, recorded, turned):
    wide = neighbours(size, left, "cuda")
    narrow = neighbours(size, left, "cuda", torch.float32)
    if turned:  # other strides
        narrow = [each.detach().mT.contiguous().mT.requires_grad_() for each in narrow]
    with torch.set_grad_enabled(recorded):
        found = merged(*narrow, left)
    torch.testing.assert_close(found, expected(*wide, left).float(), rtol=1e-5, atol=1e-5)
    if not recorded:
        return
    by_kernel = max(size[0][0] * size[0][1], size[1]) <= 64
    assert (type(found.grad_fn).__name__ == "MergeBackward") == by_kernel
    grad = torch.randn_like(found)
    grad = grad.mT.contiguous().mT if turned else grad
    ours = torch.autograd.grad(found, narrow, grad)
    theirs = torch.autograd.grad(expected(*wide, left), wide, grad.double())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("left", [True, False])
def test_gradients_of_gradients_follow_the_operations(left):
    found = []
    for kind in (torch.float32, torch.float64):
        tensors = neighbours(SIZES[0], left, "cuda", kind)
        made = merged(*tensors, left)
        first = torch.autograd.grad(made.pow(2).sum(), tensors, create_graph=True)
        second = torch.autograd.grad(sum(one.pow(2).sum() for one in first), tensors)
        found.append([each.double() for each in second])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3 * float(other.abs().max()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("left", [True, False])
def test_the_same_bits_every_time_and_none_in_a_transformation(left):
    chain, core = neighbours(SIZES[0], left, "cuda", torch.float32)
    grad = torch.randn_like(merged(chain, core, left))

    def gradients():
        return torch.autograd.grad(merged(chain, core, left), (chain, core), grad)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, gradients(), strict=True))
    mapped = torch.func.vmap(lambda one: merged(one, core.detach(), left))(chain.detach()[None])
    torch.testing.assert_close(mapped[0], merged(chain, core, left).detach())
    assert Merge.apply(chain.detach(), core.detach(), Merging(left, 3, *SIZES[0])).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("size", [2.0**-110, 1e-20, 1e18])
def test_kernels_keep_the_digits_of_float32_at_every_size(left, size):
    wide = neighbours(SIZES[0], left, "cuda")
    narrow = [each.detach().float().requires_grad_() for each in (wide[0], wide[1] * size)]
    wide = [each.detach().double().requires_grad_() for each in narrow]
    found, wanted = merged(*narrow, left), expected(*wide, left)
    grad = torch.randn_like(found)
    ours = (found, *torch.autograd.grad(found, narrow, grad))
    theirs = (wanted, *torch.autograd.grad(wanted, wide, grad.double()))
    for one, other in zip(ours, theirs, strict=True):
        error = (one.detach().double() - other.detach()).abs().max() / other.detach().abs().max()
        assert float(error) < 2e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so_in_values_and_gradients(left, value):
    chain, core = neighbours(SIZES[0], left, "cuda", torch.float32)
    with torch.no_grad():
        core.view(-1)[7] = value
    found, wanted = merged(chain, core, left), expected(chain, core, left)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    grad = torch.zeros_like(found)
    grad.view(-1)[5] = value
    ours = torch.autograd.grad(found, (chain, core), grad)
    theirs = torch.autograd.grad(wanted, (chain, core), grad)
    for one, other in zip(ours, theirs, strict=True):
        assert bool(other.isfinite().all()) == bool(one.isfinite().all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_neighbour_gets_no_gradient(frozen):
    both = neighbours(SIZES[1], True, "cuda", torch.float32)
    both[frozen].requires_grad_(False)
    merged(*both, True).sum().backward()
    assert both[frozen].grad is None
    assert both[1 - frozen].grad is not None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_empty_stacks_stay_empty(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    chain, core = neighbours(SIZES[0], True, device, torch.float32)
    assert merged_left(chain[:0], core[:0]).shape == (0, 16, 16, 32)
