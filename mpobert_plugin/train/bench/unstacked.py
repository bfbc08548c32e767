"""LAMB as it is usually run: a tensor of its own for each layer's core, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def unstacked(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups in which each slice of a stacked tensor is a parameter of its own.

    Parameters
    ----------
    groups : iterable of dict
        Groups of `Lamb`, with gradients.

    Returns
    -------
    list of dict
        Copies, with copies of the gradients; options as they were but for ``stacked``.
    """
    found = []
    for group in groups:
        pieces: list[nn.Parameter] = []
        for parameter in group["params"]:
            values, gradient = parameter.detach(), parameter.grad
            stacked = group.get("stacked", False)
            each = values.unbind(0) if stacked else (values,)
            grads = gradient.unbind(0) if stacked else (gradient,)
            for value, grad in zip(each, grads, strict=True):
                piece = nn.Parameter(value.clone())
                piece.grad = grad.clone()
                pieces.append(piece)
        options = {k: v for k, v in group.items() if k not in ("params", "stacked")}
        found.append({**options, "params": pieces})
    return found


class PlainLamb(Optimizer):
    """LAMB with clipping by the global norm, tensor after tensor, as a short script has it.

    It is here to be compared with; `mpobert_plugin.train.Lamb` gives the same steps.

    Parameters
    ----------
    groups : list of dict
        Parameters with ``weight_decay`` and ``adapt``.
    lr : float
        Learning rate.
    betas : pair of float
        Decay of the running means.
    eps : float
        Number added to the root of the second moment.
    clip : float
        Largest norm of the whole gradient; 0 for no limit.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> w.grad = torch.tensor([0.1, -0.2], dtype=torch.float64)
    >>> PlainLamb([{"params": [w], "weight_decay": 0.01, "adapt": True}], lr=0.01).step()
    >>> [round(value, 6) for value in w.tolist()]
    [2.963424, 4.034091]
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        clip: float = 1.0,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "adapt": True})
        self.clip = clip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the parameters in place.

        Parameters
        ----------
        closure : callable, optional
            Called first.
        """
        if closure is not None:
            closure()
        members = [p for group in self.param_groups for p in group["params"]]
        if self.clip > 0:
            nn.utils.clip_grad_norm_(members, self.clip, foreach=False)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._move(group, parameter)

    def _move(self, group: dict[str, Any], parameter: Tensor) -> None:
        state, grad = self.state[parameter], parameter.grad
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(parameter)}
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean = state["mean"].mul_(beta1).add_(grad, alpha=1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        direction = mean / (1 - beta1 ** state["step"]) / root
        if group["weight_decay"]:
            direction.add_(parameter, alpha=group["weight_decay"])
        trust = 1.0
        if group["adapt"]:
            above, below = parameter.norm().item(), direction.norm().item()
            trust = above / below if above and below else 1.0
        parameter.add_(direction, alpha=-group["lr"] * trust)
