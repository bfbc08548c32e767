"""Products of matrices in float16 with sums in float32, on operands scaled by powers of two."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from mpobert_plugin.kernels import kernel_for

HALF = (torch.float16, torch.bfloat16)
# Asked once, at import: torch 2.11 cannot trace the question inside a compiled graph.
AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)
# A sum of this many products of numbers up to 2 and 4 stays below 65504, the largest float16.
LONGEST_SUM = 8000
# Exponent of the least scale.
LEAST_POWER = -60
# The bits of a float32 that hold its exponent.
EXPONENT_BITS = 0x7F800000


def exact(device_type: str) -> AbstractContextManager[object]:
    """Return a context without autocast; devices such as 'meta' know none.

    Parameters
    ----------
    device_type : str
        Such as 'cuda'.

    Returns
    -------
    context manager
        In it, products have the element type of their operands.

    Examples
    --------
    >>> with torch.autocast("cpu", dtype=torch.bfloat16), exact("cpu"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if device_type in AUTOCAST_DEVICES:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def half_of(tensor: Tensor, divisor: int = 1) -> tuple[Tensor, Tensor]:
    """Return a tensor in float16 and the power of two that it was divided by.

    Scaled so that no entry is above ``2 / divisor``, a tensor loses nothing but bits of its
    mantissa, and entries below 1e-4 of the largest some more; an entry that is not finite stays so.

    Parameters
    ----------
    tensor : Tensor
        In any floating-point type but float64.
    divisor : int
        Rounded up to a power of two.

    Returns
    -------
    tuple of (Tensor, Tensor)
        The scaled tensor, contiguous, and the scale of shape (1,) in float32.

    Examples
    --------
    >>> half, scale = half_of(torch.tensor([5.0, 1e-3]))
    >>> half.dtype, half[0].item(), scale.item()
    (torch.float16, 1.25, 4.0)
    """
    kernel = kernel_for("half_kernel", tensor, tensor.dtype)
    if kernel is not None:
        half = torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device)
        scale = torch.empty(1, dtype=torch.float32, device=tensor.device)
        kernel(tensor.contiguous(), half, scale, _power(divisor))
        return half, scale
    scale = scale_of(tensor, divisor)
    return times(tensor, scale.reciprocal(), torch.float16), scale


def _power(divisor: int) -> int:
    """Return the power of two that is not below a number."""
    return 1 if divisor <= 1 else 1 << (divisor - 1).bit_length()


def scale_of(tensor: Tensor, divisor: int = 1) -> Tensor:
    """Return the power of two by which `half_of` divides a tensor.

    Parameters
    ----------
    tensor : Tensor
        In any floating-point type but float64.
    divisor : int
        Rounded up to a power of two.

    Returns
    -------
    Tensor of float32
        (1,).

    Examples
    --------
    >>> scale_of(torch.tensor([5.0, -1e-3])).item()
    4.0
    """
    size = (
        torch.linalg.vector_norm(tensor.detach(), float("inf")).float().clamp_min(2.0**LEAST_POWER)
    )
    # The bits of the exponent alone are the largest power of two that is not above the number.
    scale: Tensor = (size.view(1).view(torch.int32) & EXPONENT_BITS).view(torch.float32)
    return scale if divisor <= 1 else scale * float(_power(divisor))


def times(tensor: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor times a float32 factor of shape (1,), rounded once.

    Parameters
    ----------
    tensor : Tensor
        Of any strides.
    factor : Tensor
        (1,).
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    Tensor
        Contiguous where no graph is recorded.

    Examples
    --------
    >>> times(torch.ones(2, dtype=torch.float16), torch.tensor([0.5]), torch.bfloat16)
    tensor([0.5000, 0.5000], dtype=torch.bfloat16)
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return (tensor * factor).to(dtype)
    # One pass over the memory: transposed, scaled and rounded.
    out = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    return torch.mul(tensor, factor, out=out)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices or two stacks; of halves in float32 where that works.

    Parameters
    ----------
    a, b : Tensor
        (m, k) and (k, n), or stacks of them.

    Returns
    -------
    Tensor
        In float32 for operands in half precision. On a CUDA device, sums are rounded to nothing
        narrower on the way.

    Examples
    --------
    >>> wide_product(torch.ones(1, 3), torch.ones(3, 1)).item()
    3.0
    """
    if a.dtype not in HALF:
        return a @ b
    if (
        a.device.type not in ("cuda", "meta")
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
    ):
        return (a @ b).float()
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    return multiply(a, b, out_dtype=torch.float32)
