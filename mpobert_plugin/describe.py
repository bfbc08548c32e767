"""Say who shares what, and check that it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import SharingError
from mpobert_plugin.locate import base_of, family_of, layer_names, prefix_of
from mpobert_plugin.parts import module_beside
from mpobert_plugin.reader import Reader
from mpobert_plugin.runtime import banks_of
from mpobert_plugin.sharing import encode, members
from mpobert_plugin.stacked import StackedBank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel


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
        each tensor its shape and the layers of each slice.

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
    lines = [f"{type(model).__name__}, {banks.plan.n_layers} layers, gauge {banks.plan.gauge}"]
    for role, bank in banks.items():
        if not isinstance(bank, StackedBank):
            continue
        lines.append(f"{role}: {bank.extra_repr()}{_error(bank)}")
        for name, tensor in bank.tensors().items():
            shape = " x ".join(str(size) for size in tensor.shape)
            lines.append(f"  {name:<13} {shape:<28} {_users(tuple(bank.slices()[name]))}")
    lines += [
        f"{spec.role}: plain matrix with an adapter of rank {spec.rank}"
        for spec in banks.plan.beside
        if _has_adapter(model, spec.role)
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


def _users(slices: tuple[int, ...]) -> str:
    number = max(slices) + 1
    if number == len(slices):
        return "each layer its own"
    if number == 1:
        return f"shared by layers 0 to {len(slices) - 1}"
    return f"slices of the layers: {encode(slices)}"


def assert_shared(model: PreTrainedModel) -> None:
    """Check that the layers share what the plan says: one bank, and slices of one tensor.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Raises
    ------
    SharingError
        When a layer reads another bank than the model's, a bank has other tensors than its plan,
        or two tensors that should be apart are one; the names are told.
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> assert_shared(mp.build("mpobert-12", head="none", device="meta"))
    """
    banks = banks_of(model)
    for name, reader, role in _readers(model):
        if reader.bank is not banks[role]:
            raise SharingError(
                f"{name} must read the bank {role!r} of the model, got another bank. It was "
                "copied apart from the model: copy the whole model instead."
            )
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


def _readers(model: PreTrainedModel) -> Iterator[tuple[str, Reader, str]]:
    family, base = family_of(model), base_of(model)
    for layer in layer_names(model):
        for role, path in {**family.matrices, **family.norms}.items():
            module = base.get_submodule(f"{layer}.{path}")
            if isinstance(module, Reader):
                yield f"{prefix_of(model)}{layer}.{path}", module, role
