"""MPOLayerNorm: a LayerNorm whose weight and bias a bank holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import layer_norm

from mpobert_plugin.reader import Reader

if TYPE_CHECKING:
    from torch import Tensor

    from mpobert_plugin.bank import MPONormBank


class MPOLayerNorm(Reader):
    """A LayerNorm over the last axis that reads weight and bias from a bank.

    Parameters
    ----------
    bank : MPONormBank
        Owner of the tensors.
    layer : int
        Number of the layer.
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
        weight, bias = self.values()
        return layer_norm(x, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self) -> str:
        """Return size, role and layer for printing.

        Returns
        -------
        str
            One line.
        """
        return f"{self.normalized_shape}, eps={self.eps}, bank={self.role!r}, layer={self.layer}"
