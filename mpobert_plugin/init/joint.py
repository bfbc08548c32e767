"""Layers that differ, decomposed together: common central tensors, auxiliary ones of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

import tensornet as tn
from mpobert_plugin.errors import ConfigError, ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpobert_plugin.meter import Meter

JOINT_GAUGES = ("symmetric", "central")
# Five sweeps in a row must lower the error by this share of it each, or the fit ends.
_TOLERANCE = 1e-3
# Share of the largest mean eigenvalue below which a direction of a bond is not scaled further.
_UNUSED = 1e-12


def check_gauge(gauge: str) -> None:
    """Refuse gauges that cores in common cannot have.

    Parameters
    ----------
    gauge : str
        Gauge that was asked for.

    Raises
    ------
    ConfigError
        When it is not 'symmetric' or 'central'.

    Examples
    --------
    >>> check_gauge("central")
    """
    if gauge not in JOINT_GAUGES:
        raise ConfigError(
            f"gauge must be 'symmetric' or 'central' with fit='joint', which leaves the norm where "
            f"layers share it, got {gauge!r}. Leave gauge out. Nothing was changed."
        )


def joint_cores(
    layout: tn.MatrixLayout,
    bonds: tuple[int, ...],
    matrices: Sequence[tuple[str, Tensor]],
    weights: Sequence[float],
    gauge: str,
    meter: Meter,
    metrics: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return cores of several matrices whose central core is one.

    Parameters
    ----------
    layout : tensornet.MatrixLayout
        Sites of the matrices.
    bonds : tuple of int
        Bonds, 1 at both ends.
    matrices : sequence of (str, Tensor)
        Full name and (rows, cols) matrix.
    weights : sequence of float
        Weight of each matrix's squared error.
    gauge : str
        'central' or 'symmetric', both in the mean over the matrices.
    meter : Meter
        Told of every sweep.
    metrics : sequence of Tensor, shape (cols, cols), optional
        For each matrix H of its inputs; errors are then those of the outputs.

    Returns
    -------
    tuple of Tensor
        For each site (matrices, left, i, j, right), with (1, left, i, j, right) at the central
        one, in double precision.

    Raises
    ------
    ConversionError
        When the matrices cannot be decomposed.
    """
    stack = torch.stack([matrix.detach().double() for _, matrix in matrices])
    try:
        found = tn.shared_mpo(
            stack,
            layout,
            bonds=bonds,
            weights=weights,
            metric=metrics,
            tol=_TOLERANCE,
            progress=meter.sweep,
        )
    except tn.errors.TensorNetError as error:
        raise ConversionError(
            f"{matrices[0][0]} to {matrices[-1][0]} cannot be decomposed together: {error}"
        ) from error
    cores = tuple(found.stacks)
    return _evened(cores, layout.n_sites // 2) if gauge == "symmetric" else cores


def _evened(cores: tuple[Tensor, ...], centre: int) -> tuple[Tensor, ...]:
    """Move half of the norm across every bond, by changes of basis that all matrices share.

    The cores of the sides are isometric in the mean, so that the mean Gram matrix of everything
    beyond a bond, seen from its end, holds the squared singular values there in the mean.
    """
    made = list(cores)
    for k, (before, after) in _changes(cores, centre).items():
        made[k - 1] = torch.einsum("alijr,rs->alijs", made[k - 1], before)
        made[k] = torch.einsum("sl,alijr->asijr", after, made[k])
    return tuple(made)


def _changes(cores: tuple[Tensor, ...], centre: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Return for each inner bond a matrix for the core before it, and its inverse for the other."""
    changes = {}
    gram = torch.ones(1, 1, dtype=cores[0].dtype, device=cores[0].device)
    for k in range(centre, 0, -1):
        gram = _beyond(cores[k], None if k == centre else gram)
        vectors, roots = _fourth_roots(gram)
        changes[k] = vectors * roots, (vectors / roots).T
    for k in range(centre, len(cores) - 1):
        core = cores[k].permute(0, 4, 2, 3, 1)
        gram = _beyond(core, None if k == centre else gram)
        vectors, roots = _fourth_roots(gram)
        changes[k + 1] = vectors / roots, (vectors * roots).T
    return changes


def _beyond(core: Tensor, gram: Tensor | None) -> Tensor:
    """Return the mean Gram matrix of a core's left bond, given that of its right one."""
    seen = core if gram is None else torch.einsum("alijr,rs->alijs", core, gram)
    return torch.einsum("alijr,amijr->lm", seen, core) / core.shape[0]


def _fourth_roots(gram: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    largest = values[-1]
    if not bool(largest > 0.0):
        return vectors, torch.ones_like(values)
    return vectors, values.clamp_min(_UNUSED * largest) ** 0.25
