"""LAMB's quotients of norms, for many tensors or slices at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def trust_ratio(weight: Tensor, direction: Tensor, stacked: bool, most: float = math.inf) -> Tensor:
    """Return the quotient of the norms of weight and direction, 1 where either is zero.

    Parameters
    ----------
    weight, direction : Tensor
        Of equal shape.
    stacked : bool
        Whether each slice of the first axis has a quotient of its own.
    most : float
        Largest quotient.

    Returns
    -------
    Tensor
        (slices, 1, ...) when stacked, otherwise a scalar; float32 at least.

    Examples
    --------
    >>> w = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> trust_ratio(w, torch.ones(2, 2) / 2**0.5, stacked=True).tolist()
    [[5.0], [1.0]]
    """
    return trust_ratios([weight], [direction], stacked, most)[0]


def trust_ratios(
    weights: Sequence[Tensor],
    directions: Sequence[Tensor],
    stacked: bool,
    most: float = math.inf,
    times: float | Tensor = 1.0,
) -> list[Tensor]:
    """Return the quotients of several tensors, computed together but for the norms of slices.

    Parameters
    ----------
    weights, directions : sequence of Tensor
        Of equal shapes, one element type and one device.
    stacked, most
        As for `trust_ratio`.
    times : float or Tensor
        What all of them are multiplied by.

    Returns
    -------
    list of Tensor
        As `trust_ratio` gives them.

    Examples
    --------
    >>> w = torch.tensor([3.0, 4.0])
    >>> trust_ratios([w, 2 * w], [torch.ones(2) / 2**0.5] * 2, stacked=False, times=-1.0)
    [tensor(-5.), tensor(-10.)]
    """
    above, below = _norms(weights, stacked), _norms(directions, stacked)
    quotients = above / below
    if most < math.inf:
        quotients = quotients.clamp(max=most)
    flat = torch.where((above > 0) & (below > 0), quotients, 1.0) * times
    if not stacked:
        return list(flat.unbind(0))
    pieces = torch.split(flat, [len(weight) for weight in weights])
    return [
        piece.view(-1, *[1] * (weight.dim() - 1))
        for piece, weight in zip(pieces, weights, strict=True)
    ]


def _norms(tensors: Sequence[Tensor], stacked: bool) -> Tensor:
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    if not stacked:
        return torch.stack(torch._foreach_norm(list(tensors), 2, dtype))
    return torch.cat([_of_slices(tensor, dtype) for tensor in tensors])


def _of_slices(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    dims = tuple(range(1, tensor.dim()))
    if not dims:
        return torch.abs(tensor).to(dtype)
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=dims, dtype=dtype)
    return norms
