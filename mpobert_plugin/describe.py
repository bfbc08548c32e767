"""Say who shares what, and check that it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.errors import SharingError
from mpobert_plugin.locate import family_of
from mpobert_plugin.parts import module_beside
from mpobert_plugin.places import layers_of, misplaced
from mpobert_plugin.plan import plain_layers
from mpobert_plugin.runtime import banks_of
from mpobert_plugin.sharing import encode, members
from mpobert_plugin.stacked import StackedBank

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.norm_spec import NormSpec
    from mpobert_plugin.spec import BankSpec


def describe(model: PreTrainedModel) -> str:
    """Return a table of who shares what in a converted model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    str
        For each bank its matrices, the error of their decomposition (relative, Frobenius), and for
        each tensor its shape and the layers of each slice. Places where something else stands
        than what was converted follow.

    Raises
    ------
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> text = describe(mp.build("mpobert-12", head="none", device="meta"))
    >>> print(text.splitlines()[1])
    query: 12 x (768 x 768), bonds 1 16 256 144 9 1, 1 central, 12 auxiliary
    """
    banks = banks_of(model)
    layers = f"{len(layers_of(model))} layers"
    lines = [f"{type(model).__name__}, {layers}, gauge {banks.plan.gauge}"]
    for key, bank in banks.items():
        if not isinstance(bank, StackedBank):
            continue
        lines.append(f"{key}: {bank.extra_repr()}{_error(bank)}")
        # What was taken away is told below.
        there = all(isinstance(getattr(bank, name, None), Tensor) for name in bank.names)
        for name, tensor in bank.tensors().items() if there else ():
            shape = " x ".join(str(size) for size in tensor.shape)
            users = "one matrix" if bank.outside else _users(tuple(bank.slices()[name]), bank.spec)
            lines.append(f"  {name:<13} {shape:<28} {users}")
    lines += plain_layers(banks.plan)
    lines += [
        f"{name}: reads the matrix of the embedding"
        for name, module in model.named_modules()
        if isinstance(module, MPOHead)
    ]
    lines += [
        f"{spec.role}: plain matrix with an adapter of rank {spec.rank}"
        for spec in banks.plan.beside
        if _has_adapter(model, spec.role)
    ]
    # The banks are as they were; what was changed around them is told too.
    lines += [
        f"{place.name}: must {place.expected}, got {place.found}" for place in misplaced(model)
    ]
    return "\n".join(lines)


def _has_adapter(model: PreTrainedModel, role: str) -> bool:
    """Tell whether a model has what the plan adapts: one with another head may lack the pooler."""
    return isinstance(module_beside(model, family_of(model).beside[role]), AdaptedLinear)


def _error(bank: StackedBank) -> str:
    errors = bank.spec.errors if isinstance(bank, MPOBank) else ()
    if not errors:
        return ""
    low, high = min(errors), max(errors)
    return f", error {low:.3g}" if low == high else f", error {low:.3g} to {high:.3g}"


def _users(slices: tuple[int, ...], spec: BankSpec | NormSpec) -> str:
    numbers, number = spec.layer_numbers, max(slices) + 1
    some = numbers != tuple(range(len(numbers)))
    told = f"layers {encode(numbers)}" if some else f"layers 0 to {len(slices) - 1}"
    if number == len(slices):
        return f"each layer its own ({told})" if some else "each layer its own"
    if number == 1:
        return f"shared by {told}"
    return f"slices of {told if some else 'the layers'}: {encode(slices)}"


def assert_shared(model: PreTrainedModel) -> None:
    """Check that the layers share what the plan says: one bank, and slices of one tensor.

    What wraps a module, as LoRA of PEFT and compiled modules do, may stand in its place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Raises
    ------
    SharingError
        When layers were removed, added or reordered, when something else stands in the place of
        what reads a bank, when a layer reads another bank than the model's, a bank has other
        tensors than its plan, or two tensors that should be apart are one; the names are told.
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> assert_shared(mp.build("mpobert-12", head="none", device="meta"))
    """
    banks = banks_of(model)
    for place in misplaced(model):
        raise SharingError(str(place))
    owners: dict[int, str] = {}
    for role, bank in banks.items():
        if isinstance(bank, StackedBank):
            _check_bank(role, bank, owners)


def _check_bank(role: str, bank: StackedBank, owners: dict[int, str]) -> None:
    for name, tensor in bank.tensors().items():
        slices = tuple(bank.slices()[name])
        if tensor.shape[0] != max(slices) + 1:
            raise SharingError(
                f"{name} of bank {role!r} must have {max(slices) + 1} slices, got "
                f"{tensor.shape[0]}."
            )
        other = owners.setdefault(id(tensor), f"{role}.{name}")
        if other != f"{role}.{name}":
            raise SharingError(f"{role}.{name} and {other} must be two tensors, got one.")
        for users in members(slices):
            _check_slice(f"{role}.{name}", tensor, slices, users)


def _check_slice(name: str, tensor: Tensor, slices: tuple[int, ...], users: list[int]) -> None:
    if tensor.is_meta:
        return
    addresses = {tensor[slices[layer]].data_ptr() for layer in users}
    if len(addresses) != 1:
        raise SharingError(f"layers {users} must read one slice of {name}, got {len(addresses)}.")
