"""Results on their way from the device to the host, which reads them when they have come."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Sent(Generic[T]):
    """A value whose tensors are copied to the host behind the work that is queued now.

    A tensor that is read by ``float`` waits for all that was queued until then, later steps too.
    One that was sent waits for what was queued before it: read a step later, it is there already.

    Parameters
    ----------
    value : dataclass
        Its tensors, also those of dataclasses in it, are sent; everything else stays as it is.

    Examples
    --------
    >>> from mpobert_plugin.train.objective import Losses
    >>> zero = torch.zeros(())
    >>> Sent(Losses(torch.ones(()), zero, zero, zero)).read().tokens
    tensor(1.)
    """

    def __init__(self, value: T) -> None:
        self._value: T = _copied(value)
        self._event: Any = None
        if any(tensor.is_cuda for tensor in _tensors(value)):
            # torch leaves this class without types.
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def has_come(self) -> bool:
        """Tell whether all that was queued before is done, without waiting for it.

        Returns
        -------
        bool
            True at once for what was on the host.
        """
        return self._event is None or bool(self._event.query())

    def read(self) -> T:
        """Return the value with its tensors on the host, after waiting for them.

        Returns
        -------
        dataclass
            Of the same class.
        """
        if self._event is not None:
            self._event.synchronize()
        return self._value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not is_dataclass(value):
        return []
    return [t for entry in fields(value) for t in _tensors(getattr(value, entry.name))]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _to_host(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {entry.name: _copied(getattr(value, entry.name)) for entry in fields(value)}
    return replace(value, **found)


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return room.copy_(tensor, non_blocking=True)
