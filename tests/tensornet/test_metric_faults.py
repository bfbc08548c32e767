"""What is refused with a metric, and what the message says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.errors import (
    ArrayTypeError,
    DTypeError,
    NonFiniteError,
    OptionError,
    ShapeError,
    ToleranceError,
)


def sample(rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.linspace(0.01, 3.0, cols)[:, None] * rng.normal(size=(cols, 4 * cols))
    return rng.normal(size=(rows, cols)), X @ X.T / (4 * cols)


def message(W: Any, H: Any, error: type[Exception], **options: Any) -> str:
    with pytest.raises(error) as caught:
        tn.mpo(W, 2, metric=H, **options)
    return str(caught.value)


def test_messages_state_numbers() -> None:
    W, H = sample(4, 6)
    assert message(W, H[:5], ShapeError) == (
        "metric must have shape (6, 6), one row and column for each column of W, got shape (5, 6)."
    )
    assert message(W, H[0], ShapeError).startswith("metric must have 2 dimensions, got shape (6,)")
    skew = H.copy()
    skew[0, 1] += 0.5 * np.linalg.norm(H)
    assert re.search(
        r"symmetric up to rounding .*transpose of 0\.\d+\. Take", message(W, skew, OptionError)
    )
    negative = np.diag([1.0, 1.0, 1.0, 1.0, -0.25, -1.0])
    assert "got 2 negative eigenvalues, the least -1 (rounding" in message(W, negative, OptionError)
    bad = H.copy()
    bad[2, 3] = np.nan
    assert "1 non-finite value, the first at index (2, 3)" in message(W, bad, NonFiniteError)
    assert message(W, H + 0j, DTypeError) == (
        "metric must be real where W is, got complex128. "
        "Its real part weights real matrices in the same way: pass that."
    )
    assert message(W, torch.tensor(H), ArrayTypeError) == (
        "metric must be of the library of W, got pytorch with a numpy W."
    )
    assert "an element type among" in message(W, np.eye(6, dtype=int), DTypeError)
    assert "on the device of W, got meta with W on cpu" in message(
        torch.tensor(W), torch.eye(6, device="meta"), ArrayTypeError
    ) or "have data" in message(torch.tensor(W), torch.eye(6, device="meta"), ArrayTypeError)


def test_what_does_not_go_together_is_said() -> None:
    W, H = sample(4, 6)
    text = message(torch.tensor(W), torch.tensor(H), OptionError, differentiable=True)
    assert text == (
        "metric must be left out where gradients flow, got differentiable=True. "
        "Leave one of them out."
    )
    with pytest.raises(OptionError, match="metric must be left out for a 3-D W"):
        tn.mpo(np.stack([W, W]), 2, metric=H)
    with pytest.raises(OptionError, match="'identity' with limits"):
        tn.mpo(W, 2, metric=H, gauge="identity", max_bond=1)


def test_a_tolerance_that_the_caps_cannot_keep_is_refused_with_what_they_can() -> None:
    W, H = sample(24, 36)
    for shape in (3, ((24, 1), (1, 36))):
        with pytest.raises(
            ToleranceError, match=r"rtol must .* error|rtol must be at least"
        ) as caught:
            tn.mpo(W, shape, metric=H, rtol=0.01, max_bond=2)
        assert re.search(r"0\.\d+", str(caught.value))
    with pytest.raises(ToleranceError, match="be a number in"):
        tn.mpo(W, 3, metric=H, rtol=2.0)


def test_rounding_in_a_metric_is_forgiven() -> None:
    W, H = sample(4, 6)
    noisy = H + 1e-15 * np.random.default_rng(0).normal(size=H.shape)
    assert tn.mpo(W, 2, metric=noisy, max_bond=1).certificate.relative_error > 0
    low = (H[:, :1] @ H[:1]).astype(np.float32)  # rank 1: eigenvalues of either sign by rounding
    assert tn.mpo(W, 2, metric=(low + low.T) / 2, max_bond=1).certificate.relative_error < 1


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
@pytest.mark.parametrize("shape", [((4, 1), (1, 6)), ((2, 2), (2, 3))])
def test_the_norm_is_that_in_the_metric_as_given(shape: Any, scale: float) -> None:
    W, H = sample(4, 6)
    certificate = tn.mpo(1e3 * W, shape, metric=scale * H, max_bond=2).certificate
    norm = 1e3 * np.sqrt(scale * np.trace(W @ H @ W.T))
    assert certificate.norm == pytest.approx(norm, rel=1e-12)
