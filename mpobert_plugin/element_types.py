"""Element types that cannot be computed with together are told in the words of a bank."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.errors import ElementTypeError
from mpobert_plugin.halves import AUTOCAST_DEVICES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def check_types(bank: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse float64 beside narrower types in one bank; any others are joined in float32.

    Parameters
    ----------
    bank : str
        Name of the bank.
    tensors : mapping of str to Tensor
        Its tensors by name.

    Raises
    ------
    ElementTypeError
        With the type of each tensor.

    Examples
    --------
    >>> check_types("query", {"central": torch.ones(1), "bias": torch.ones(1).half()})
    """
    wide = [tensor.dtype == torch.float64 for tensor in tensors.values()]
    if any(wide) and not all(wide):
        raise ElementTypeError(
            f"the tensors of bank {bank!r} must all be in float64 or none of them, got "
            f"{_listed(tensors)}. {_ONE_TYPE}."
        )


def explain(
    bank: str, tensors: Mapping[str, Tensor], x: Tensor, width: int, error: RuntimeError
) -> None:
    """Raise an error of the package's own where types are why torch could not apply a layer.

    It is asked once torch has failed, so that no forward takes time for it.

    Parameters
    ----------
    bank : str
        Name of the bank that the layer reads.
    tensors : mapping of str to Tensor
        Tensors of the bank by name.
    x : Tensor
        Input of the layer.
    width : int
        Number of features that the input must have.
    error : RuntimeError
        What torch has raised.

    Raises
    ------
    ElementTypeError
        When types differ that neither torch nor autocast, where it is on, brings together.

    Examples
    --------
    >>> explain("query", {"central": torch.ones(1)}, torch.ones(1), 1, RuntimeError())
    """
    kind = x.device.type
    cast = kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind)
    right = x.shape[-1:] == (width,)
    same = {tensor.dtype for tensor in tensors.values()} == {x.dtype}
    # What has a class of its own, such as too little memory, says itself what is wrong.
    if same or type(error) is not RuntimeError:
        return
    # Where types may differ, or another fault is there, torch says which one it has met.
    if (cast or not right) and not _ON_TYPES.search(str(error)):
        return
    also = "" if right else f" Its last axis must have {width} entries, got {tuple(x.shape)}."
    raise ElementTypeError(
        (_of_input(bank, tensors, x, cast) or _of_bank(bank, tensors, x, cast)) + also
    ) from error


_ON_TYPES = re.compile(r"\bdtype|datatype|scalar type|not implemented for '")
_ONE_TYPE = "Give the whole model one type, as model.float() does"


def _of_input(bank: str, tensors: Mapping[str, Tensor], x: Tensor, cast: bool) -> str | None:
    """Return what is wrong with an input, or None where the bank is to be told."""
    types = {tensor.dtype for tensor in tensors.values()}
    # Autocast brings all floating-point types together but this one.
    left = cast and x.dtype == torch.float64 and x.dtype not in types
    if x.is_floating_point() and not left:
        return None
    wanted = types.pop() if len(types) == 1 else torch.float32
    return (
        f"the input of the layers of bank {bank!r} must be in {_word(wanted)}, got "
        f"{_word(x.dtype)}. Give it that type, as x.to({wanted}) does."
    )


def _of_bank(bank: str, tensors: Mapping[str, Tensor], x: Tensor, cast: bool) -> str:
    as_input = f"{_word(x.dtype)} as the input of its layers"
    wanted = "float32 under torch.autocast" if cast else as_input
    wide = torch.float64 in (x.dtype, *(tensor.dtype for tensor in tensors.values()))
    if cast:
        remedy = "Give the whole model float32, as model.float() does, or leave autocast out."
    elif wide:
        remedy = f"{_ONE_TYPE}."
    else:
        remedy = f"{_ONE_TYPE}, or put torch.autocast around the forward."
    return f"the tensors of bank {bank!r} must be in {wanted}, got {_listed(tensors)}. {remedy}"


def _listed(tensors: Mapping[str, Tensor]) -> str:
    names: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(tensor.dtype, []).append(name)
    return " and ".join(f"{_word(dtype)} in {', '.join(of)}" for dtype, of in names.items())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
