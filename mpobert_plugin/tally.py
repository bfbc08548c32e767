"""Tally: memory, multiply-adds and time of what runs under it, counted on tensors without data."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_TWO = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}


@dataclass(frozen=True)
class Speed:
    """Round figures for a kind of device; only their quotients matter.

    Parameters
    ----------
    half, wide : float
        Multiply-adds per second in half precision and in float32.
    memory : float
        Bytes read or written per second.
    start : float
        Seconds that any operation takes.
    """

    half: float
    wide: float
    memory: float
    start: float


SPEEDS = {
    "cuda": Speed(half=3e14, wide=2e13, memory=2.5e12, start=5e-6),
    "cpu": Speed(half=1e10, wide=3e10, memory=1e10, start=2e-5),
}


def seconds(speed: Speed, multiply_adds: int, itemsize: int, moved: int) -> float:
    """Return how long one operation takes: the longest of computing, moving and starting.

    Parameters
    ----------
    speed : Speed
        Figures of the device.
    multiply_adds : int
        Number of them.
    itemsize : int
        Bytes of an element.
    moved : int
        Bytes read and written.

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    >>> seconds(Speed(half=4.0, wide=2.0, memory=1.0, start=0.5), 8, 2, 1)
    2.0
    """
    rate = speed.half if itemsize <= 2 else speed.wide
    return max(multiply_adds / rate, moved / speed.memory, speed.start)


# torch leaves the class without types.
class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What runs under it: bytes alive and at the peak, multiply-adds, expected seconds.

    Parameters
    ----------
    speed : Speed
        Figures of the device that is thought of.

    Examples
    --------
    >>> import torch
    >>> with Tally(SPEEDS["cpu"]) as tally:
    ...     x = torch.empty(2, 3, device="meta") @ torch.empty(3, 4, device="meta")
    >>> tally.multiply_adds, tally.alive, tally.peak
    (24, 32, 104)
    """

    def __init__(self, speed: Speed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.speed = speed
        self.alive = self.peak = self.multiply_adds = 0
        self.seconds = 0.0
        self._known: set[int] = set()

    def reset_peak(self) -> None:
        """Let the peak begin at what is alive now."""
        self.peak = self.alive

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Run an operation and count it."""
        out = func(*args, **(kwargs or {}))
        made = sum(self._take(tensor) for tensor in _tensors(out))
        given = [*_tensors(args), *_tensors(tuple(kwargs.values()) if kwargs else ())]
        product = self._products(func, args)
        # A view makes nothing and starts nothing.
        if made or product:
            moved = made + sum(t.numel() * t.element_size() for t in given)
            size = min((t.element_size() for t in given), default=4)
            self.multiply_adds += product
            self.seconds += seconds(self.speed, product, size, moved)
        return out

    def _take(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return 0
        size: int = storage.nbytes()
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._drop, key, size)
        return size

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size

    def _products(self, func: Any, args: Any) -> int:
        name = func.overloadpacket.__name__
        if name not in _TWO:
            return 0
        a, b = args[_TWO[name]], args[_TWO[name] + 1]
        return int(a.numel() * b.shape[-1])


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, (tuple, list)):
        return [tensor for one in found for tensor in _tensors(one)]
    return []
