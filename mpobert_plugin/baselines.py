"""What MPO sharing must be compared with at equal parameters, made by the same code.

A truncated SVD is an MPO of two sites, and one shared matrix plus a low-rank correction for each
layer is everything shared plus adapters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from mpobert_plugin.accounting import account
from mpobert_plugin.budget import budget_of
from mpobert_plugin.config import MPOConfig
from mpobert_plugin.convert import convert
from mpobert_plugin.counting import planned_report
from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.locate import check_model, family_of, is_converted
from mpobert_plugin.of_peft import CONVERT_BEFORE
from mpobert_plugin.options import own_integer
from mpobert_plugin.parts import linears_of
from mpobert_plugin.patterns import expand_targets
from mpobert_plugin.planning import make_plan
from mpobert_plugin.targets import target_roles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.calibrate import Batch
    from mpobert_plugin.spec import BankSpec

Model = TypeVar("Model", bound="PreTrainedModel")
BASELINES = ("low_rank", "whitened", "shared_lora")


def baseline(
    name: str,
    model: Model,
    *,
    match_parameters: PreTrainedModel | MPOConfig | int,
    targets: Sequence[str] | None = None,
    calibration: Iterable[Batch] | None = None,
    tolerance: float = 0.01,
) -> Model:
    """Return the model as a baseline of MPO sharing with as many parameters; changed in place.

    Parameters
    ----------
    name : str
        'low_rank': every matrix a truncated SVD, ranks chosen together under one budget.
        'whitened': the same in the metric of each matrix's inputs, which needs `calibration`.
        'shared_lora': one matrix for all layers, the mean, and for each layer the best low-rank
        correction of what it leaves; with `calibration` in the metric of the inputs. All roles
        have the same rank, but for one less or up to two more where the number is met so.
    model : transformers.PreTrainedModel
        A plain model.
    match_parameters : transformers.PreTrainedModel, MPOConfig or int
        What to match: the stored parameters of a converted model, those that a conversion of
        `model` with a configuration would store, or a number.
    targets : sequence of str, optional
        Roles of the layers' matrices; all by default.
    calibration : iterable of mappings or Tensors, optional
        As for `convert`.
    tolerance : float
        Largest relative difference of the numbers of parameters.

    Returns
    -------
    transformers.PreTrainedModel
        The same object.

    Raises
    ------
    ConfigError
        When the name is unknown, 'whitened' has no calibration, or no rank comes that close to
        the number, in which case the nearest numbers are told.
    MPOBertError
        As `convert` says.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32)
    >>> plain = BertModel(BertConfig(vocab_size=200, num_hidden_layers=2, **sizes))
    >>> model = baseline("low_rank", plain, match_parameters=15_000)
    >>> mp.account(model).unique, {len(b.row_dims) for b in model.base_model.mpo.plan.banks}
    (14992, {2})
    """
    if name == "whitened" and calibration is None:
        raise ConfigError(
            "baseline 'whitened' needs calibration=, a few batches as the model's forward takes "
            "them, got none. Take 'low_rank' for a plain SVD. Nothing was changed."
        )
    config = baseline_config(
        name, model, match_parameters=match_parameters, targets=targets, tolerance=tolerance
    )
    return convert(model, config, calibration=calibration)


def baseline_config(
    name: str,
    model: PreTrainedModel,
    *,
    match_parameters: PreTrainedModel | MPOConfig | int,
    targets: Sequence[str] | None = None,
    tolerance: float = 0.01,
) -> MPOConfig:
    """Return the configuration of a baseline with as many parameters; the model is only read.

    Parameters
    ----------
    name, model, match_parameters, targets, tolerance
        As for `baseline`.

    Returns
    -------
    MPOConfig
        For `convert`; that of 'whitened' is the one of 'low_rank', and calibration makes it so.

    Raises
    ------
    ConfigError
        As `baseline` does.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32)
    >>> plain = BertModel(BertConfig(vocab_size=200, num_hidden_layers=2, **sizes))
    >>> number = baseline_config("shared_lora", plain, match_parameters=15_000)
    >>> number.adapter_rank["query"], number.adapter_rank["ffn_out"], number.n, number.sharing
    (3, 1, 1, 'albert')
    """
    if name not in BASELINES:
        raise ConfigError(
            f"name must be one of {', '.join(BASELINES)}, got {name!r}."
            f"{close_to(str(name), BASELINES)}"
        )
    check_model(model, CONVERT_BEFORE)
    roles = target_roles(family_of(model), expand_targets(model, targets, "targets"))
    wanted = _wanted(model, match_parameters)
    if name == "shared_lora":
        return _shared_lora(model, roles, wanted, tolerance)
    most = account(model).unique
    if wanted > most * (1.0 + tolerance):
        raise ConfigError(
            f"match_parameters must be at most {most:,} for low rank, since matrices that would "
            f"grow stay plain and the plain model stores no more, got {wanted:,}. Compare with a "
            "configuration that saves something. Nothing was changed."
        )
    shapes: dict[str, Any] = {}
    for role in roles:
        first = next(iter(linears_of(model, role).values()))
        shapes[role] = ((first.out_features, 1), (1, first.in_features))
    return MPOConfig(n=2, shapes=shapes, max_params=wanted, targets=roles)


def _shared_lora(
    model: PreTrainedModel, roles: Sequence[str], wanted: int, tolerance: float
) -> MPOConfig:
    plain = _with_ranks(dict.fromkeys(roles, 0))
    least = planned_report(model, make_plan(model, plain)).unique
    specs = make_plan(model, _with_ranks(dict.fromkeys(roles, 1))).banks
    steps = {spec.role: _adapter_size(spec) for spec in specs}
    most = {spec.role: min(spec.rows, spec.cols) for spec in specs}
    found = near_ranks(wanted - least, steps, most)
    totals = sorted(found, key=lambda total: (abs(least + total - wanted), total))
    if abs(least + totals[0] - wanted) > tolerance * wanted:
        told = ", ".join(f"{least + t:,} ({_ranks(found[t])})" for t in sorted(totals[:3]))
        raise ConfigError(
            f"match_parameters must be a number that one shared matrix and adapters of ranks 0 to "
            f"{max(most.values())} come within {tolerance:.2%} of, got {wanted:,}. Near it are "
            f"{told}. Take one of them, or a larger tolerance. Nothing was changed."
        )
    return _with_ranks(found[totals[0]])


def _with_ranks(ranks: Mapping[str, int]) -> MPOConfig:
    """Return the configuration of one shared matrix for each role and adapters of some ranks."""
    adapted = {role: rank for role, rank in ranks.items() if rank}
    alike = len(set(ranks.values())) == 1
    adapters: dict[str, Any] = {"adapter_targets": list(adapted), "adapter_fit": "residual"}
    return MPOConfig(
        sharing="albert",
        n=1,
        fit="mean",
        targets=list(ranks),
        adapter_rank=next(iter(ranks.values())) if alike else adapted,
        **(adapters if adapted else {}),
    )


def _adapter_size(spec: BankSpec) -> int:
    shapes = spec.tensor_shapes()
    return sum(math.prod(shapes[name]) for name in shapes if name.startswith("adapter"))


def _ranks(ranks: Mapping[str, int]) -> str:
    lowest, highest = min(ranks.values()), max(ranks.values())
    return f"rank {lowest}" if lowest == highest else f"ranks {lowest} to {highest}"


def near_ranks(
    room: int, steps: Mapping[str, int], most: Mapping[str, int]
) -> dict[int, dict[str, int]]:
    """Return the numbers of parameters near a given one that adapters can have, with their ranks.

    All roles get the largest common rank that there is room for, and each may then have one less,
    one more or two more, by which sums of unequal steps come close to any number between those
    of two common ranks. Of several ways to a number the one with the most even ranks is taken, by
    least squares, and of those the one that gives earlier roles more.

    Parameters
    ----------
    room : int
        Number of parameters.
    steps : mapping of str to int
        Parameters that one rank more takes, by role.
    most : mapping of str to int
        Largest rank, by role.

    Returns
    -------
    dict of int to (dict of str to int)
        Ranks by role, for each number.

    Examples
    --------
    >>> found = near_ranks(35, {"query": 4, "ffn_in": 7}, {"query": 8, "ffn_in": 8})
    >>> found[36], 35 in found
    ({'query': 2, 'ffn_in': 4}, False)
    """
    rank = 0
    while rank < max(most.values()) and _common(rank + 1, steps, most) <= room:
        rank += 1
    # For each sum: how uneven its ranks are, in integers, and the ranks with signs turned.
    whole = sum(steps.values())
    ways: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for role, step in steps.items():
        more: dict[int, tuple[int, tuple[int, ...]]] = {}
        base = min(rank, most[role])
        for own in range(max(base - 1, 0), min(base + 2, most[role]) + 1):
            for total, (uneven, before) in ways.items():
                way = (uneven + (own * whole - room) ** 2, (*before, -own))
                key = total + own * step
                more[key] = min(way, more.get(key, way))
        ways = more
    return {
        total: {role: -own for role, own in zip(steps, ranks, strict=True)}
        for total, (_, ranks) in ways.items()
    }


def _common(rank: int, steps: Mapping[str, int], most: Mapping[str, int]) -> int:
    return sum(min(rank, most[role]) * step for role, step in steps.items())


def _wanted(model: PreTrainedModel, given: object) -> int:
    """Return the number of parameters to match."""
    if isinstance(given, MPOConfig):
        return _planned(model, given)
    number: object = own_integer(given)
    if type(number) is int and number >= 1:
        return number
    if isinstance(given, bool | int | float | str) or given is None:
        raise ConfigError(
            f"match_parameters must be a converted model, an MPOConfig or a number of parameters "
            f">= 1, got {given!r}."
        )
    if not is_converted(check_model(given)):
        raise ConfigError(
            "match_parameters must be a converted model, an MPOConfig or a number of parameters, "
            f"got a plain {type(given).__name__}. Convert it first."
        )
    return account(check_model(given)).unique


def _planned(model: PreTrainedModel, config: MPOConfig) -> int:
    if config.rtol is not None:
        raise ConfigError(
            f"match_parameters must say how much is stored, and rtol={config.rtol!r} shows it only "
            "when matrices are decomposed. Pass the converted model."
        )
    report = planned_report(model, make_plan(model, config.replace(plan=None)))
    return budget_of(config, report.dense) or report.unique
