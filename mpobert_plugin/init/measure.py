"""How far the matrices of a bank, as stored, are from those of the model; adapters that help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import tensornet as tn
from mpobert_plugin.adapter import init_adapter
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.init.damping import damped
from mpobert_plugin.init.residual import fit_adapter
from mpobert_plugin.init.stacks import layout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpobert_plugin.init.stacks import Layers, Stacks
    from mpobert_plugin.spec import BankSpec


@dataclass(frozen=True)
class Measured:
    """Errors of the matrices of a bank by slot.

    Parameters
    ----------
    errors : tuple of float
        Relative Frobenius errors.
    norms : tuple of float
        Frobenius norms of the matrices.
    outputs : tuple of float
        Relative errors of the outputs, root mean square over the calibration inputs; empty
        without calibration.
    """

    errors: tuple[float, ...]
    norms: tuple[float, ...]
    outputs: tuple[float, ...] = ()


def add_adapters(
    spec: BankSpec,
    stacks: Stacks,
    layers: Layers,
    metrics: Sequence[Tensor] | None,
    residual: bool,
) -> None:
    """Add the adapters of a bank to its tensors.

    Parameters
    ----------
    spec : BankSpec
        Sizes; without an adapter nothing is added.
    stacks : Stacks
        Cores; changed in place.
    layers : list of (str, Tensor)
        Full name and matrix of each layer that reads the bank.
    metrics : sequence of Tensor, optional
        For each layer the mean of x x^T over its inputs.
    residual : bool
        Whether the adapters make up for what the cores leave; they change nothing otherwise.
    """
    shapes = spec.tensor_shapes()
    names = [name for name in ("adapter_up", "adapter_down") if name in shapes]
    for name in names:
        stacks.tensors[name] = layers[0][1].detach().new_empty(shapes[name])
    if not names:
        return
    up, down = (stacks.tensors[name] for name in names)
    init_adapter(up, down)
    for slot, (full, matrix) in enumerate(layers if residual else ()):
        wide = matrix.detach().double()
        left = wide - rebuilt(spec, stacks, slot)
        metric = None if metrics is None else damped(metrics[slot].double())
        norm = float(torch.linalg.vector_norm(wide))
        fitted = fit_adapter(left, spec.adapter_rank, spec.adapter_scale, metric, norm)
        up[slot], down[slot] = (factor.to(up.dtype) for factor in fitted)
        if not bool(torch.isfinite(up[slot]).all() & torch.isfinite(down[slot]).all()):
            raise ConversionError(
                f"the adapter of {full} must fit into {up.dtype}, got entries that are too large "
                f"with adapter_alpha={spec.adapter_alpha:g}, by which they are multiplied after. "
                "Raise it, or leave it out. Nothing was changed."
            )


def rebuilt(spec: BankSpec, stacks: Stacks, slot: int) -> Tensor:
    """Return the matrix that the stored cores of a layer make, without its adapter.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.
    stacks : Stacks
        Cores.
    slot : int
        Position of the layer among those that read the bank.

    Returns
    -------
    Tensor
        (rows, cols), in double precision.
    """
    cores = [
        stacks.tensors["central"][spec.central[slot]]
        if site == spec.central_site
        else stacks.tensors[f"auxiliary_{site}"][spec.auxiliary[slot]]
        for site in range(len(spec.row_dims))
    ]
    matrix: Tensor = tn.contract_matrix([core.double() for core in cores], layout_of(spec))
    return matrix


def measured(
    spec: BankSpec,
    stacks: Stacks,
    layers: Layers,
    metrics: Sequence[Tensor] | None,
    residual: bool,
) -> Measured:
    """Return the errors of a bank's matrices as they are stored, adapters included.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.
    stacks : Stacks
        Cores and adapters.
    layers : list of (str, Tensor)
        Full name and matrix of each layer that reads the bank.
    metrics : sequence of Tensor, optional
        For each layer the mean of x x^T over its inputs.
    residual : bool
        Whether the adapters hold anything.

    Returns
    -------
    Measured
        Six digits of each error and norm.
    """
    found = []
    for slot, (_, matrix) in enumerate(layers):
        certificate = stacks.certificates.get(slot)
        adapted = residual and spec.adapter_rank > 0
        if certificate is not None and metrics is None and not adapted:
            found.append((certificate.relative_error, certificate.norm, 0.0))
            continue
        wide = matrix.detach().double()
        missing = wide - rebuilt(spec, stacks, slot)
        if adapted:
            up, down = stacks.tensors["adapter_up"][slot], stacks.tensors["adapter_down"][slot]
            missing -= spec.adapter_scale * (up.double() @ down.double())
        metric = None if metrics is None else metrics[slot]
        found.append(_errors(wide, missing, metric))
    errors, norms, outputs = (tuple(map(_rounded, column)) for column in zip(*found, strict=True))
    return Measured(errors, norms, () if metrics is None else outputs)


def _errors(matrix: Tensor, missing: Tensor, metric: Tensor | None) -> tuple[float, float, float]:
    """Return relative error, norm, and relative error of the output."""
    norm = float(torch.linalg.vector_norm(matrix))
    error = float(torch.linalg.vector_norm(missing))
    output = 0.0
    if metric is not None:
        wide = metric.double()
        output = _relative(_seen(missing, wide), _seen(matrix, wide))
    return _relative(error, norm), norm, output


def _seen(matrix: Tensor, metric: Tensor) -> float:
    """Return the norm of a matrix in a metric."""
    return math.sqrt(max(float(((matrix @ metric) * matrix).sum()), 0.0))


def _relative(error: float, norm: float) -> float:
    return error / norm if norm else error


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
