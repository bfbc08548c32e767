"""The optimizer of a run: every trained parameter in one group, by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.lamb import Lamb

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from mpobert_plugin.train.settings import PretrainConfig


def make_optimizer(groups: list[dict[str, Any]], config: PretrainConfig) -> Optimizer:
    """Return the optimizer that settings ask for; it takes a gradient scale as a tensor.

    Parameters
    ----------
    groups : list of dict
        Parameters with their factor ``lr_scale`` and their ``weight_decay``.
    config : PretrainConfig
        Settings.

    Returns
    -------
    torch.optim.Optimizer
        LAMB, or torch's fused AdamW.
    """
    betas = (config.beta1, config.beta2)
    if config.optimizer == "lamb":
        return Lamb(groups, config.lr, betas, config.eps)
    plain = [{k: v for k, v in group.items() if k not in ("stacked", "adapt")} for group in groups]
    return torch.optim.AdamW(plain, config.lr, betas, config.eps, fused=True)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of every group, by its factor.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Changed in place.
    rate : float
        Rate of a group whose factor is 1.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
