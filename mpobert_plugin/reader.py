"""Reader: a module of a layer that reads its values from a bank and owns no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from mpobert_plugin.element_types import explain
from mpobert_plugin.errors import ConfigError, PlacementError
from mpobert_plugin.handed import Slot
from mpobert_plugin.lazy import Lazy, Values
from mpobert_plugin.saved import uncounted

if TYPE_CHECKING:
    from mpobert_plugin.stacked import StackedBank


class Reader(nn.Module):
    """A module that asks its bank for weight and bias.

    Parameters
    ----------
    bank : MPOBank or MPONormBank
        Where the values are. The reference is not registered, so that the tensors are listed,
        saved and moved once, by the bank.
    layer : int
        Number of the layer in the model; `slot` is its position among those that read the bank.

    Raises
    ------
    ConfigError
        When the layer does not read the bank.
    """

    bank: StackedBank
    layer: int
    slot: int

    def __init__(self, bank: StackedBank, layer: int) -> None:
        super().__init__()
        # Past nn.Module.__setattr__, which would register the bank as a child.
        object.__setattr__(self, "bank", bank)
        self.layer = layer
        self.slot = slot_of(bank, layer)
        self._slot = Slot()
        # transformers' initialization goes by class names and would write into the shared bank.
        self._is_hf_initialized = True
        bank.readers.append(self)

    @property
    def handed(self) -> Values | Lazy | None:
        """Weight and bias for the forward that runs in this thread; None outside a forward."""
        return self._slot.values

    @property
    def place(self) -> Slot:
        """Where values are put for a forward."""
        return self._slot

    def hand(self, values: Values | Lazy | None) -> None:
        """Take weight and bias for the coming forward of this thread, or None after it.

        Parameters
        ----------
        values : tuple of (Tensor, Tensor or None), Lazy or None
            Weight and bias, or how to do without them.
        """
        self._slot.values = values

    def values(self) -> Values:
        """Return weight and bias: those handed out for this forward, or the layer's own.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        handed = self.handed
        if isinstance(handed, Lazy):
            with uncounted():
                return handed.values()
        if handed is not None:
            return handed
        with uncounted():
            own: Values = self.bank(self.slot)[0]
        return own

    def values_beside(self, x: Tensor) -> Values:
        """Return weight and bias on the device of an input.

        Parameters
        ----------
        x : Tensor
            What the layer is called with.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias; copies when the bank is on another device than the layer's input.

        Raises
        ------
        PlacementError
            When the tensors of the bank are on the meta device and the input is not.
        """
        handed = self._slot.values
        # The usual case first: every layer asks in every forward.
        if type(handed) is tuple and handed[0].device == x.device:
            return handed
        weight, bias = self.values()
        if weight.device == x.device:
            return weight, bias
        if weight.is_meta:
            raise PlacementError(
                f"the tensors of bank {self.bank.name!r} must hold values, got tensors on meta "
                f"for an input on {x.device}. Load them, or move the model with to_empty and "
                "load_state_dict."
            )
        return weight.to(x.device), None if bias is None else bias.to(x.device)

    def explain(self, x: Tensor, width: int, error: RuntimeError) -> None:
        """Ask `element_types.explain` about the tensors of the bank; see there."""
        explain(self.bank.name, self.bank.tensors(), x, width, error)

    @property
    def weight(self) -> Tensor:
        """A copy of the layer's weight: writing into it changes neither the bank nor its cache."""
        return self.values()[0].clone()

    @property
    def bias(self) -> Tensor | None:
        """A copy of the layer's bias, or None: writing into it changes nothing in the bank."""
        bias = self.values()[1]
        return None if bias is None else bias.clone()


def slot_of(bank: StackedBank, layer: int) -> int:
    """Return the position of a layer among those that read a bank.

    Parameters
    ----------
    bank : StackedBank
        The bank.
    layer : int
        Number of the layer in the model.

    Returns
    -------
    int
        Index into the values of the bank.

    Raises
    ------
    ConfigError
        When the layer does not read the bank.

    Examples
    --------
    >>> from mpobert_plugin.norm import MPONormBank
    >>> from mpobert_plugin.norm_spec import NormSpec
    >>> slot_of(MPONormBank(NormSpec("output_norm", 8, 1e-12, slices=(0, 0, 1))), 2)
    2
    """
    slot = bank.spec.slot_of(layer)
    if slot is None:
        raise ConfigError(
            f"layer must be one of those that read bank {bank.name!r}, "
            f"{list(bank.spec.layer_numbers)}, got {layer}."
        )
    return slot
