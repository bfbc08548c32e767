"""What MPO sharing must be compared with at equal parameters, made by the same code.

A truncated SVD is an MPO of two sites, and one shared matrix plus a low-rank correction for each
layer is everything shared plus adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from mpobert_plugin.accounting import account
from mpobert_plugin.budget import budget_of
from mpobert_plugin.config import MPOConfig
from mpobert_plugin.convert import convert
from mpobert_plugin.counting import planned_report
from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.locate import check_model, family_of, is_converted
from mpobert_plugin.options import own_integer
from mpobert_plugin.parts import linears_of
from mpobert_plugin.patterns import expand_targets
from mpobert_plugin.planning import make_plan, target_roles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.calibrate import Batch

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
        correction of what it leaves; with `calibration` in the metric of the inputs.
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
    >>> mp.account(model).unique, model.base_model.mpo.plan.banks[0].row_dims
    (14992, (32, 1))
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
    >>> number = baseline_config("shared_lora", plain, match_parameters=15_000, tolerance=0.05)
    >>> number.adapter_rank, number.n, number.sharing
    (2, 1, 'albert')
    """
    if name not in BASELINES:
        raise ConfigError(
            f"name must be one of {', '.join(BASELINES)}, got {name!r}."
            f"{close_to(str(name), BASELINES)}"
        )
    check_model(model)
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
    def with_rank(rank: int) -> MPOConfig:
        adapters: dict[str, Any] = {"adapter_targets": roles, "adapter_fit": "residual"}
        return MPOConfig(
            sharing="albert",
            n=1,
            fit="mean",
            targets=roles,
            adapter_rank=rank,
            **(adapters if rank else {}),
        )

    def count(rank: int) -> int:
        return planned_report(model, make_plan(model, with_rank(rank))).unique

    least, one = count(0), count(1)
    linears = [next(iter(linears_of(model, role).values())) for role in roles]
    most = min(min(linear.out_features, linear.in_features) for linear in linears)
    step = one - least
    rank = min(max(round((wanted - least) / step), 0), most)
    found = least + rank * step
    if abs(found - wanted) > tolerance * wanted:
        near = sorted({min(max(rank + k, 0), most) for k in (-1, 0, 1)})
        told = ", ".join(f"{least + r * step:,} (rank {r})" for r in near)
        raise ConfigError(
            f"match_parameters must be a number that one shared matrix and adapters of ranks 0 to "
            f"{most} come within {tolerance:.2%} of, got {wanted:,}. Near it are {told}. Take one "
            "of them, or a larger tolerance. Nothing was changed."
        )
    return with_rank(rank)


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
