"""Bring the tensors of layers to the slices that they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.errors import SharingError
from mpobert_plugin.init.damping import damped
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
    layers: Sequence[tuple[str, Tensor]],
    slices: LayerMap,
    fit: str | None,
    argument: str,
    metrics: Sequence[Tensor] | None = None,
) -> Shared:
    """Return the tensor of each slice.

    Parameters
    ----------
    layers : sequence of (str, Tensor)
        Full name and tensor of each layer.
    slices : tuple of int
        Slice of each layer.
    fit : str, or None
        'mean', 'first' or 'joint', which means 'mean' here, for layers that differ.
    argument : str
        Name of the sharing option, for messages.
    metrics : sequence of Tensor, optional
        For each layer the mean of x x^T over its inputs, which weighs a mean of matrices.

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
                f"(relative). Pass fit='joint', fit='mean' or fit='first' and expect to train "
                f"afterwards, or "
                f"{argument}=None to keep layers apart. Nothing was changed."
            )
        else:
            own = None if metrics is None else [metrics[k] for k in users]
            values.append(_fitted([layers[k][1].detach() for k in users], fit, own))
        names.append(name)
    originals = tuple(tensor for _, tensor in layers)
    return Shared(tuple(values), tuple(names), frozenset(exact), originals)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _distance(a: Tensor, b: Tensor) -> float:
    difference = torch.linalg.vector_norm((a - b).detach().double())
    return float(difference / torch.linalg.vector_norm(b.detach().double()).clamp_min(1e-300))


def _fitted(tensors: list[Tensor], fit: str, metrics: Sequence[Tensor] | None = None) -> Tensor:
    if fit == "first":
        return tensors[0]
    return mean_of(tensors) if metrics is None else mean_in_metric(tensors, metrics)


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors in their element type, summed in double precision.

    Parameters
    ----------
    tensors : sequence of Tensor
        Equal shapes.

    Returns
    -------
    Tensor
        The one tensor with the least sum of squared differences from all.

    Examples
    --------
    >>> mean_of([torch.tensor([1.0]), torch.tensor([2.0])])
    tensor([1.5000])
    """
    # Half precision would lose bits in a long sum.
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + tensor.double()
    return (total / len(tensors)).to(tensors[0].dtype)


def mean_in_metric(matrices: Sequence[Tensor], metrics: Sequence[Tensor]) -> Tensor:
    """Return the matrix M with the least sum of ``|(W - M) H^(1/2)|^2`` over pairs of W and H.

    Parameters
    ----------
    matrices : sequence of Tensor, shape (rows, cols)
        The matrices W.
    metrics : sequence of Tensor, shape (cols, cols)
        Their metrics H, positive semidefinite; they are damped first.

    Returns
    -------
    Tensor
        In the element type of the matrices.

    Examples
    --------
    >>> one, two = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 2.0]])
    >>> mean_in_metric([one, two], [torch.diag(torch.tensor([3.0, 0.0])), torch.eye(2)])
    tensor([[1.2509, 1.9707]])
    """
    wide = metrics[0].dtype
    plain = torch.stack([matrix.to(wide) for matrix in matrices]).mean(0)
    total, pull = torch.zeros_like(metrics[0]), torch.zeros_like(plain)
    for matrix, metric in zip(matrices, metrics, strict=True):
        own = damped(metric)
        total += own
        pull += (matrix.to(wide) - plain) @ own
    best: Tensor = plain + torch.linalg.solve(total, pull.T).T
    return best.to(matrices[0].dtype)
