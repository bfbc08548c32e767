"""One budget for a whole model: bonds for every matrix, chosen together.

What counts is the product of what bonds keep of the matrices, relative to their norms: one of
small norm matters to what comes after it as much as one of large norm does, and none is given up
for others. Sums of squared errors do that where cuts are deep, on real models with calibration at
a great loss. Bonds chosen by the errors of outputs on calibration inputs made worse models too.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import tensornet as tn
from mpobert_plugin.accounting import account, ratio_below
from mpobert_plugin.counting import planned_report
from mpobert_plugin.errors import ConfigError, ConversionError, MPOBertWarning, SharingError
from mpobert_plugin.init.source import source_tensors
from mpobert_plugin.sharing import members
from mpobert_plugin.split import split_bank
from mpobert_plugin.units import Unit, units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from mpobert_plugin.accounting import ParameterReport
    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.spec import BankSpec
    from mpobert_plugin.split import Bonds


def within_budget(
    model: PreTrainedModel,
    plan: ConversionPlan,
    config: MPOConfig,
    metrics: Mapping[str, Sequence[Tensor]] | None = None,
    may_grow: bool = False,
) -> ConversionPlan:
    """Return a plan whose bonds keep the budget of a configuration; the model is only read.

    Layers of a role that share a central tensor get their bonds together and stay plain together
    where that serves better. No bond of the result could be raised by one within the budget,
    unless nothing would be gained.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        Its plan with all bonds.
    config : MPOConfig
        Its `ratio` or `max_params` is the budget; without one the plan is returned as it is.
    metrics : mapping of str to sequence of Tensor, optional
        What `input_metrics` returns for the model.
    may_grow : bool
        Whether layers are added on purpose: a budget above what the model stores is then as good
        as any other, up to the one that all plain layers fit.

    Returns
    -------
    ConversionPlan
        With several banks for a role where its layers need different bonds.

    Raises
    ------
    ConfigError
        When the budget is smaller than the smallest that is possible, which is told.
    SharingError
        When a shared bias joins layers whose bonds are chosen apart, or layers that differ are to
        share and no `fit` says how.
    ConversionError
        When a matrix cannot be decomposed.

    Warns
    -----
    MPOBertWarning
        When nothing has to become smaller to keep the budget.

    References
    ----------
    `tensornet.allocate` shares the budget out.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> config = mp.MPOConfig(n=3, ratio=0.8)
    >>> cut = within_budget(plain, mp.make_plan(plain, config), config)
    >>> model = mp.convert(plain, config)
    >>> 0.79 < mp.account(model).ratio <= 0.8
    True
    """
    if config.ratio is None and config.max_params is None:
        return plan
    _check_biases(plan)
    report = planned_report(model, plan)
    limit = budget_of(config, report.dense) or 0
    fixed = report.unique - sum(_cores(spec) for spec in (*plan.banks, *plan.outside))
    units = units_of(plan, source_tensors(model, plan), config, metrics)
    _check_limit(config, limit, report, fixed + sum(unit.least for unit in units))
    bonds = _allocated(units, limit - fixed)
    banks = [bank for spec in plan.banks for bank in split_bank(spec, bonds[spec.role])]
    outside = [bank for spec in plan.outside for bank in split_bank(spec, bonds[spec.role])]
    stored = plan.stored_before or account(model).unique
    if not (banks or outside or plan.norms):
        raise ConfigError(
            f"the budget must leave something to convert, got {limit:,} parameters where the "
            f"plain model has {stored:,}. Leave it out. Nothing was changed."
        )
    _warn_of_ample(config, limit, report.dense if may_grow else stored, report.dense)
    return replace(plan, banks=tuple(banks), outside=tuple(outside))


def _allocated(units: Sequence[Unit], room: int) -> dict[str, dict[int, Bonds | None]]:
    """Return the bonds of each central slice by role."""
    bonds: dict[str, dict[int, Bonds | None]] = {}
    by_name = {unit.name: unit for unit in units}
    try:
        found = tn.allocate(
            {name: unit.matrix for name, unit in by_name.items()},
            max_params=room,
            shape={name: unit.layout for name, unit in by_name.items()},
            weights={name: unit.weight for name, unit in by_name.items()},
            copies={name: unit.copies for name, unit in by_name.items()},
            measure="retained",
        )
    except tn.errors.TensorNetError as error:
        raise ConversionError(f"the budget cannot be shared out: {error}") from error
    for allotment in found:
        unit = by_name[allotment.name]
        inner = allotment.bonds
        if inner is None and not unit.may_stay:
            inner = unit.layout.structural_bonds()[1:-1]
        whole = None if inner is None else (1, *inner, 1)
        bonds.setdefault(unit.spec.role, {})[unit.group] = whole
    return bonds


def budget_of(config: MPOConfig, dense: int) -> int | None:
    """Return the budget of a configuration in parameters.

    Parameters
    ----------
    config : MPOConfig
        Its `ratio` or `max_params`.
    dense : int
        Parameters of the plain model with a layer's matrices in each layer.

    Returns
    -------
    int or None
        None without a budget.

    Examples
    --------
    >>> from mpobert_plugin.config import MPOConfig
    >>> budget_of(MPOConfig(ratio=0.29), 100)
    29
    """
    if config.ratio is None:
        most: int | None = config.max_params
        return most
    share: float = config.ratio
    # Shares such as 0.29 have no exact binary form.
    return math.floor(share * dense * (1 + 1e-12))


def _check_limit(config: MPOConfig, limit: int, report: ParameterReport, least: int) -> None:
    """Refuse a budget that is smaller than the smallest one possible, which is told."""
    if limit >= least:
        return
    dense = report.dense
    smallest = f"{math.ceil(1e6 * least / dense) / 1e6:g} ({least:,} of {dense:,} parameters)"
    told = (
        f"max_params must be at least {least:,}"
        if config.ratio is None
        else f"ratio must be at least {smallest}"
    )
    raise ConfigError(
        f"{told} for this model and these targets, with all bonds 1, got "
        f"{limit if config.ratio is None else config.ratio:,}. Raise it, or convert more of the "
        "model: name targets, 'embedding' among them. Nothing was changed."
    )


def _warn_of_ample(config: MPOConfig, limit: int, stored: int, dense: int) -> None:
    """Say so when nothing has to become smaller, and which budgets would change that."""
    if limit < stored:
        return
    given = f"max_params={limit:,}" if config.ratio is None else f"ratio={config.ratio:g}"
    counted = (
        f" A ratio counts {dense:,} for the same model with a layer of its own per layer, of "
        f"which the model as it is stores {stored / dense:.4f}."
        if stored < dense
        else ""
    )
    warnings.warn(
        f"{given} allows {limit:,} parameters, and {stored:,} are stored without any conversion, "
        f"so that nothing has to become smaller.{counted} Ask for max_params= below {stored:,} or "
        f"ratio= below {ratio_below(stored, dense):g}.",
        MPOBertWarning,
        # Whoever called `convert` or `from_albert`.
        stacklevel=5,
    )


def _cores(spec: BankSpec) -> int:
    cores = ("central", "auxiliary")
    return sum(
        math.prod(shape) for name, shape in spec.tensor_shapes().items() if name.startswith(cores)
    )


def _check_biases(plan: ConversionPlan) -> None:
    """Refuse biases in common of layers that may come to read different banks."""
    for spec in plan.banks:
        for slots in members(spec.bias) if spec.bias else []:
            if len({spec.central[slot] for slot in slots}) > 1:
                raise SharingError(
                    f"share_bias must not join layers of {spec.role!r} that have central tensors "
                    f"of their own when a budget chooses their bonds, got layers {slots} with one "
                    "bias. Leave share_bias out, or share central tensors in the same blocks. "
                    "Nothing was changed."
                )
