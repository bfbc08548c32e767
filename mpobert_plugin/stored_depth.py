"""Compare the layers that a config.json asks for with its plan, before any of them is built."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from transformers import PretrainedConfig

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.families import Family, family_for, known_model_types
from mpobert_plugin.families.derived import MARK
from mpobert_plugin.plan import MOST_LAYERS
from mpobert_plugin.stored_plan import check_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpobert_plugin.plan import ConversionPlan

# Ends of the names by which configurations say how many modules of a kind a model has.
_COUNT = re.compile(r"(^|_)(layers?|blocks?|groups?|depths?|experts?)$")


def check_depth(config: PretrainedConfig, plan: ConversionPlan | None) -> None:
    """Refuse a configuration that asks for other layers than the stored plan, or for too many.

    Layers on the meta device take time and memory too, and a configuration from a stranger can
    ask for any number of them.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Configuration of the model that is about to be built.
    plan : ConversionPlan or None
        The plan beside it; None for a plain checkpoint.

    Raises
    ------
    CheckpointError
        When family or number of layers differ from the plan's; for families that do not say where
        their configuration has that number, when a count is above what any plan may name.

    Examples
    --------
    >>> from transformers import BertConfig
    >>> from mpobert_plugin.plan import ConversionPlan
    >>> check_depth(BertConfig(num_hidden_layers=2), ConversionPlan("bert", 2, (), (), ()))
    """
    family = None if plan is None else _family(config, plan)
    n_layers = None if family is None else _layer_modules(config, family)
    if plan is None or family is None or n_layers is None:
        _check_counts(config)
        return
    check_layers(plan, family, n_layers)
    _check_steps(config, plan, family)


def _family(config: PretrainedConfig, plan: ConversionPlan) -> Family | None:
    """Return the family that describes a type; None where it is read off the layers."""
    if MARK in plan.family or config.model_type not in known_model_types():
        return None
    return family_for(config.model_type)


def _layer_modules(config: PretrainedConfig, family: Family) -> int | None:
    counts = [getattr(config, name, None) for name in family.layer_counts]
    numbers = [count for count in counts if type(count) is int]
    return math.prod(numbers) if numbers and len(numbers) == len(counts) else None


def _check_steps(config: PretrainedConfig, plan: ConversionPlan, family: Family) -> None:
    """Refuse more steps than layers where conversion has given each step a layer of its own."""
    steps = getattr(config, "num_hidden_layers", plan.n_layers)
    if family.repeats_layers and plan.sources is not None and steps != plan.n_layers:
        raise CheckpointError(
            f"num_hidden_layers of config.json must be {plan.n_layers}, since the stored plan has "
            f"a layer of its own for each step, got {steps}. It was changed."
        )


def _check_counts(config: PretrainedConfig) -> None:
    for name, count in _counts(config):
        if count > MOST_LAYERS:
            raise CheckpointError(
                f"{name} of config.json must be at most {MOST_LAYERS}, which is what a stored "
                f"plan may name, got {count}. Use the config.json that save_pretrained wrote."
            )


def _counts(config: PretrainedConfig, prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from _counts(value, f"{prefix}{name}.")
        elif _COUNT.search(name) and type(value) is int:
            yield prefix + name, value
        elif _COUNT.search(name) and isinstance(value, list | tuple) and _is_per_stage(name):
            yield prefix + name, sum(number for number in value if type(number) is int)


def _is_per_stage(name: str) -> bool:
    """Tell counts of layers of several stages from lists of the numbers of layers."""
    return name.startswith("num_") or name.endswith("depths")
