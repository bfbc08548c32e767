"""A metric in which no direction is free: few calibration inputs leave most of them unseen."""

from __future__ import annotations

import torch
from torch import Tensor

# What quantization by second moments adds as well (Frantar et al. 2022, section 3.3).
SHARE = 0.01


def damped(metric: Tensor) -> Tensor:
    """Return a metric with a hundredth of its mean eigenvalue added to every eigenvalue.

    In a direction that no calibration input has, a fit could do anything, and would do so to
    inputs that come later. With the damping it follows the matrix there.

    Parameters
    ----------
    metric : Tensor, shape (n, n)
        Symmetric, positive semidefinite.

    Returns
    -------
    Tensor
        (n, n), a new tensor.

    References
    ----------
    Frantar et al. 2022, GPTQ, section 3.3.

    Examples
    --------
    >>> damped(torch.diag(torch.tensor([4.0, 0.0]))).diagonal()
    tensor([4.0200, 0.0200])
    """
    wide = metric.clone()
    mean = wide.diagonal().mean()
    # Where nothing is seen at all, every direction counts alike.
    wide.diagonal().add_(SHARE * mean if bool(mean > 0) else torch.ones_like(mean))
    return wide
