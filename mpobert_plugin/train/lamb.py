"""LAMB with bias correction, whose trust ratio is taken for each slice of a stacked tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.trust import trust_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim.optimizer import ParamsT


class Lamb(Optimizer):
    """Adam's direction, scaled for each matrix to its own norm.

    With the corrected moments m and v the direction is ``m / (sqrt(v) + eps) + weight_decay * w``,
    and the step is the learning rate times ``|w| / |direction|`` times that direction; the
    quotient is 1 where either norm is zero. A stacked tensor holds one matrix or core for each
    layer: with ``stacked`` it gets a quotient for each slice of its first axis, and so the same
    steps as a tensor of its own for each layer. No value is read back from the device.

    A loop that scales its loss sets the attribute ``found_inf`` to a tensor before each step, as
    torch's fused optimizers have it: where it is 1, the step changes nothing, neither weights nor
    moments nor the count of steps. Gradients must then be finite, zeros for example.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        Parameters or groups, as `mpobert_plugin.param_groups` makes them. Beside the options
        below a group may have ``stacked`` (False by default) and ``adapt`` (True by default;
        False leaves the quotient at 1, as is usual for biases and norms).
    lr : float or Tensor
        Learning rate.
    betas : pair of float
        Decay of the running means of the gradient and of its square.
    eps : float
        Number added to the root of the second moment.
    weight_decay : float
        Factor of the weights in the direction.
    max_trust : float
        Largest quotient; infinite by default, as in the paper.
    bias_correction : bool
        Whether moments are divided by ``1 - beta^t``; the paper's first listing does, some
        well-known code does not.

    Raises
    ------
    ConfigError
        When an option has an impossible value.

    References
    ----------
    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
    2020, algorithm 2.

    Examples
    --------
    >>> w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    >>> w.grad = torch.tensor([0.1, -0.2], dtype=torch.float64)
    >>> Lamb([w], lr=0.01, weight_decay=0.01).step()
    >>> [round(value, 6) for value in w.tolist()]
    [2.963424, 4.034091]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        max_trust: float = math.inf,
        bias_correction: bool = True,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_trust": max_trust,
            "bias_correction": bias_correction,
            "stacked": False,
            "adapt": True,
        }
        super().__init__(params, defaults)
        self.found_inf: Tensor | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters after checking its options.

        Parameters
        ----------
        param_group : dict
            ``params`` and options.

        Raises
        ------
        ConfigError
            When an option has an impossible value.
        """
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Change the parameters that have a gradient, in place.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model again and returns the loss.

        Returns
        -------
        float or None
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            for alike in _alike(members):
                self._step_group(group, alike)
        return loss

    def _step_group(self, group: dict[str, Any], members: list[Tensor]) -> None:
        states = [self._state_of(parameter) for parameter in members]
        grads = [_dense(parameter) for parameter in members]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        keep = self._keep(members[0])
        _move_moments(group["betas"], means, squares, grads, keep)
        corrections = _corrections(group, _count(states, keep), keep)
        directions = _directions(group, members, corrections, means, squares)
        factor = -group["lr"] if keep is None else -group["lr"] * keep
        if group["adapt"]:
            stacked, most = group["stacked"], group["max_trust"]
            factors = trust_ratios(members, directions, stacked, most, factor)
            _move(members, directions, factors)
        elif isinstance(factor, Tensor):
            torch._foreach_mul_(directions, factor.to(members[0]))
            torch._foreach_add_(members, directions)
        else:
            torch._foreach_add_(members, directions, alpha=factor)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def _keep(self, like: Tensor) -> Tensor | None:
        """Return 1 for a step that counts and 0 for one that overflowed; None when all count."""
        if self.found_inf is None:
            return None
        return (1.0 - self.found_inf).to(like.device, like.dtype)


def _move_moments(
    betas: tuple[float, float],
    means: list[Tensor],
    squares: list[Tensor],
    grads: list[Tensor],
    keep: Tensor | None,
) -> None:
    beta1, beta2 = betas
    if keep is None:
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
    else:
        # Gradients of a step that does not count are zeros; what is there is not to decay.
        torch._foreach_mul_(means, 1.0 - (1.0 - beta1) * keep)
        torch._foreach_add_(means, grads, alpha=1.0 - beta1)
        torch._foreach_mul_(squares, 1.0 - (1.0 - beta2) * keep)
    torch._foreach_addcmul_(squares, grads, grads, 1.0 - beta2)


def _count(states: list[dict[str, Any]], keep: Tensor | None) -> list[int] | Tensor:
    """Count the step in every state; one tensor for all where the count is on the device."""
    if keep is None:
        for state in states:
            state["step"] = int(state["step"]) + 1
        return [state["step"] for state in states]
    first = states[0]["step"]
    if not isinstance(first, Tensor) or any(state["step"] is not first for state in states):
        # Separate after loading; they have been counted together.
        if isinstance(first, Tensor):
            first = first.to(keep.device, torch.float64, copy=True)
        else:
            # Filled on the device: a copy from the host would wait.
            first = torch.full((), first, dtype=torch.float64, device=keep.device)
        for state in states:
            state["step"] = first
    first += keep
    return first


def _corrections(
    group: dict[str, Any], steps: list[int] | Tensor, keep: Tensor | None
) -> tuple[Any, Any] | None:
    """Return what moments are divided by: numbers, or tensors where the count is one."""
    if not group["bias_correction"]:
        return None
    beta1, beta2 = group["betas"]
    if isinstance(steps, list):
        return [1.0 - beta1**s for s in steps], [math.sqrt(1.0 - beta2**s) for s in steps]
    # In float64, for 1 - beta2 has few digits in float32. Nothing is divided by zero before the
    # first step that counts.
    count = steps.clamp(min=1.0)
    dtype = torch.float32 if keep is None else keep.dtype
    return (1.0 - beta1**count).to(dtype), (1.0 - beta2**count).sqrt().to(dtype)


def _move(members: list[Tensor], directions: list[Tensor], factors: list[Tensor]) -> None:
    for parameter, direction, factor in zip(members, directions, factors, strict=True):
        if factor.dtype == parameter.dtype:
            parameter.addcmul_(direction, factor)
        else:
            # The product in float32, where half precision has too few digits.
            parameter.add_(direction.to(factor.dtype) * factor)


def _directions(
    group: dict[str, Any],
    members: list[Tensor],
    corrections: tuple[Any, Any] | None,
    means: list[Tensor],
    squares: list[Tensor],
) -> list[Tensor]:
    roots = list(torch._foreach_sqrt(squares))
    if corrections is not None:
        torch._foreach_div_(roots, corrections[1])
    torch._foreach_add_(roots, group["eps"])
    directions = list(torch._foreach_div(means, roots))
    if corrections is not None:
        torch._foreach_div_(directions, corrections[0])
    if group["weight_decay"]:
        torch._foreach_add_(directions, members, alpha=group["weight_decay"])
    return directions


def _alike(members: Iterable[Tensor]) -> list[list[Tensor]]:
    """Sort tensors by device and element type, as the batched kernels want them."""
    sorted_: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in members:
        sorted_.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(sorted_.values())


def _dense(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse:
        raise ConfigError(
            "Lamb needs dense gradients, got a sparse one. Make the embedding with sparse=False."
        )
    return gradient


def _check(group: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        # A rate that is a tensor may be on a device, and is not read.
        if not isinstance(group[name], Tensor):
            _check_number(name, group[name], 0.0 <= _number(group[name]) < math.inf, ">= 0")
    most = group["max_trust"]
    _check_number("max_trust", most, _number(most) > 0.0, "above 0")
    betas = group["betas"]
    pair = betas if isinstance(betas, Sequence) and len(betas) == 2 else (math.nan,)
    if not all(0.0 <= _number(beta) < 1.0 for beta in pair):
        raise ConfigError(f"betas must be two numbers from 0 to below 1, got {betas!r}.")


def _check_number(name: str, value: object, fits: bool, range_: str) -> None:
    if not fits:
        raise ConfigError(f"{name} must be a number {range_}, got {value!r}.")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
