"""Number formats of training, and a loss scale that lives on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.errors import ConfigError, close_to

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS = ("fp16", "bf16", "fp32", "tf32")


@dataclass(frozen=True)
class Precision:
    """In which numbers the network computes; masters and moments are float32 in all of them.

    Parameters
    ----------
    name : str
        'fp16' (with a dynamic loss scale), 'bf16', 'fp32', or 'tf32': float32 with the rounded
        products of tensor cores.

    Raises
    ------
    ConfigError
        When the name is unknown.

    Examples
    --------
    >>> Precision("fp16").dtype, Precision("bf16").scaled
    (torch.float16, False)
    """

    name: str = "fp16"

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise ConfigError(
                f"precision must be {', '.join(map(repr, FORMATS))}, got {self.name!r}."
                f"{close_to(str(self.name), FORMATS)}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the matrix products."""
        return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.name, torch.float32)

    @property
    def scaled(self) -> bool:
        """Whether small gradients would be lost without a loss scale."""
        return self.name == "fp16"


class LossScale:
    """A dynamic loss scale: halved when gradients overflow, doubled after a time without.

    Its numbers are tensors on the device, so that a step waits for nothing.

    Parameters
    ----------
    device : torch.device or str
        Where they are.
    scale : float
        Scale at first.
    interval : int
        Steps without overflow after which it is doubled.
    enabled : bool
        Without, the scale is 1 and stays so.

    Examples
    --------
    >>> scale = LossScale("cpu", 8.0, interval=2)
    >>> scale.update(torch.tensor(True))
    >>> float(scale.value)
    4.0
    """

    SMALLEST, LARGEST = 2.0**-14, 2.0**24

    def __init__(
        self,
        device: torch.device | str,
        scale: float = 65536.0,
        interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled
        self.interval = interval
        self.value = torch.tensor(scale if enabled else 1.0, device=device)
        self.clean = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, overflow: Tensor) -> None:
        """Take note of a step; the same on every process when `overflow` is.

        Parameters
        ----------
        overflow : Tensor of bool
            Whether a gradient was not finite, so that the step was skipped.
        """
        self.skipped += overflow
        if not self.enabled:
            return
        self.clean.copy_(torch.where(overflow, 0, self.clean + 1))
        grows = self.clean >= self.interval
        factor = torch.where(overflow, 0.5, torch.where(grows, 2.0, 1.0))
        self.value.mul_(factor).clamp_(self.SMALLEST, self.LARGEST)
        self.clean.masked_fill_(grows, 0)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps.

        Returns
        -------
        dict of str to float
            Scale, steps since the last overflow, and skipped steps.
        """
        return {
            "scale": float(self.value),
            "clean": int(self.clean),
            "skipped": int(self.skipped),
        }

    def load(self, state: Mapping[str, float]) -> None:
        """Take the numbers of a checkpoint.

        Parameters
        ----------
        state : mapping
            Output of `state`.
        """
        if self.enabled:
            self.value.fill_(state["scale"])
        self.clean.fill_(int(state["clean"]))
        self.skipped.fill_(int(state["skipped"]))
