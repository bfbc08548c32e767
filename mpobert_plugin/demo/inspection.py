"""Compares the rebuilt matrices of an MPOBERT with those of the ALBERT it was made from."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

import mpobert_plugin as mp
import tensornet as tn


@dataclass(frozen=True)
class MatrixReport:
    """One matrix of the first layer: sizes, bonds and errors (relative, Frobenius).

    ``measured`` is the error of the stored cores, multiplied out in float64; ``spectrum`` holds
    the singular values at the largest bond, descending.
    """

    name: str
    rows: int
    columns: int
    bonds: tuple[int, ...]
    certified: float
    measured: float
    spectrum: tuple[float, ...]


def inspect_matrices(albert: PreTrainedModel, model: PreTrainedModel) -> list[MatrixReport]:
    """Return a report for every matrix of the first layer of ``model``.

    Parameters
    ----------
    albert : transformers.PreTrainedModel
        The plain model, whose layers use one set of weights.
    model : transformers.PreTrainedModel
        What :func:`mpobert_plugin.from_albert` made from it.

    Returns
    -------
    list of MatrixReport
        In the order of the layer.
    """
    plain = dict(albert.named_modules())
    exact = copy.deepcopy(model).double()
    reports = []
    for name, certificate in mp.certificates(model).items():
        if name not in plain:  # a layer beyond the one set of weights
            continue
        original, module = _weight(plain[name]).double(), exact.get_submodule(name)
        network = tn.mpo(original)
        bonds = tuple(network.bond_dims)
        largest = max(range(1, len(bonds) - 1), key=lambda bond: bonds[bond])
        reports.append(
            MatrixReport(
                name=str(getattr(module, "role", name)).replace("_", " "),
                rows=original.shape[0],
                columns=original.shape[1],
                bonds=bonds,
                certified=certificate.relative_error,
                measured=float((_weight(module) - original).norm() / original.norm()),
                spectrum=tuple(float(value) for value in network.singular_values(largest)),
            )
        )
    return reports


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    if not isinstance(weight, Tensor):
        raise TypeError(f"module must have a weight tensor, got {type(module).__name__}.")
    return weight.detach()
