"""The matrix that a layer computes with, in double precision, whatever the model computes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import tensornet as tn
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConversionError

if TYPE_CHECKING:
    from mpobert_plugin.adapter import AdaptedLinear
    from mpobert_plugin.lazy import Values
    from mpobert_plugin.stacked import StackedBank


def exact_values(bank: StackedBank, slot: int, name: str) -> Values:
    """Return weight and bias of a layer; a matrix of cores comes in float64, adapter included.

    Parameters
    ----------
    bank : StackedBank
        Owner of the tensors.
    slot : int
        Position of the layer among those that read the bank.
    name : str
        Full name of the layer, for messages.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        Weight (rows, cols), and the bias as it is stored; a norm's weight as it is stored.

    Raises
    ------
    ConversionError
        When the tensors have no values here, or some that are not finite.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 6, 4, (2, 3), (2, 2), (1, 4, 1), (0, 0), (0, 1), (0, 1))
    >>> bank = mp.MPOBank(spec)
    >>> for tensor in bank.parameters():
    ...     _ = torch.nn.init.ones_(tensor)
    >>> exact_values(bank, 1, "query")[0].unique()
    tensor([4.], dtype=torch.float64)
    """
    of_layer = {
        kind: _present(f"{name} ({bank.role}.{kind})", tensor)[bank.slices()[kind][slot]].detach()
        for kind, tensor in bank.tensors().items()
    }
    bias = of_layer.pop("bias", None)
    if not isinstance(bank, MPOBank):
        return of_layer["weight"], bias
    matrix = _matrix(bank, {kind: _wide(tensor) for kind, tensor in of_layer.items()})
    return _finite(name, matrix), bias


def exact_adapted(layer: AdaptedLinear, name: str) -> Tensor:
    """Return the matrix of a plain layer with its adapter added, in float64.

    Parameters
    ----------
    layer : AdaptedLinear
        The layer.
    name : str
        Its full name, for messages.

    Returns
    -------
    Tensor
        (out_features, in_features).

    Raises
    ------
    ConversionError
        When the tensors have no values here, or some that are not finite.

    Examples
    --------
    >>> from mpobert_plugin.adapter import AdaptedLinear
    >>> exact_adapted(AdaptedLinear(3, 2, rank=1, alpha=1.0), "pooler").dtype
    torch.float64
    """
    parts = ("weight", "adapter_up", "adapter_down")
    weight, up, down = (
        _wide(_present(f"{name}.{part}", getattr(layer, part)).detach()) for part in parts
    )
    return _finite(name, weight + (layer.alpha / layer.rank) * (up @ down))


def _matrix(bank: MPOBank, tensors: dict[str, Tensor]) -> Tensor:
    spec = bank.spec
    layout = tn.MatrixLayout(spec.row_dims, spec.col_dims, spec.rows, spec.cols)
    cores = [
        tensors["central" if site == spec.central_site else f"auxiliary_{site}"]
        for site in range(len(spec.row_dims))
    ]
    matrix: Tensor = tn.contract_matrix(cores, layout)
    if spec.adapter_rank:
        matrix = matrix + spec.adapter_scale * (tensors["adapter_up"] @ tensors["adapter_down"])
    return matrix


def _wide(tensor: Tensor) -> Tensor:
    # Apple's GPUs have no double precision.
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def _present(name: str, tensor: Tensor) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter):
        raise ConversionError(
            f"{name} must be a whole tensor, got {type(tensor).__name__}. A tensor that is sharded "
            "over processes must be gathered first."
        )
    if tensor.is_meta:
        raise ConversionError(
            f"{name} must have values, got a tensor on the meta device. Load the model without "
            "device_map, or fill it with load_state_dict."
        )
    return tensor


def _finite(name: str, matrix: Tensor) -> Tensor:
    bad = int((~torch.isfinite(matrix)).sum())
    if bad:
        raise ConversionError(
            f"the matrix of {name} must be finite, got {bad} non-finite of {matrix.numel()} "
            "entries. The model has diverged: go back to an earlier checkpoint."
        )
    return matrix
