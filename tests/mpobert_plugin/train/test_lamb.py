"""Lamb: the paper's numbers, a reference in float64, and slices as tensors of their own."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.trust import trust_ratio

CASE = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}


def parameter(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def steps(weight, gradients, **options):
    optimizer = Lamb([weight], **{**CASE, **options})
    seen = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=weight.dtype)
        optimizer.step()
        seen.append(weight.tolist())
    return seen


@pytest.mark.parametrize(
    ("start", "options", "expected"),
    [
        ([3.0, 4.0], {}, [(2.9634237, 4.03409068), (2.91473404, 4.04570506)]),
        (
            [3.0, 4.0],
            {"bias_correction": False},
            [(2.9642576, 4.03496399), (2.91601583, 4.04836204)],
        ),
        ([30.0, 40.0], {}, [(29.54602026, 40.20952898)]),
        ([30.0, 40.0], {"max_trust": 10.0}, [(29.870001, 40.0599995)]),
        ([0.0, 0.0], {}, [(-0.0099999, 0.00999995)]),
    ],
)
def test_m28_known_numbers(start, options, expected):
    found = steps(parameter(start), [(0.1, -0.2), (0.3, 0.1)][: len(expected)], **options)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=2e-7)


def test_m28_nothing_moves_without_gradient_and_decay():
    weight = parameter([3.0, 4.0])
    assert steps(weight, [(0.0, 0.0)], weight_decay=0.0) == [[3.0, 4.0]]
    still = parameter([1.0])
    Lamb([still], lr=0.1).step()
    assert still.tolist() == [1.0]


def reference(weight, gradients, lr, betas, eps, weight_decay):
    """LAMB by the book, for one matrix."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for number, gradient in enumerate(gradients, start=1):
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        direction = (mean / (1 - betas[0] ** number)) / (
            (square / (1 - betas[1] ** number)).sqrt() + eps
        ) + weight_decay * weight
        weight = weight - lr * weight.norm() / direction.norm() * direction
    return weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_stacked_tensor_steps_as_a_tensor_for_each_layer(dtype):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    scales = torch.tensor([1e-3, 1.0, 50.0], dtype=torch.float64).view(3, 1, 1, 1, 1)
    start = scales * draw(3, 2, 3, 4, 5)
    gradients = [draw(3, 2, 3, 4, 5) * scales.flip(0) for _ in range(4)]
    stacked = start.to(dtype, copy=True).requires_grad_()
    optimizer = Lamb([{"params": [stacked], "stacked": True}], **CASE)
    apart = [piece.to(dtype, copy=True).requires_grad_() for piece in start]
    other = Lamb(apart, **CASE)
    for gradient in gradients:
        stacked.grad = gradient.to(dtype)
        optimizer.step()
        for piece, part in zip(apart, gradient, strict=True):
            piece.grad = part.to(dtype)
        other.step()
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for layer in range(3):
        torch.testing.assert_close(stacked[layer], apart[layer], rtol=tolerance / 10, atol=0)
        expected = reference(start[layer], [g[layer] for g in gradients], **CASE)
        torch.testing.assert_close(stacked[layer].double(), expected, rtol=tolerance, atol=1e-9)
    # One quotient for the whole stack is something else.
    whole = start.clone().requires_grad_()
    plain = Lamb([whole], **CASE)
    whole.grad = gradients[0]
    plain.step()
    first = reference(start[0], gradients[:1], **CASE)
    assert not torch.allclose(whole[0], first, rtol=1e-3)


def test_slices_without_norm_or_direction_have_quotient_one():
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]])
    direction = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    assert trust_ratio(weight, direction, stacked=True).tolist() == [[2.5], [1.0], [1.0]]
    assert trust_ratio(weight, direction, stacked=True, most=2.0).tolist() == [[2.0], [1.0], [1.0]]
    assert trust_ratio(weight[0], direction[0], stacked=False).item() == 2.5
    line = trust_ratio(torch.tensor([-2.0, 0.0]), torch.tensor([1.0, 1.0]), stacked=True)
    assert line.tolist() == [2.0, 1.0]


