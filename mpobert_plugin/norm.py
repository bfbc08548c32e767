"""LayerNorms and RMS norms whose weights and biases a bank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mpobert_plugin.errors import counted
from mpobert_plugin.reader import Reader
from mpobert_plugin.stacked import Place, StackedBank, handed_slices

if TYPE_CHECKING:
    from mpobert_plugin.lazy import Values
    from mpobert_plugin.norm_spec import NormSpec


class MPONormBank(StackedBank):
    """Weights, and biases where there are some, of the norms of one role.

    Parameters
    ----------
    spec : NormSpec
        Size and layer map.
    device, dtype : optional
        Where and in which element type the uninitialized tensors are made.

    Examples
    --------
    >>> from mpobert_plugin.norm_spec import NormSpec
    >>> bank = MPONormBank(NormSpec("output_norm", 8, 1e-12, slices=(0, 0, 1)))
    >>> tuple(bank.weight.shape)
    (2, 8)
    """

    def __init__(
        self, spec: NormSpec, device: Place = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(spec, device, dtype)
        self.spec: NormSpec = spec

    def slices(self) -> dict[str, Sequence[int]]:
        """Return, for weight and bias, the slice that each layer uses.

        Returns
        -------
        dict of str to sequence of int
            The same layer map for each.
        """
        return dict.fromkeys(self.tensors(), self.spec.slices)

    def all_values(self) -> Sequence[Values]:
        """Return weight and bias of every layer.

        Returns
        -------
        sequence of (Tensor, Tensor or None)
            In the order of the layers.
        """
        # Copies, since sharded parameters lose their storage when the bank's forward is over.
        return self._split([each.clone() for each in self.tensors().values()])

    def views(self) -> Sequence[Values]:
        """Return weight and bias of every layer as views, which see every write and hold no graph.

        Returns
        -------
        sequence of (Tensor, Tensor or None)
            In the order of the layers.
        """
        return self._split([each.detach() for each in self.tensors().values()])

    def _split(self, stacks: Sequence[Tensor]) -> Sequence[Values]:
        weights, *rest = (handed_slices(each, self.spec.slices) for each in stacks)
        biases = rest[0] if rest else [None] * len(weights)
        return list(zip(weights, biases, strict=True))

    def extra_repr(self) -> str:
        """Return sizes and sharing for printing.

        Returns
        -------
        str
            One line.
        """
        slices = counted(max(self.spec.slices) + 1, "slice")
        return f"{len(self.spec.slices)} x {self.spec.size}, {slices}"


class MPOLayerNorm(Reader):
    """A LayerNorm over the last axis that reads weight and bias from a bank.

    Parameters
    ----------
    bank : MPONormBank
        Owner of the tensors.
    layer : int
        Number of the layer.

    Examples
    --------
    >>> from mpobert_plugin.norm_spec import NormSpec
    >>> bank = MPONormBank(NormSpec("output_norm", 8, 1e-12, slices=(0, 0, 1)), device="meta")
    >>> tuple(MPOLayerNorm(bank, 2)(torch.ones(3, 8, device="meta")).shape)
    (3, 8)
    """

    def __init__(self, bank: MPONormBank, layer: int) -> None:
        super().__init__(bank, layer)
        self.normalized_shape = (bank.spec.size,)
        self.eps = bank.spec.eps
        self.role = bank.spec.role

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input.

        Parameters
        ----------
        x : Tensor
            (..., features).

        Returns
        -------
        Tensor
            Same shape.
        """
        weight, bias = self.values_beside(x)
        try:
            return layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        except RuntimeError as error:
            self.explain(x, self.normalized_shape[-1], error)
            raise

    def extra_repr(self) -> str:
        """Return size, role and layer for printing.

        Returns
        -------
        str
            One line.
        """
        return f"{self.normalized_shape}, eps={self.eps}, bank={self.role!r}, layer={self.layer}"


class MPORMSNorm(Reader):
    """An RMS norm over the last axis that reads its weight from a bank.

    It computes what Llama's norm does, step by step: the root mean square in float32, and the
    product with the weight in the element type of the input.

    Parameters
    ----------
    bank : MPONormBank
        Owner of the weights.
    layer : int
        Number of the layer.

    Examples
    --------
    >>> from mpobert_plugin.norm_spec import NormSpec
    >>> bank = MPONormBank(NormSpec("ffn_norm", 4, 0.0, slices=(0, 0), kind="rms"))
    >>> _ = torch.nn.init.ones_(bank.weight)
    >>> MPORMSNorm(bank, 1)(torch.tensor([1.0, 7.0, 5.0, 5.0])).tolist()
    [0.2, 1.4, 1.0, 1.0]
    """

    def __init__(self, bank: MPONormBank, layer: int) -> None:
        super().__init__(bank, layer)
        self.variance_epsilon = bank.spec.eps
        self.role = bank.spec.role

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input.

        Parameters
        ----------
        x : Tensor
            (..., features).

        Returns
        -------
        Tensor
            Same shape.
        """
        weight, _ = self.values_beside(x)
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return weight * (wide * torch.rsqrt(variance + self.variance_epsilon)).to(x.dtype)

    def extra_repr(self) -> str:
        """Return eps, role and layer for printing.

        Returns
        -------
        str
            One line.
        """
        return f"eps={self.variance_epsilon}, bank={self.role!r}, layer={self.layer}"
