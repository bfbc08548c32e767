"""Stacked cores of one bank: each slice's matrix decomposed, or those of a slice together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

import tensornet as tn
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.init.damping import damped
from mpobert_plugin.init.joint import check_gauge, joint_cores
from mpobert_plugin.init.shared import Shared, mean_in_metric, mean_of, share
from mpobert_plugin.sharing import members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.meter import Meter
    from mpobert_plugin.spec import BankSpec

Layers: TypeAlias = "list[tuple[str, Tensor]]"


@dataclass(frozen=True)
class Stacks:
    """Stacked cores of a bank and what is known about their errors.

    Parameters
    ----------
    bond_dims : tuple of int
        Bonds of all matrices.
    tensors : dict of str to Tensor
        Stacked cores by name.
    certificates : dict of int to tensornet.Certificate
        By slot, where the layer's own matrix was decomposed.
    """

    bond_dims: tuple[int, ...]
    tensors: dict[str, Tensor]
    certificates: dict[int, tn.Certificate] = field(default_factory=dict)


def layout_of(spec: BankSpec) -> tn.MatrixLayout:
    """Return the layout of a bank's matrices, which says how they are padded.

    Parameters
    ----------
    spec : BankSpec
        Sizes.

    Returns
    -------
    tensornet.MatrixLayout
        Sites and true sizes.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> layout_of(BankSpec("query", 5, 4, (2, 3), (2, 2), (1, 4, 1), (0,), (0,))).padded_shape
    (6, 4)
    """
    return tn.MatrixLayout(spec.row_dims, spec.col_dims, spec.rows, spec.cols)


def bonds_of(
    spec: BankSpec,
    layers: Layers,
    config: MPOConfig,
    metrics: Sequence[Tensor] | None,
    meter: Meter,
) -> tuple[int, ...]:
    """Return the bonds that the most demanding matrix of a bank needs.

    Parameters
    ----------
    spec, layers, config, metrics, meter
        As for `stacked`.

    Returns
    -------
    tuple of int
        One more than sites.

    Raises
    ------
    ConversionError, SharingError
        As for `stacked`.
    """
    shared = share(layers, spec.central, config.fit, "sharing", metrics)
    return _Job(spec, layers, shared, config, metrics, meter).bonds()


def stacked(
    spec: BankSpec,
    layers: Layers,
    config: MPOConfig,
    metrics: Sequence[Tensor] | None,
    meter: Meter,
    bonds: tuple[int, ...] | None = None,
) -> Stacks:
    """Return the stacked cores of a bank.

    Parameters
    ----------
    spec : BankSpec
        Sizes, layer maps and the largest bonds.
    layers : list of (str, Tensor)
        Full name and matrix of each layer that reads the bank.
    config : MPOConfig
        Its `rtol`, `max_bond`, `gauge` and `fit` are used.
    metrics : sequence of Tensor, optional
        For each layer the mean of x x^T over its inputs; errors are then those of the output.
    meter : Meter
        Told of every finished matrix.
    bonds : tuple of int, optional
        What `bonds_of` returned.

    Returns
    -------
    Stacks
        Tensors, bonds and certificates.

    Raises
    ------
    ConversionError
        When a matrix cannot be decomposed; its full name is told.
    SharingError
        When layers that differ are to share and no `fit` says how.
    """
    shared = share(layers, spec.central, config.fit, "sharing", metrics)
    job = _Job(spec, layers, shared, config, metrics, meter)
    bonds = bonds or job.bonds()
    stacks = _empty(spec, bonds, layers[0][1])
    certificates: dict[int, tn.Certificate] = {}
    apart = []
    for group, users in enumerate(members(spec.central)):
        slices = sorted({spec.auxiliary[slot] for slot in users})
        if not job.is_joint(group, slices):
            apart.append((group, users, slices))
            continue
        meter.start(f"{spec.role}, {len(users)} layers")
        _put(stacks, spec.central_site, group, slices, job.together(slices, bonds))
        meter.advance(len(users))

    def work(one: tuple[int, list[int], list[int]]) -> None:
        group, users, slices = one
        meter.start(f"{spec.role}, {len(users)} layers" if len(users) > 1 else layers[users[0]][0])
        network = job.alone(group, bonds)
        cores = tuple(core.unsqueeze(0) for core in network.cores)
        if group in shared.exact and network.certificate is not None:
            certificates.update(dict.fromkeys(users, network.certificate))
        _put(stacks, spec.central_site, group, slices, cores)
        meter.advance(len(users))

    written = [target for _, _, slices in apart for target in slices]
    if layers[0][1].device.type == "cpu" and len(set(written)) == len(written):
        tn.side_by_side(work, apart, size=spec.rows * spec.cols)
    else:
        for one in apart:
            work(one)
    return Stacks(bonds, stacks, certificates)


@dataclass(frozen=True)
class _Job:
    """What is the same for all groups of a bank."""

    spec: BankSpec
    layers: Layers
    shared: Shared
    config: MPOConfig
    metrics: Sequence[Tensor] | None
    meter: Meter

    @property
    def lossy(self) -> bool:
        """Whether bonds are cut, so that it matters which part of a matrix is kept."""
        return self.spec.bond_dims != layout_of(self.spec).structural_bonds()

    @property
    def rtol(self) -> float | None:
        return self.config.rtol_of(self.spec.role)

    def is_joint(self, group: int, slices: Sequence[int]) -> bool:
        joint = self.config.fit == "joint" and group not in self.shared.exact
        # A single site is the central one: then there is nothing that a layer could keep.
        return joint and len(slices) > 1 and len(self.spec.row_dims) > 1

    def bonds(self) -> tuple[int, ...]:
        """Return the bonds that the most demanding matrix needs."""
        spec, users = self.spec, members(self.spec.central)
        slices = [sorted({spec.auxiliary[slot] for slot in group}) for group in users]
        if any(self.is_joint(group, own) for group, own in enumerate(slices)):
            check_gauge(self.config.gauge)
            return spec.bond_dims
        if self.config.gauge == "identity":
            return self._network(0, gauge="identity").bond_dims
        if self.rtol is None:
            return spec.bond_dims
        if self.metrics is not None:
            limits = {"rtol": self.rtol, **self.caps(spec.bond_dims)}
            found = [self._network(group, **limits).bond_dims for group in range(len(users))]
            return tuple(max(at) for at in zip(*found, strict=True))
        return self._common(self.rtol)

    def caps(self, bonds: tuple[int, ...]) -> dict[str, object]:
        """Return the options of tensornet that keep bonds below some, in the plainest words."""
        layout, largest = layout_of(self.spec), max(bonds)
        if bonds == layout.structural_bonds():
            return {}
        return (
            {"max_bond": largest} if bonds == layout.structural_bonds(largest) else {"bonds": bonds}
        )

    def _common(self, rtol: float) -> tuple[int, ...]:
        """Return the fewest bonds with which every matrix keeps the tolerance."""
        limits = {"rtol": rtol, **self.caps(self.spec.bond_dims)}
        values = [matrix.detach() for matrix in self.shared.values]
        try:
            return tn.common_bonds(values, layout_of(self.spec), **limits)  # type: ignore[arg-type]
        except tn.errors.TensorNetError:
            for group in range(len(values)):
                self._network(group, gauge="central", **limits)  # says whose fault it is
            raise

    def alone(self, group: int, bonds: tuple[int, ...]) -> tn.MPO:
        """Return the network of the one matrix of a group."""
        if self.config.gauge == "identity":
            return self._network(group, gauge="identity")
        # Bonds that follow from the sizes alone are kept whatever the rank.
        limits = {"bonds": "full", **self.caps(bonds)}
        return self._network(group, gauge=self.config.gauge, **limits)

    def _network(self, group: int, **options: object) -> tn.MPO:
        name, matrix = self.shared.names[group], self.shared.values[group].detach()
        metric = self.metric(group)
        try:
            return tn.mpo(matrix, layout_of(self.spec), metric=metric, **options)  # type: ignore[arg-type]
        except tn.errors.TensorNetError as error:
            raise ConversionError(f"{name} cannot be decomposed: {error}") from error

    def metric(self, group: int) -> Tensor | None:
        """Return the mean metric of a group's layers, where it has a say."""
        if self.metrics is None or not (self.lossy or self.rtol is not None):
            return None
        return _mean_metric([self.metrics[slot] for slot in members(self.spec.central)[group]])

    def together(self, slices: Sequence[int], bonds: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the cores of the matrices of a group, one for each auxiliary slice."""
        users = members(self.spec.auxiliary)
        named = [(self.layers[users[a][0]][0], self._mean(users[a])) for a in slices]
        weights = [float(len(users[a])) for a in slices]
        layout, gauge = layout_of(self.spec), self.config.gauge
        metrics = None
        if self.metrics is not None:
            metrics = [_mean_metric([self.metrics[slot] for slot in users[a]]) for a in slices]
        return joint_cores(layout, bonds, named, weights, gauge, self.meter, metrics)

    def _mean(self, slots: Sequence[int]) -> Tensor:
        matrices = [self.layers[slot][1].detach() for slot in slots]
        if self.metrics is None or len(slots) == 1:
            return mean_of(matrices)
        return mean_in_metric(matrices, [self.metrics[slot] for slot in slots])


def _mean_metric(metrics: Sequence[Tensor]) -> Tensor:
    """Return the damped mean of metrics; those of one object are not summed up."""
    same = all(metric is metrics[0] for metric in metrics)
    return damped(metrics[0] if same else torch.stack(list(metrics)).mean(0))


def _empty(spec: BankSpec, bonds: tuple[int, ...], like: Tensor) -> dict[str, Tensor]:
    """Return zeros of the stacked shapes: bonds that a matrix does not need change nothing."""
    stacks: dict[str, Tensor] = {}
    sites = zip(bonds, spec.row_dims, spec.col_dims, bonds[1:], strict=False)
    for site, shape in enumerate(sites):
        central = site == spec.central_site
        number = max(spec.central if central else spec.auxiliary) + 1
        name = "central" if central else f"auxiliary_{site}"
        stacks[name] = like.detach().new_zeros((number, *shape))
    return stacks


def _put(
    stacks: dict[str, Tensor],
    centre: int,
    group: int,
    slices: Sequence[int],
    cores: tuple[Tensor, ...],
) -> None:
    """Write the cores of a group into its slices."""
    for site, core in enumerate(cores):
        stack = stacks["central" if site == centre else f"auxiliary_{site}"]
        targets = [group] if site == centre else slices
        for number, target in enumerate(targets):
            piece = core[number if core.shape[0] > 1 else 0]
            left, _, _, right = piece.shape
            stack[target][:left, :, :, :right] = piece
