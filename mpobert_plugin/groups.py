"""Groups of parameters for an optimizer: learning rate and weight decay by role and depth."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConfigError, close_to, did_you_mean
from mpobert_plugin.kinds import KINDS, kinds_of
from mpobert_plugin.locate import check_model, is_converted
from mpobert_plugin.options import own_number
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.stacked import StackedBank

OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
DECAYED = ("central", "adapter")
# Biases and norms never decay.
MAY_DECAY = tuple(kind for kind in KINDS if kind not in ("bias", "norm"))
# Depth of ALBERT and BERT, for which the usual rates of biases and norms are known.
USUAL_DEPTH = 12


def param_groups(
    model: PreTrainedModel,
    optimizer: object = "adamw",
    *,
    lr: float,
    weight_decay: float = 0.01,
    decayed: Collection[str] = DECAYED,
    rates: Mapping[str, float] | None = None,
    depth_rates: bool = True,
) -> list[dict[str, Any]]:
    """Return groups of all parameters of a model, each in exactly one, for an optimizer.

    With `depth_rates` the rate of biases and norms of L layers is multiplied by 12 / L (twice for
    plain gradient descent on shared ones), since their steps add up over the layers, and Adam's
    rate of auxiliary tensors by the factor with which they were scaled for depth. No other rate
    depends on the depth, whatever the optimizer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model, or a plain one.
    optimizer : str, optimizer or its class
        'sgd', 'adam', 'adamw' or 'lamb'; `torch.optim.SGD`, `Adam`, `AdamW` or `Lamb`.
    lr : float
        Learning rate.
    weight_decay : float
        Weight decay of the kinds in `decayed`.
    decayed : collection of str
        Kinds that decay, as `account` counts them: 'central' and 'adapter' by default. Auxiliary
        tensors do not by default: decay would act on the product of all of them at once. Add
        'dense' and 'embedding' for the custom of training with plain matrices; biases and norms
        never decay.
    rates : mapping of str to float, optional
        Factors of the rate by kind, such as ``{"head": 10.0}``.
    depth_rates : bool
        Whether rates depend on the depth as said above.

    Returns
    -------
    list of dict
        ``params``, ``lr``, ``weight_decay`` and ``kind``; for 'lamb' also ``stacked`` and
        ``adapt``. Frozen parameters are listed too.

    Raises
    ------
    ConfigError
        When a name is unknown or a number impossible.
    ModelTypeError
        When the model is of no known family.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-24", head="none", device="meta")
    >>> for group in param_groups(model, "lamb", lr=1e-3):
    ...     print(group["kind"], group["lr"], group["weight_decay"])
    central 0.001 0.01
    auxiliary 0.001 0.0
    bias 0.0005 0.0
    bias 0.001 0.0
    norm 0.0005 0.0
    norm 0.001 0.0
    embedding 0.001 0.0
    dense 0.001 0.0
    """
    check_model(model)
    kind_of_optimizer = _optimizer(optimizer)
    factors = _rates(rates)
    _check_number("lr", lr)
    _check_number("weight_decay", weight_decay)
    decaying = _decayed(decayed)
    owners = _owners(model)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, parameters in kinds_of(model).items():
        for parameter in parameters.values():
            owner = owners.get(id(parameter))
            factor = factors.get(kind, 1.0)
            if depth_rates and owner is not None:
                factor *= _depth_factor(kind_of_optimizer, kind, owner, parameter)
            # A head's biases and norms are of its kind and have one axis.
            falls = kind in decaying and (parameter.dim() > 1 or owner is not None)
            options: dict[str, Any] = {
                "lr": float(lr) * factor,
                "weight_decay": float(weight_decay) if falls else 0.0,
                "kind": kind,
            }
            if kind_of_optimizer == "lamb":
                options["stacked"] = owner is not None
                options["adapt"] = kind not in ("bias", "norm") and parameter.dim() > 1
            group = groups.setdefault(tuple(options.values()), {"params": [], **options})
            group["params"].append(parameter)
    order = {kind: number for number, kind in enumerate(KINDS)}
    return sorted(groups.values(), key=lambda group: (order[group["kind"]], group["lr"]))


def _owners(model: PreTrainedModel) -> dict[int, StackedBank]:
    """Return the bank that owns a parameter, by the parameter's identity."""
    if not is_converted(model):
        return {}
    banks = banks_of(model).stacked()
    return {id(p): bank for bank in banks for p in bank.parameters(recurse=False)}


def _depth_factor(optimizer: str, kind: str, bank: StackedBank, parameter: nn.Parameter) -> float:
    if kind == "auxiliary" and optimizer in ("adam", "adamw") and isinstance(bank, MPOBank):
        return bank.spec.depth_scale
    if kind not in ("bias", "norm"):
        return 1.0
    users = len(next(iter(bank.slices().values())))
    shared = parameter.shape[0] < users
    # The gradient of what all layers share grows with their number as well.
    return float((USUAL_DEPTH / users) ** (2 if shared and optimizer == "sgd" else 1))


def _optimizer(given: object) -> str:
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if name.lower() not in OPTIMIZERS:
        raise ConfigError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}."
            f"{close_to(name.lower(), OPTIMIZERS)}"
        )
    return name.lower()


def _rates(given: object) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"rates must map kinds to factors, got {given!r}.")
    for kind, factor in given.items():
        _check_kind("rates", kind, KINDS)
        _check_number(f"rates[{kind!r}]", factor)
    return {kind: float(factor) for kind, factor in given.items()}


def _decayed(given: object) -> set[str]:
    kinds = (given,) if isinstance(given, str) else given
    if not isinstance(kinds, Iterable):
        raise ConfigError(f"decayed must name kinds of tensors, got {given!r}.")
    listed = list(kinds)
    for kind in listed:
        _check_kind("decayed", kind, MAY_DECAY)
    return set(listed)


def _check_kind(argument: str, kind: object, known: tuple[str, ...]) -> None:
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(
            f"{argument} must name kinds of tensors, got {kind!r}. {did_you_mean(str(kind), known)}"
        )


def _check_number(name: str, value: object) -> None:
    number = own_number(value)
    if type(number) not in (int, float) or not 0.0 <= number < math.inf:
        raise ConfigError(f"{name} must be a number >= 0, got {value!r}.")
