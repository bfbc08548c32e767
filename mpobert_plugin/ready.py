"""Ready: what one forward without gradient was handed, to be handed to the next one at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn.modules.module import _has_any_global_hook

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.kernels import PLAIN
from mpobert_plugin.norm import MPONormBank
from mpobert_plugin.stacked import handed_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mpobert_plugin.handed import Slot
    from mpobert_plugin.kept import Together
    from mpobert_plugin.lazy import Values
    from mpobert_plugin.stacked import StackedBank

Marks: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Ready:
    """Values of the readers of plain banks, which stand while all that they come from does.

    Parameters
    ----------
    known : Together
        The matrices, by the look at the cores that found them unchanged.
    marks : tuple
        Where biases and norms are in memory: what is handed are views, which see every write.
    handed : tuple of (Slot, (Tensor, Tensor or None))
        Each reader's place, and what belongs there.
    others : tuple of StackedBank
        Banks that hand out by themselves.
    """

    known: Together
    marks: Marks
    handed: tuple[tuple[Slot, Values], ...]
    others: tuple[StackedBank, ...]

    def hand_out(self) -> None:
        """Give every reader its values for the coming forward of this thread."""
        for slot, values in self.handed:
            slot.values = values
        for bank in self.others:
            bank.hand_out()

    def withdraw(self) -> None:
        """Take back what was handed out in this thread."""
        for slot, _ in self.handed:
            slot.values = None
        for bank in self.others:
            bank.withdraw()


def made_ready(
    banks: Sequence[StackedBank], known: Together | None, before: Ready | None
) -> Ready | None:
    """Return what can be handed out as it was, or None where banks are to be asked.

    Parameters
    ----------
    banks : sequence of StackedBank
        All banks of a model, which have looked at their tensors for this forward.
    known : Together or None
        What the look has found.
    before : Ready or None
        What the last call has returned.

    Returns
    -------
    Ready or None
        None with gradients, and where a bank has hooks, keeps no matrices, or has tensors that
        are no plain ones.
    """
    # What others have put around every call of a module has to see those of the banks.
    hooked = _has_any_global_hook()  # type: ignore[no-untyped-call]
    if known is None or torch.is_grad_enabled() or hooked:
        return None
    plain = [bank for bank in banks if type(bank) in (MPOBank, MPONormBank)]
    marks = _marks(plain)
    if marks is None:
        return None
    if before is not None and before.known is known and before.marks == marks:
        return before
    handed: list[tuple[Slot, Values]] = []
    for bank in plain:
        values = _values(bank)
        if values is None:
            return None
        handed += [(reader.place, values[reader.slot]) for reader in bank.readers]
    others = tuple(bank for bank in banks if type(bank) not in (MPOBank, MPONormBank))
    return Ready(known, marks, tuple(handed), others)


def _marks(banks: Sequence[StackedBank]) -> Marks | None:
    found: list[Any] = [torch.is_inference_mode_enabled()]
    for bank in banks:
        # What others have put around the call of a bank has to see every use of its tensors.
        if bank._forward_pre_hooks or bank._forward_hooks or "forward" in vars(bank):
            return None
        found.append(len(bank.readers))
        for tensor in _beside(bank):
            if type(tensor) not in PLAIN or tensor.is_meta:
                return None
            found += (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    return tuple(found)


def _beside(bank: StackedBank) -> list[Tensor]:
    """Return the tensors of a bank that no look goes to."""
    if isinstance(bank, MPONormBank):
        return list(bank.tensors().values())
    return [] if bank.spec.bias is None else [bank.tensors()["bias"]]  # type: ignore[union-attr]


def _values(bank: StackedBank) -> Sequence[Values] | None:
    if isinstance(bank, MPONormBank):
        return bank.views()
    if not isinstance(bank, MPOBank) or bank.trust.kept is None:
        return None
    weights, biases = bank.trust.kept.weights, bank.spec.bias
    if biases is None:
        return [(weight, None) for weight in weights]
    # A view of a parameter itself would keep others from putting one in its place.
    views = handed_slices(bank.tensors()["bias"].detach(), biases)
    return list(zip(weights, views, strict=True))
