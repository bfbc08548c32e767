"""Fingerprint of tensors: integer sums of their bits, which every write changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

WIDTH = 512
SMALL = 2**18
_KINDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """Return integers that stay equal while the bits of all tensors do.

    Version counters miss writes through ``.data``, numpy or a collective; these sums see them in
    one pass, and no floating point rounding hides a small change. Sums over rows and over columns
    are both kept, so that moved values show as well. Nothing is read by the host.

    Parameters
    ----------
    tensors : iterable of Tensor
        Of any element type, on one device.

    Returns
    -------
    Tensor
        One axis, int64, on the device of the tensors.

    Examples
    --------
    >>> weight = torch.zeros(1000)
    >>> before = fingerprint([weight])
    >>> weight.data[7] = 1e-30
    >>> torch.equal(fingerprint([weight]), before)
    False
    """
    flat = [_bits(tensor.detach().reshape(-1)) for tensor in tensors]
    return torch.cat([part for bits in _merged(flat) for part in _sums(bits)])


def _merged(flat: list[Tensor]) -> list[Tensor]:
    """Join what costs more to begin with than to copy: small tensors, on a GPU all of them."""
    joined = [bits for bits in flat if bits.device.type != "cpu" or bits.nbytes <= SMALL]
    alone = [bits for bits in flat if bits.device.type == "cpu" and bits.nbytes > SMALL]
    same = [[bits for bits in joined if bits.dtype == kind] for kind in _KINDS]
    return alone + [torch.cat(group) for group in same if group]


def _sums(bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = bits.numel() // WIDTH
    table = bits[: rows * WIDTH].view(rows, WIDTH)
    rest = bits[rows * WIDTH :].to(torch.int64)
    return table.sum(0, dtype=torch.int64), table.sum(1, dtype=torch.int64), rest


def _bits(flat: Tensor) -> Tensor:
    """Return the tensor as the widest integers that it can be seen as without a copy."""
    size = flat.element_size()
    for kind in _KINDS:
        if not (
            flat.numel() * size % kind.itemsize or flat.storage_offset() * size % kind.itemsize
        ):
            return flat.view(kind)
    return flat.view(torch.uint8)
