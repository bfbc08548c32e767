"""Bank tensors from the weights of a model: decompose, share, stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import tensornet as tn
from mpobert_plugin.adapter import init_adapter
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.init.shared import Shared, share
from mpobert_plugin.init.source import Named, source_tensors
from mpobert_plugin.sharing import members

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.spec import BankSpec


@dataclass
class Prepared:
    """Everything that a conversion puts into a model, computed before the model is touched.

    Parameters
    ----------
    plan : ConversionPlan
        The plan with final bonds and errors.
    tensors : dict
        Stacked tensors by the names of bank and tensor.
    trainable : dict
        Whether the stacked tensors of a bank are trained, by the bank's name and kind.
    certificates : dict
        ``tensornet.Certificate`` by role and layer of the model, where the layer's own matrix was
        decomposed.
    """

    plan: ConversionPlan
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    trainable: dict[tuple[str, str], bool] = field(default_factory=dict)
    certificates: dict[tuple[str, int], tn.Certificate] = field(default_factory=dict)


def prepare(model: PreTrainedModel, plan: ConversionPlan, config: MPOConfig) -> Prepared:
    """Return the stacked tensors of a conversion; the model is only read.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        The plan made for it.
    config : MPOConfig
        Its `rtol`, `max_bond`, `gauge` and `fit` are used.

    Returns
    -------
    Prepared
        Tensors, final plan and certificates.

    Raises
    ------
    ConversionError
        When a matrix cannot be decomposed, or `rtol` does not hold after a fit; its full name is
        told.
    SharingError
        When layers that differ are to share and no `fit` says how.
    """
    found = source_tensors(model, plan)
    sources = plan.sources or tuple(range(plan.n_layers))
    result = Prepared(plan)
    specs = [
        _bank(spec, found[spec.role], spec.of_layers(sources), config, result)
        for spec in plan.banks
    ]
    for norm in plan.norms:
        stacks = {
            kind: share(_of_layers(named, sources), norm.slices, config.fit, "share_norm").stack()
            for kind, named in found[norm.role].items()
        }
        result.tensors[norm.role] = stacks
        for kind, named in found[norm.role].items():
            result.trainable[norm.role, kind] = next(iter(named.values())).requires_grad
    outside = [_bank(spec, found[spec.role], (0,), config, result) for spec in plan.outside]
    result.plan = replace(plan, banks=tuple(specs), outside=tuple(outside))
    return result


def _bank(
    spec: BankSpec,
    found: dict[str, Named],
    sources: Sequence[int],
    config: MPOConfig,
    result: Prepared,
) -> BankSpec:
    shared = share(_of_layers(found["weight"], sources), spec.central, config.fit, "sharing")
    networks, bonds = _decompose(spec, shared, config)
    spec = replace(spec, bond_dims=bonds, errors=_errors(spec, shared, networks))
    _check_promise(spec, found["weight"], sources, config)
    tensors = _stack_cores(spec, networks)
    like = shared.values[0]
    if spec.adapter_rank:
        shapes = spec.tensor_shapes()
        for name in ("adapter_up", "adapter_down"):
            tensors[name] = like.new_empty(shapes[name])
        init_adapter(tensors["adapter_up"], tensors["adapter_down"])
    if spec.bias is not None:
        biases = _of_layers(found["bias"], sources)
        tensors["bias"] = share(biases, spec.bias, config.fit, "share_bias").stack()
    result.tensors[spec.name] = tensors
    for kind, named in found.items():
        result.trainable[spec.name, kind] = next(iter(named.values())).requires_grad
    for layer, group in zip(spec.layer_numbers, spec.central, strict=True):
        certificate = networks[group].certificate
        if group in shared.exact and certificate is not None:
            result.certificates[spec.role, layer] = certificate
    return spec


def _of_layers(named: Named, sources: Sequence[int]) -> list[tuple[str, Tensor]]:
    entries = list(named.items())
    return [entries[source] for source in sources]


def _decompose(
    spec: BankSpec, shared: Shared, config: MPOConfig
) -> tuple[list[tn.MPO], tuple[int, ...]]:
    """Decompose each shared matrix; all get the bonds that the most demanding one needs."""
    caps, bond, rtol = spec.bond_dims, config.bond_of(spec.role), config.rtol_of(spec.role)
    if rtol is not None:
        caps = _common_bonds(spec, shared, {"rtol": rtol, "max_bond": bond})
        limits: dict[str, object] = {"bonds": caps}
    else:
        limits = {"bonds": "full", "max_bond": bond}
    networks = [
        _mpo(spec, name, W, gauge=config.gauge, **limits)
        for name, W in zip(shared.names, shared.values, strict=True)
    ]
    if config.gauge == "identity":
        caps = networks[0].bond_dims
    return networks, caps


def _common_bonds(spec: BankSpec, shared: Shared, limits: dict[str, object]) -> tuple[int, ...]:
    """Return the fewest bonds with which every matrix keeps the tolerance."""
    padded = torch.stack([_with_zeros(spec, W) for W in shared.values])
    try:
        found = tn.mpo(padded, (spec.row_dims, spec.col_dims), gauge="central", **limits)  # type: ignore[arg-type]
    except tn.errors.TensorNetError:
        for name, W in zip(shared.names, shared.values, strict=True):
            _mpo(spec, name, W, gauge="central", **limits)  # says whose fault it is
        raise
    return found.bond_dims


def _with_zeros(spec: BankSpec, matrix: Tensor) -> Tensor:
    # Sizes without balanced factors are padded with zeros, which the reconstruction cuts off.
    below = math.prod(spec.row_dims) - spec.rows
    beside = math.prod(spec.col_dims) - spec.cols
    return torch.nn.functional.pad(matrix.detach(), (0, beside, 0, below))


def _mpo(spec: BankSpec, name: str, matrix: Tensor, **options: object) -> tn.MPO:
    matrix = _with_zeros(spec, matrix)
    try:
        return tn.mpo(matrix, (spec.row_dims, spec.col_dims), **options)  # type: ignore[arg-type]
    except tn.errors.TensorNetError as error:
        raise ConversionError(f"{name} cannot be decomposed: {error}") from error


def _errors(spec: BankSpec, shared: Shared, networks: Sequence[tn.MPO]) -> tuple[float, ...]:
    errors = []
    for group, layers in enumerate(members(spec.central)):
        certificate = networks[group].certificate
        if group in shared.exact and certificate is not None:
            errors += [(layer, certificate.relative_error) for layer in layers]
            continue
        rebuilt = networks[group].to_matrix().double()[: spec.rows, : spec.cols]
        for layer in layers:
            own = shared.originals[layer].detach().double()
            norm = float(torch.linalg.vector_norm(own))
            distance = float(torch.linalg.vector_norm(own - rebuilt))
            errors.append((layer, distance / norm if norm else distance))
    return tuple(float(f"{error:.6g}") for _, error in sorted(errors))


def _check_promise(spec: BankSpec, named: Named, sources: Sequence[int], config: MPOConfig) -> None:
    """Refuse an rtol that holds for the fitted matrices and not for those of the layers."""
    worst = max(range(spec.n_layers), key=lambda layer: spec.errors[layer])
    rtol = config.rtol_of(spec.role)
    # The errors of a plan are rounded to six digits.
    if rtol is None or config.fit is None or spec.errors[worst] <= 1.00001 * rtol:
        return
    name = list(named)[sources[worst]]
    raise ConversionError(
        f"rtol={rtol:g} must hold for every matrix, and fit={config.fit!r} leaves "
        f"{name} {spec.errors[worst]:.3g} off. Leave rtol out and cut with max_bond=, or share "
        "fewer layers. Nothing was changed."
    )


def _stack_cores(spec: BankSpec, networks: Sequence[tn.MPO]) -> dict[str, Tensor]:
    group_of = {a: g for g, a in zip(spec.central, spec.auxiliary, strict=True)}
    tensors: dict[str, Tensor] = {}
    for site, shape in enumerate(spec.core_shapes):
        central = site == spec.central_site
        picked = range(len(networks)) if central else [group_of[a] for a in sorted(group_of)]
        cores = [_padded(networks[g].cores[site], shape) for g in picked]
        tensors["central" if central else f"auxiliary_{site}"] = torch.stack(cores).contiguous()
    return tensors


def _padded(core: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pad the bonds with zeros to the shape of the bank, which changes no matrix."""
    if tuple(core.shape) == shape:
        return core
    wide = core.new_zeros(shape)
    wide[: core.shape[0], :, :, : core.shape[3]] = core
    return wide
