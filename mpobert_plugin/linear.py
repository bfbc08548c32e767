"""MPOLinear: a linear layer whose matrix a bank rebuilds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.compiler import is_compiling
from torch.nn.functional import linear

from mpobert_plugin.lazy import Lazy
from mpobert_plugin.reader import Reader

if TYPE_CHECKING:
    from torch import Tensor

    from mpobert_plugin.bank import MPOBank


class MPOLinear(Reader):
    """A linear map ``x @ W.T + b`` whose W and b come from a bank.

    It is no ``torch.nn.Linear``: code that writes into a weight would change nothing here.

    Parameters
    ----------
    bank : MPOBank
        Owner of the tensors.
    layer : int
        Number of the layer.

    Examples
    --------
    >>> import torch
    >>> from mpobert_plugin.bank import MPOBank
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 6, 4, (2, 3), (2, 2), (1, 4, 1), (0, 0), (0, 1), (0, 1))
    >>> layer = MPOLinear(MPOBank(spec), layer=1)
    >>> layer.in_features, layer.out_features, tuple(layer.weight.shape)
    (4, 6, (6, 4))
    """

    in_features: int
    out_features: int

    def __init__(self, bank: MPOBank, layer: int) -> None:
        super().__init__(bank, layer)
        self.in_features = bank.spec.cols
        self.out_features = bank.spec.rows
        self.role = bank.spec.role

    def forward(self, x: Tensor) -> Tensor:
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
        handed = self.handed
        try:
            # A compiled graph has the matrix as a value of its own.
            if isinstance(handed, Lazy) and handed.device == x.device and not is_compiling():
                return handed.linear(x)
            weight, bias = self.values_beside(x)
            return linear(x, weight, bias)
        except RuntimeError as error:
            self.explain(x, self.in_features, error)
            raise

    def extra_repr(self) -> str:
        """Return sizes, role and layer for printing.

        Returns
        -------
        str
            One line.
        """
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bank={self.role!r}, layer={self.layer}"
        )
