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
    module = kernels_for(name, tensor, dtype)
    found: Callable[..., None] | None = None if module is None else module.run
    return found


def kernels_for(name: str, tensor: Tensor, dtype: torch.dtype) -> Any:
    """Return a module of kernels, or None where `kernel_for` does.

    Parameters
    ----------
    name, tensor, dtype
        As for `kernel_for`.

    Returns
    -------
    module or None
        Its kernels have run on the device.

    Examples
    --------
    >>> kernels_for("unfold_kernel", torch.zeros(1), torch.float16) is None
    True
    """
    if not tensor.is_cuda or type(tensor) not in PLAIN:
        return None
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return _tried(name, tensor.device, dtype)


def works(name: str, device: torch.device, dtype: torch.dtype, *sizes: int) -> bool:
    """Return whether the kernels of a module run on a device.

    Parameters
    ----------
    name : str
        Module of the kernels.
    device : torch.device
        Any.
    dtype : torch.dtype
        An element type that they take.
    *sizes : int
        What else their trial needs to know.

    Returns
    -------
    bool
        False on a CPU; on a GPU they are tried once.

    Examples
    --------
    >>> works("unfold_kernel", torch.device("cpu"), torch.float16)
    False
    """
    return device.type == "cuda" and _tried(name, device, dtype, *sizes) is not None


def module_for(name: str) -> Any:
    """Return a module of kernels, which needs Triton.

    Parameters
    ----------
    name : str
        Of the module, within the package.

    Returns
    -------
    module
        Imported when it is first asked for.
    """
    return import_module(f"mpobert_plugin.{name}")


@cache
def _tried(name: str, device: torch.device, dtype: torch.dtype, *sizes: int) -> Any:
    """Return kernels that have run on a device; torch for CUDA has Triton on Linux alone.

    They need a compiler of C, headers of Python and a folder that can be written, too.
    """
    try:
        module: Any = module_for(name)
        module.probe(device, dtype, *sizes)
    except Exception as error:  # noqa: BLE001, whatever keeps it from running
        _LOG.warning("Triton does not work on %s, torch's operations are used: %s", device, error)
        return None
    return module
