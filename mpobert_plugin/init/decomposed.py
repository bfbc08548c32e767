"""Bank tensors from the weights of a model: decompose, share, stack."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

import tensornet as tn
from mpobert_plugin.errors import ConversionError
from mpobert_plugin.heap import give_back
from mpobert_plugin.init.measure import add_adapters, measured
from mpobert_plugin.init.shared import share
from mpobert_plugin.init.source import Named, source_tensors
from mpobert_plugin.init.stacks import bonds_of, stacked
from mpobert_plugin.meter import Meter, metered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.init.stacks import Layers
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


def prepare(
    model: PreTrainedModel,
    plan: ConversionPlan,
    config: MPOConfig,
    metrics: Mapping[str, Sequence[Tensor]] | None = None,
) -> Prepared:
    """Return the stacked tensors of a conversion; the model is only read.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        The plan made for it.
    config : MPOConfig
        Its `rtol`, `gauge`, `fit` and `adapter_fit` are used.
    metrics : mapping of str to sequence of Tensor, optional
        What `input_metrics` returns for the model: matrices are then decomposed in the metric of
        their inputs.

    Returns
    -------
    Prepared
        Tensors, final plan and certificates.

    Raises
    ------
    ConfigError
        When common central tensors would have to be fitted in a gauge that they cannot have.
    ConversionError
        When a matrix cannot be decomposed, or `rtol` does not hold after a fit; its full name is
        told.
    SharingError
        When layers that differ are to share and no `fit` says how.
    """
    found = source_tensors(model, plan)
    sources = plan.sources or tuple(range(plan.n_layers))
    result = Prepared(plan)
    number = sum(spec.n_layers for spec in (*plan.banks, *plan.outside))
    with metered(number, "matrix") as meter:
        run = _Run(found, config, metrics or {}, meter, result)
        # Large matrices first: what they need on the way is then not added to all banks.
        order = sorted(plan.banks, key=lambda spec: -spec.rows * spec.cols)
        run.look_for_bonds(plan, order)
        done = {spec.name: run.bank(spec, plan.sources_of(spec)) for spec in order}
        banks = tuple(done[spec.name] for spec in plan.banks)
        outside = tuple(run.bank(spec, (0,)) for spec in plan.outside)
    for norm in plan.norms:
        stacks = {
            kind: share(_of_layers(named, sources), norm.slices, config.fit, "share_norm").stack()
            for kind, named in found[norm.role].items()
        }
        result.tensors[norm.role] = stacks
        for kind, named in found[norm.role].items():
            result.trainable[norm.role, kind] = next(iter(named.values())).requires_grad
    result.plan = replace(plan, banks=banks, outside=outside)
    return result


@dataclass(frozen=True)
class _Run:
    """What is the same for all banks of a conversion."""

    found: dict[str, dict[str, Named]]
    config: MPOConfig
    metrics: Mapping[str, Sequence[Tensor]]
    meter: Meter
    result: Prepared
    bonds: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def look_for_bonds(self, plan: ConversionPlan, order: Sequence[BankSpec]) -> None:
        """Find the bonds that a tolerance needs, while no memory is taken by banks.

        Matrices are looked at in double precision, which takes several times their memory.
        """
        for spec in order:
            if self.config.rtol_of(spec.role) is not None:
                layers, metrics = self._inputs(spec, plan.sources_of(spec))
                given = (spec, layers, self.config, metrics, self.meter)
                self.bonds[spec.name] = bonds_of(*given)
                give_back()

    def _inputs(self, spec: BankSpec, sources: Sequence[int]) -> tuple[Layers, list[Tensor] | None]:
        known = self.metrics.get(spec.role)
        metrics = None if known is None else [known[source] for source in sources]
        return _of_layers(self.found[spec.role]["weight"], sources), metrics

    def bank(self, spec: BankSpec, sources: Sequence[int]) -> BankSpec:
        """Compute the tensors of a bank and return its final specification."""
        found, config, result = self.found[spec.role], self.config, self.result
        layers, metrics = self._inputs(spec, sources)
        stacks = stacked(spec, layers, config, metrics, self.meter, self.bonds.get(spec.name))
        give_back()
        spec = replace(spec, bond_dims=stacks.bond_dims)
        residual = config.fits_adapters
        add_adapters(spec, stacks, layers, metrics, residual)
        errors = measured(spec, stacks, layers, metrics, residual)
        spec = replace(spec, errors=errors.errors, norms=errors.norms, output_errors=errors.outputs)
        _check_promise(spec, layers, config)
        if spec.bias is not None:
            biases = _of_layers(found["bias"], sources)
            stacks.tensors["bias"] = share(biases, spec.bias, config.fit, "share_bias").stack()
        result.tensors[spec.name] = stacks.tensors
        for kind, named in found.items():
            result.trainable[spec.name, kind] = next(iter(named.values())).requires_grad
        for slot, certificate in stacks.certificates.items():
            result.certificates[spec.role, spec.layer_numbers[slot]] = certificate
        return spec


def _of_layers(named: Named, sources: Sequence[int]) -> Layers:
    entries = list(named.items())
    return [entries[source] for source in sources]


def _check_promise(spec: BankSpec, layers: Layers, config: MPOConfig) -> None:
    """Refuse an rtol that holds for the fitted matrices and not for those of the layers."""
    errors = spec.output_errors or spec.errors
    worst = max(range(spec.n_layers), key=lambda slot: errors[slot])
    rtol = config.rtol_of(spec.role)
    # The errors of a plan are rounded to six digits.
    if rtol is None or config.fit is None or errors[worst] <= 1.00001 * rtol:
        return
    raise ConversionError(
        f"rtol={rtol:g} must hold for every matrix, and fit={config.fit!r} leaves "
        f"{layers[worst][0]} {errors[worst]:.3g} off. Leave rtol out and cut with max_bond=, or "
        "share fewer layers. Nothing was changed."
    )
