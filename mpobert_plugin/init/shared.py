"""Bring the tensors of layers to the slices that they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.errors import SharingError
from mpobert_plugin.sharing import members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpobert_plugin.sharing import LayerMap


@dataclass(frozen=True)
class Shared:
    """One tensor for each slice, and what it stands for.

    Parameters
    ----------
    values : tuple of Tensor
        The tensor of each slice.
    names : tuple of str
        Full name of the first layer's parameter of each slice.
    exact : frozenset of int
        Slices whose layers all had this very tensor.
    originals : tuple of Tensor
        The tensor that each layer had.
    """

    values: tuple[Tensor, ...]
    names: tuple[str, ...]
    exact: frozenset[int]
    originals: tuple[Tensor, ...]

    def stack(self) -> Tensor:
        """Return the slices as one tensor.

        Returns
        -------
        Tensor
            The first axis counts slices.
        """
        return torch.stack(self.values).contiguous()


def share(
    layers: Sequence[tuple[str, Tensor]], slices: LayerMap, fit: str | None, argument: str
) -> Shared:
    """Return the tensor of each slice.

    Parameters
    ----------
    layers : sequence of (str, Tensor)
        Full name and tensor of each layer.
    slices : tuple of int
        Slice of each layer.
    fit : str, or None
        'mean' or 'first' for layers that differ.
    argument : str
        Name of the sharing option, for messages.

    Returns
    -------
    Shared
        Values and what they stand for.

    Raises
    ------
    SharingError
        When layers of a slice differ and `fit` is None.
    """
    values, names, exact = [], [], set()
    for piece, users in enumerate(members(slices)):
        name, first = layers[users[0]]
        other = next((k for k in users if not _equal(layers[k][1], first)), None)
        if other is None:
            exact.add(piece)
            values.append(first.detach())
        elif fit is None:
            raise SharingError(
                f"{argument} must join equal tensors unless fit says how, got {name} and "
                f"{layers[other][0]}, which differ by {_distance(layers[other][1], first):.3g} "
                f"(relative). Pass fit='mean' or fit='first' and expect to train afterwards, or "
                f"{argument}=None to keep layers apart. Nothing was changed."
            )
        else:
            values.append(_fitted([layers[k][1].detach() for k in users], fit))
        names.append(name)
    originals = tuple(tensor for _, tensor in layers)
    return Shared(tuple(values), tuple(names), frozenset(exact), originals)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _distance(a: Tensor, b: Tensor) -> float:
    difference = torch.linalg.vector_norm((a - b).detach().double())
    return float(difference / torch.linalg.vector_norm(b.detach().double()).clamp_min(1e-300))


def _fitted(tensors: list[Tensor], fit: str) -> Tensor:
    if fit == "first":
        return tensors[0]
    # Half precision would lose bits in a long sum.
    return torch.stack(tensors).double().mean(0).to(tensors[0].dtype)
