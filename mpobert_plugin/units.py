"""Units of a budget: layers of a role that share a central tensor, and matrices outside layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.init.shared import share
from mpobert_plugin.init.stacks import layout_of
from mpobert_plugin.sharing import members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tensornet as tn
    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.init.source import Named
    from mpobert_plugin.init.stacks import Layers
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.spec import BankSpec


@dataclass(frozen=True)
class Unit:
    """Matrices that get their bonds together.

    Parameters
    ----------
    spec : BankSpec
        The bank of all layers that they are from.
    group : int
        Their central slice.
    matrix : Tensor
        (rows, cols), or (matrices, rows, cols) where each keeps auxiliary tensors of its own.
    weight : float
        What the squared relative error of the matrix counts.
    sides : int
        Number of slices of the auxiliary tensors.
    plain : int
        Number of plain matrices that are stored without the conversion.
    may_stay : bool
        Whether the layers may keep their plain matrices.
    """

    spec: BankSpec
    group: int
    matrix: Tensor
    weight: float
    sides: int
    plain: int
    may_stay: bool

    @property
    def name(self) -> str:
        """Role and central slice."""
        return f"{self.spec.role} {self.group}"

    @property
    def layout(self) -> tn.MatrixLayout:
        """Sites of the matrices."""
        return layout_of(self.spec)

    @property
    def copies(self) -> tuple[int, int, int]:
        """Numbers of side cores, central cores and plain matrices for `tensornet.allocate`."""
        # What must not stay plain is said to cost more than all bonds.
        size = self.spec.rows * self.spec.cols
        return self.sides, 1, self.plain if self.may_stay else 1 + self.full // size

    @property
    def full(self) -> int:
        """Parameters with all bonds."""
        return self._params(self.layout.structural_bonds())

    @property
    def least(self) -> int:
        """The fewest parameters that it can have."""
        ones = self._params((1,) * (len(self.spec.row_dims) + 1))
        size = self.plain * self.spec.rows * self.spec.cols
        return min(ones, size) if self.may_stay else ones

    def _params(self, bonds: tuple[int, ...]) -> int:
        centre = self.spec.central_site
        shapes = self.layout.core_shapes(bonds)
        return sum(
            math.prod(shape) * (1 if site == centre else self.sides)
            for site, shape in enumerate(shapes)
        )


def units_of(
    plan: ConversionPlan,
    found: Mapping[str, Mapping[str, Named]],
    config: MPOConfig,
    metrics: Mapping[str, Sequence[Tensor]] | None,
) -> list[Unit]:
    """Return the units of a plan.

    Parameters
    ----------
    plan : ConversionPlan
        A plan with one bank for each role.
    found : mapping
        Parameters by role, kind and full name.
    config : MPOConfig
        Its `fit` is used.
    metrics : mapping of str to sequence of Tensor, optional
        Mean of x x^T over the inputs of each matrix, by role; a mean of layers is taken in it.

    Returns
    -------
    list of Unit
        In the order of the plan.

    Raises
    ------
    SharingError
        When layers that differ are to share and no `fit` says how.
    """
    units = []
    for spec in plan.banks:
        known = (metrics or {}).get(spec.role)
        units += _units(spec, found[spec.role], plan.sources_of(spec), config, known)
    for spec in plan.outside:
        units += _units(spec, found[spec.role], (0,), config, (metrics or {}).get(spec.role))
    return units


def _units(
    spec: BankSpec,
    found: Mapping[str, Named],
    sources: Sequence[int],
    config: MPOConfig,
    known: Sequence[Tensor] | None,
) -> list[Unit]:
    entries = list(found["weight"].items())
    layers: Layers = [entries[source] for source in sources]
    metrics = None if known is None else [known[source] for source in sources]
    shared = share(layers, spec.central, config.fit, "sharing", metrics)
    # Layers that are one module stay one, unless every step is to have its own.
    one_each = len(sources) == len(entries)
    units = []
    for group, slots in enumerate(members(spec.central)):
        sides = {spec.auxiliary[slot] for slot in slots}
        joint = config.fit == "joint" and group not in shared.exact and len(sides) > 1
        own = [layers[slot][1].detach() for slot in slots]
        value = shared.values[group].detach()
        weight = float(len(own)) if joint else sum(_share(value, matrix) for matrix in own)
        modules = len({id(layers[slot][1]) for slot in slots} if one_each else slots)
        # Only a bank holds a bias in common.
        biases = len({spec.bias[slot] for slot in slots}) if spec.bias else modules
        units.append(
            Unit(
                spec=spec,
                group=group,
                matrix=torch.stack(own) if joint else value,
                weight=weight or 1.0,
                sides=len(sides),
                plain=modules,
                may_stay=not spec.adapter_rank and biases >= modules,
            )
        )
    return units


def _share(value: Tensor, own: Tensor) -> float:
    """Return the squared norm of what is decomposed, relative to that of a layer's own matrix."""
    if value is own:
        return 1.0
    whole = float(torch.linalg.vector_norm(own.double()))
    return (float(torch.linalg.vector_norm(value.double())) / whole) ** 2 if whole else 0.0
