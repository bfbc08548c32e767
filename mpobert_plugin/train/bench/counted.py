"""What a call costs besides time: operations, launches on a GPU, and waits of the host."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpobert_plugin.train.bench.timing import wait

if TYPE_CHECKING:
    from collections.abc import Callable


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch is told, views not among them."""

    def __init__(self) -> None:
        # torch leaves this class without types.
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += int(not func.is_view)
        return func(*args, **(kwargs or {}))


def operations(work: Callable[[], object]) -> int:
    """Return how many operations a call tells torch to do; a batched one counts once.

    Parameters
    ----------
    work : callable
        What is called, once.

    Returns
    -------
    int
        The same on every machine.

    Examples
    --------
    >>> operations(lambda: torch.ones(3).add(1.0).view(3, 1))
    2
    """
    counting = _Counting()
    with counting:
        work()
    return counting.count


def launches(work: Callable[[], object], device: torch.device) -> int | None:
    """Return how many kernels, copies and fills a call starts on a GPU.

    Parameters
    ----------
    work : callable
        What is called, once.
    device : torch.device
        Where it computes.

    Returns
    -------
    int or None
        None on a CPU.
    """
    if device.type != "cuda":
        return None
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        wait(device)
    return len([event for event in profiled.events() if event.device_type == DeviceType.CUDA])


def host_waits(work: Callable[[], object], device: torch.device) -> int | None:
    """Return how often the host waits for a GPU in a call.

    Parameters
    ----------
    work : callable
        What is called, once.
    device : torch.device
        Where it computes.

    Returns
    -------
    int or None
        None on a CPU.
    """
    if device.type != "cuda":
        return None
    wait(device)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return len([entry for entry in heard if "synchroniz" in str(entry.message)])
