"""Own kernels for GPUs, where they work; torch's operations do the same elsewhere."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("mpobert_plugin")
# Others, such as fake and distributed tensors, may have no memory of their own here.
PLAIN = (Tensor, nn.Parameter)


def kernel_for(name: str, tensor: Tensor, dtype: torch.dtype) -> Callable[..., None] | None:
    """Return a kernel, or None where torch's own operations are to do the work.

    Parameters
    ----------
    name : str
        Module of the kernel.
    tensor : Tensor
        What it works on.
    dtype : torch.dtype
        Its other element type.

    Returns
    -------
    callable or None
        None for tensors that are not on a GPU or have no memory, while a graph is recorded by
        autograd or a compiler, and where Triton does not work.

    Examples
    --------
    >>> kernel_for("unfold_kernel", torch.zeros(1), torch.float16) is None
    True
    """
    if not tensor.is_cuda or type(tensor) not in PLAIN:
        return None
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return _tried(name, tensor.device, dtype)


@cache
def _tried(name: str, device: torch.device, dtype: torch.dtype) -> Callable[..., None] | None:
    """Return a kernel that has run on a device; torch for CUDA has Triton on Linux alone.

    It needs a compiler of C, headers of Python and a folder that can be written, too.
    """
    try:
        module: Any = import_module(f"mpobert_plugin.{name}")
        module.probe(device, dtype)
    except Exception as error:  # noqa: BLE001, whatever keeps it from running
        _LOG.warning("Triton does not work on %s, torch's operations are used: %s", device, error)
        return None
    found: Callable[..., None] = module.run
    return found
