"""How much memory a process has taken."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

_RESIDENT = Path("/proc/self/statm")


def memory_gib(device: torch.device) -> float | None:
    """Return how much memory this process has, where the system tells it.

    Parameters
    ----------
    device : torch.device
        Where the model is.

    Returns
    -------
    float or None
        GiB: the most that tensors took on a GPU so far; on a CPU what the process has now.

    Examples
    --------
    >>> found = memory_gib(torch.device("cpu"))
    >>> found is None or 0.01 < found < 1000.0
    True
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    # Systems other than Linux have no such file.
    with suppress(OSError):
        pages = int(_RESIDENT.read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
    return None
