"""Element types that cannot be computed with together are told in the words of a bank."""

from __future__ import annotations

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
            f"{_listed(tensors)}. {_REMEDY}"
        )


def explain(bank: str, tensors: Mapping[str, Tensor], x: Tensor, error: RuntimeError) -> None:
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
    error : RuntimeError
        What torch has raised.

    Raises
    ------
    ElementTypeError
        When types differ and autocast, which would bring them together, is off.

    Examples
    --------
    >>> explain("query", {"central": torch.ones(1)}, torch.ones(1), RuntimeError())
    """
    kind = x.device.type
    cast = kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind)
    same = {tensor.dtype for tensor in tensors.values()} == {x.dtype}
    # What has a class of its own, such as too little memory, says itself what is wrong.
    if cast or same or type(error) is not RuntimeError:
        return
    raise ElementTypeError(
        f"the tensors of bank {bank!r} must be in {_word(x.dtype)} as the input of its layers, got "
        f"{_listed(tensors)}. {_REMEDY}"
    ) from error


_REMEDY = (
    "Give the whole model one type, as model.float() does, or put torch.autocast around the "
    "forward."
)


def _listed(tensors: Mapping[str, Tensor]) -> str:
    names: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(tensor.dtype, []).append(name)
    return " and ".join(f"{_word(dtype)} in {', '.join(of)}" for dtype, of in names.items())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