def test_groups_of_biases_step_as_adam():
    weight, twin = parameter([1.0, -2.0, 3.0]), parameter([1.0, -2.0, 3.0])
    optimizer = Lamb([{"params": [weight], "adapt": False}], lr=0.1, eps=1e-8)
    adam = torch.optim.Adam([twin], lr=0.1, eps=1e-8)
    for value in (0.5, -0.25, 2.0):
        weight.grad = twin.grad = torch.tensor([value, 1.0, -value], dtype=torch.float64)
        optimizer.step()
        adam.step()
    torch.testing.assert_close(weight, twin, rtol=1e-12, atol=0)


def test_state_is_saved_and_restored_bit_for_bit():
    weight = parameter([3.0, 4.0])
    optimizer = Lamb([weight], **CASE)
    weight.grad = torch.tensor([0.1, -0.2], dtype=torch.float64)
    optimizer.step()
    twin = weight.detach().clone().requires_grad_()
    other = Lamb([twin], lr=1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    weight.grad = twin.grad = torch.tensor([0.3, 0.1], dtype=torch.float64)
    optimizer.step()
    other.step()
    assert torch.equal(weight, twin)


def test_a_rate_may_be_a_tensor_and_closures_are_called():
    weight, twin = parameter([3.0, 4.0]), parameter([3.0, 4.0])
    for one, lr in ((weight, 0.01), (twin, torch.tensor(0.01, dtype=torch.float64))):
        one.grad = torch.tensor([0.1, -0.2], dtype=torch.float64)
        assert Lamb([one], **{**CASE, "lr": lr}).step(lambda: 7.0) == 7.0
    torch.testing.assert_close(weight, twin, rtol=1e-15, atol=0)


def test_mixed_element_types_in_one_group():
    tensors = [parameter([1.0, 2.0], kind) for kind in (torch.float32, torch.float64)]
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    Lamb(tensors, lr=0.1).step()
    torch.testing.assert_close(tensors[0].double(), tensors[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"betas": (0.9, 1.0)}, "betas must be two numbers from 0 to below 1, got (0.9, 1.0)"),
        ({"betas": (0.9,)}, "betas must be two numbers from 0 to below 1, got (0.9,)"),
        ({"betas": 0.9}, "betas must be two numbers from 0 to below 1, got 0.9"),
        ({"lr": -1.0}, "lr must be a number >= 0, got -1.0"),
        ({"lr": math.nan}, "lr must be a number >= 0, got nan"),
        ({"eps": -1e-6}, "eps must be a number >= 0, got -1e-06"),
        ({"weight_decay": "0.1"}, "weight_decay must be a number >= 0, got '0.1'"),
        ({"max_trust": 0}, "max_trust must be a number above 0, got 0"),
    ],
)
def test_m28_impossible_options(options, text):
    with pytest.raises(ConfigError) as caught:
        Lamb([parameter([1.0])], **options)
    assert text in str(caught.value)
    with pytest.raises(ConfigError):
        Lamb([{"params": [parameter([1.0])], **options}])


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="Lamb needs dense gradients"):
        Lamb(table.parameters()).step()


def test_timms_lamb_gives_the_same_steps_for_each_layer():
    theirs = pytest.importorskip("timm.optim.lamb", reason="timm is not installed").Lamb
    torch.manual_seed(0)
    start = torch.randn(4, 6, 5) * torch.tensor([1e-2, 1.0, 3.0, 0.0]).view(4, 1, 1)
    bias = torch.randn(5)
    stacked, flat = start.clone().requires_grad_(), bias.clone().requires_grad_()
    apart = [piece.clone().requires_grad_() for piece in start]
    twin = bias.clone().requires_grad_()
    options = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-6}
    ours = Lamb(
        [
            {"params": [stacked], "stacked": True, "weight_decay": 0.01},
            {"params": [flat], "adapt": False},
        ],
        **options,
    )
    # It leaves the quotient at 1 where nothing decays.
    groups = [{"params": apart}, {"params": [twin], "weight_decay": 0.0}]
    timm = theirs(groups, weight_decay=0.01, max_grad_norm=None, **options)
    for _ in range(5):
        stacked.grad, flat.grad = torch.randn_like(stacked), torch.randn_like(flat)
        for piece, grad in zip(apart, stacked.grad, strict=True):
            piece.grad = grad.clone()
        twin.grad = flat.grad.clone()
        ours.step()
        timm.step()
    for layer, piece in enumerate(apart):
        error = (stacked[layer] - piece).norm() / piece.norm()
        assert error < 1e-6
    assert (flat - twin).norm() / twin.norm() < 1e-6
