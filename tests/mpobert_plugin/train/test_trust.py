"""Lamb on many tensors: the same steps as on each alone, with few calls of the device."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.trust import trust_ratio, trust_ratios


class Calls(TorchDispatchMode):
    """Counts what is given to the device, but for views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        host = ("promote_types", "_record_function")
        if not func.is_view and not func.__name__.startswith(host):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def parameters(count, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(3, 4, k % 5 + 1, generator=generator).to(dtype) for k in range(count)]
    for tensor in made:
        tensor.requires_grad_().grad = torch.randn(tensor.shape, generator=generator).to(dtype)
    return made


@pytest.mark.parametrize("found", [None, 0.0, 1.0])
@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
@pytest.mark.parametrize("options", [{"stacked": True}, {"stacked": False}, {"adapt": False}])
def test_together_as_apart(options, rate, found):
    together, apart = parameters(6), parameters(6)
    one = Lamb([{"params": together, **options}], lr=rate, weight_decay=0.01)
    many = [Lamb([{"params": [t], **options}], lr=rate, weight_decay=0.01) for t in apart]
    for optimizer in (one, *many):
        optimizer.found_inf = None if found is None else torch.tensor(found)
        for _ in range(3):
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    moved = [not torch.equal(a, b) for a, b in zip(together, parameters(6), strict=True)]
    assert moved == [found != 1.0] * 6


@pytest.mark.parametrize(
    ("options", "each"), [({"stacked": True}, 3), ({}, 1), ({"adapt": False}, 0)]
)
def test_calls_of_the_device(options, each):
    counts = []
    for count in (10, 60):
        optimizer = Lamb([{"params": parameters(count), **options}], lr=torch.tensor(0.01))
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
        with Calls() as calls:
            optimizer.step()
        counts.append(len(calls.names))
    assert counts[1] - counts[0] == 50 * each
    assert counts[0] - 10 * each < 40


def test_half_precision_keeps_the_digits_of_small_rates():
    exact, half = parameters(2), parameters(2, dtype=torch.float16)
    for made in (exact, half):
        Lamb(made, lr=1e-5).step()
    for a, b, start in zip(exact, half, parameters(2), strict=True):
        assert torch.allclose(a, b.float(), atol=2e-3)
        assert a.shape == start.shape


def test_ratios_are_multiplied_and_limited():
    weights = [torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[6.0, 8.0]])]
    directions = [torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    found = trust_ratios(weights, directions, True, 7.0, torch.tensor(-2.0))
    assert [each.tolist() for each in found] == [[[-10.0], [-2.0]], [[-14.0]]]
    assert trust_ratio(weights[0], directions[0], False, math.inf).item() == pytest.approx(
        12.5**0.5
    )
