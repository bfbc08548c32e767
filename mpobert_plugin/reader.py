"""Reader: a module of a layer that reads its values from a bank and owns no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

if TYPE_CHECKING:
    from mpobert_plugin.stacked import StackedBank

Values: TypeAlias = tuple[Tensor, Tensor | None]


class Reader(nn.Module):
    """A module that asks its bank for weight and bias.

    Parameters
    ----------
    bank : MPOBank or MPONormBank
        Where the values are. The reference is not registered, so that the tensors are listed,
        saved and moved once, by the bank.
    layer : int
        Number of the layer.
    """

    bank: StackedBank
    layer: int
    handed: Values | None

    def __init__(self, bank: StackedBank, layer: int) -> None:
        super().__init__()
        # Past nn.Module.__setattr__, which would register the bank as a child.
        object.__setattr__(self, "bank", bank)
        self.layer = layer
        self.handed = None
        # transformers' initialization goes by class names and would write into the shared bank.
        self._is_hf_initialized = True
        bank.readers.append(self)

    def values(self) -> Values:
        """Return weight and bias: those handed out for this forward, or the layer's own.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        handed = self.handed
        return self.bank.values_of(self.layer) if handed is None else handed

    @property
    def weight(self) -> Tensor:
        """The layer's weight as the bank gives it; read only."""
        return self.values()[0]

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias as the bank gives it; read only."""
        return self.values()[1]

    def __getstate__(self) -> dict[str, Any]:
        # What is handed out belongs to one forward and its graph; copies start without.
        return {**self.__dict__, "handed": None}
