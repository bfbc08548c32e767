"""Lazy: what a layer is handed instead of its matrix, and computes its product with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Values: TypeAlias = tuple[Tensor, Tensor | None]
Parts: TypeAlias = Sequence[Tensor | None]


class Lazy(ABC):
    """The product of a layer's matrix with its input, without a matrix that is there beforehand."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors are."""

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """Return ``x @ W.T + b``.

        Parameters
        ----------
        x : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """

    @abstractmethod
    def values(self) -> Values:
        """Return weight and bias, for whoever asks for them.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """

    @abstractmethod
    def parts(self) -> Parts:
        """Return the tensors that everything is computed from.

        Returns
        -------
        sequence of (Tensor or None)
            What `maker` takes.
        """

    @abstractmethod
    def maker(self) -> Callable[[Parts], Lazy]:
        """Return a function that makes such an object from other parts, and holds no tensor.

        Returns
        -------
        callable
            From parts to an object that computes the same with them.
        """


def parts_of(values: Values | Lazy) -> Parts:
    """Return the tensors of what a layer is handed.

    Parameters
    ----------
    values : tuple of (Tensor, Tensor or None), or Lazy
        What the layer is handed.

    Returns
    -------
    sequence of (Tensor or None)
        What `maker_of` takes.
    """
    return values.parts() if isinstance(values, Lazy) else values


def maker_of(values: Values | Lazy) -> Callable[[Parts], Values | Lazy]:
    """Return a function that makes what a layer is handed from its tensors, and holds none.

    Parameters
    ----------
    values : tuple of (Tensor, Tensor or None), or Lazy
        What the layer is handed.

    Returns
    -------
    callable
        From parts to values.
    """
    return values.maker() if isinstance(values, Lazy) else _pair


def _pair(parts: Parts) -> Values:
    weight, bias = parts
    if weight is None:
        raise TypeError("a layer must be handed a weight, got None.")
    return weight, bias
