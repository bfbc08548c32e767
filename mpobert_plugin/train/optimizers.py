"""The optimizer of a run: every trained parameter in one group, by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.train.lamb import Lamb

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from mpobert_plugin.train.schedule import Schedule
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


class Rates:
    """The learning rates of a run as a table on the device.

    Which entry a step takes depends on how many were skipped, which the host need not know.

    Parameters
    ----------
    schedule : Schedule
        Factors by step.
    lr : float
        Largest rate.
    device : torch.device or str
        Where the table is.
    """

    def __init__(self, schedule: Schedule, lr: float, device: torch.device | str) -> None:
        rates = [lr * schedule(step) for step in range(schedule.steps + 1)]
        self.table = torch.tensor(rates, device=device)

    def __call__(self, step: int, skipped: Tensor) -> Tensor:
        """Return the rate after some steps, those that were skipped taken off.

        Parameters
        ----------
        step : int
            Steps that were made or skipped.
        skipped : Tensor
            How many were skipped.

        Returns
        -------
        Tensor
            A scalar.
        """
        # An index of one number would be read by the host.
        place = (step - skipped).clamp(min=0).reshape(1)
        return self.table.index_select(0, place).reshape(())


def set_rate(optimizer: Optimizer, rate: Tensor) -> None:
    """Set the learning rate of every group, by its factor.

    A rate that is there stays at its place in memory, where recorded steps read it.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Changed in place.
    rate : Tensor
        Rate of a group whose factor is 1.
    """
    for group in optimizer.param_groups:
        own, before = rate * group.get("lr_scale", 1.0), group["lr"]
        if isinstance(before, torch.Tensor) and before.device == own.device:
            before.copy_(own)
        else:
            group["lr"] = own
