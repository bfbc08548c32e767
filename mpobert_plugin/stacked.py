"""StackedBank: stacked parameters that the modules of all layers read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from mpobert_plugin.element_types import check_types
from mpobert_plugin.errors import PlacementError

if TYPE_CHECKING:
    from mpobert_plugin.lazy import Lazy, Values
    from mpobert_plugin.norm_spec import NormSpec
    from mpobert_plugin.reader import Reader
    from mpobert_plugin.spec import BankSpec

Place: TypeAlias = torch.device | str | None


def handed_slices(stack: Tensor, used: Sequence[int]) -> list[Tensor]:
    """Return the slice of each layer.

    Layers that use one slice get views of their own: their gradients are then added up at once
    and not one by one, in half precision with sums in float32.

    Parameters
    ----------
    stack : Tensor
        (slices, ...).
    used : sequence of int
        Number of the slice of each layer.

    Returns
    -------
    list of Tensor
        (...) each.

    Examples
    --------
    >>> [piece.tolist() for piece in handed_slices(torch.tensor([[1.0], [2.0]]), (0, 1, 0))]
    [[1.0], [2.0], [1.0]]
    """
    if not (torch.is_grad_enabled() and stack.requires_grad) or len(set(used)) == len(used):
        pieces = stack.unbind(0)
        return [pieces[number] for number in used]
    views = [
        iter(piece.expand(used.count(number), *piece.shape).unbind(0))
        for number, piece in enumerate(stack.unbind(0))
    ]
    return [next(views[number]) for number in used]


class StackedBank(nn.Module):
    """Stacked parameters that the modules of all layers read.

    Parameters
    ----------
    spec : BankSpec or NormSpec
        Sizes and layer maps.
    device, dtype : optional
        Where and in which element type the uninitialized tensors are made.
    """

    spec: BankSpec | NormSpec
    # Whether the one reader is no layer: the word embedding, the pooler.
    outside = False

    def __init__(
        self, spec: BankSpec | NormSpec, device: Place = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        self.role = spec.role
        self.name = spec.name
        self.names = tuple(spec.tensor_shapes())
        self.readers: list[Reader] = []
        for name, shape in spec.tensor_shapes().items():
            tensor = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(tensor))

    def tensors(self) -> dict[str, Tensor]:
        """Return the stacked parameters by name.

        Returns
        -------
        dict of str to Tensor
            The parameters themselves, or what stands in their place: a pruned or parametrized
            tensor, or the copy in a replica of the bank.
        """
        own = self._parameters
        # Many times in each forward, where nn.Module's way to an attribute is a long one.
        found = {name: own[name] for name in self.names if name in own}
        if len(found) < len(self.names):
            return {name: getattr(self, name) for name in self.names}
        return found  # type: ignore[return-value]

    def slices(self) -> dict[str, Sequence[int]]:
        """Return, for each stacked parameter, the slice that each layer uses.

        Returns
        -------
        dict of str to sequence of int
            Layer maps by the names of the parameters.
        """
        raise TypeError(f"{type(self).__name__} must say which slice a layer uses.")

    def all_values(self) -> Sequence[Values | Lazy]:
        """Return weight and bias of every layer.

        Returns
        -------
        sequence of (Tensor, Tensor or None)
            In the order of the layers.
        """
        raise TypeError(f"{type(self).__name__} must say what the layers read.")

    def values_of(self, slot: int) -> Values | Lazy:
        """Return weight and bias of one layer that is called by itself.

        Parameters
        ----------
        slot : int
            Position of the layer among those that read the bank.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        return self.all_values()[slot]

    def forward(self, slot: int | None = None) -> Sequence[Values | Lazy]:
        """Return the values of all layers, or of one that is called by itself.

        Readers get their values through a call of the bank, so that hooks on the bank see every
        use of its tensors: those of accelerate load them from disk and free them again.

        Parameters
        ----------
        slot : int, optional
            Position of the layer among those that read the bank; all of them by default.

        Returns
        -------
        sequence of (Tensor, Tensor or None)
            Weight and bias of each layer, or of the one.

        Raises
        ------
        PlacementError
            When the tensors of the bank are on several devices.
        ElementTypeError
            When some of them are in float64 and others are not.
        """
        self._check_tensors()
        return self.all_values() if slot is None else [self.values_of(slot)]

    def hand_out(self) -> None:
        """Give every reader its values for the coming forward of this thread."""
        values = self()
        for reader in self.readers:
            reader.hand(values[reader.slot])

    def withdraw(self) -> None:
        """Take back what was handed out in this thread, so that it can be freed."""
        for reader in self.readers:
            reader.hand(None)

    def _check_tensors(self) -> None:
        tensors = self.tensors()
        devices = [tensor.device for tensor in tensors.values()]
        if not all(device == devices[0] for device in devices):
            places = [f"{name!r} on {tensor.device}" for name, tensor in tensors.items()]
            raise PlacementError(
                f"the tensors of bank {self.name!r} must be on one device, got "
                f"{', '.join(places)}. Keep each bank whole in the device map."
            )
        check_types(self.name, tensors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StackedBank:
        self.withdraw()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]
