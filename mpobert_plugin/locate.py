"""Find the base model, its family, its layers and, once converted, its banks."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from mpobert_plugin.errors import ConversionError, ModelTypeError
from mpobert_plugin.families import Family, derived_family, family_for, known_model_types
from mpobert_plugin.families.derived import AND, MARK, matrix_lists
from mpobert_plugin.of_peft import READ_INSIDE, inside

if TYPE_CHECKING:
    from torch import nn

BANKS = "mpo"


def check_model(model: object, of_peft: str = READ_INSIDE) -> PreTrainedModel:
    """Return the model if it is one of transformers' models whose layers can be found.

    Parameters
    ----------
    model : object
        Whatever the user gave.
    of_peft : str
        What to do with a model of PEFT instead; by default the model inside is what is meant.

    Returns
    -------
    transformers.PreTrainedModel
        The same object.

    Raises
    ------
    ModelTypeError
        When it is no such model.
    """
    if not isinstance(model, PreTrainedModel):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ModelTypeError(
            f"model must be a model of transformers, got {got}. {_to_pass(model, of_peft)}".rstrip()
        )
    if not has_family(model):
        raise ModelTypeError(
            f"model must be of one of the families {', '.join(known_model_types())}, or have "
            f"linear layers in a numbered ModuleList, got {type(model).__name__} of type "
            f"{model.config.model_type!r}. Describe its layers with "
            "mpobert_plugin.families.register_family."
        )
    return model


def _to_pass(model: object, of_peft: str) -> str:
    """Return what to pass in the place of something that is no model; empty when unknown."""
    if isinstance(model, type):
        return "Make a model of it, or load one with its from_pretrained."
    if isinstance(model, str | PathLike):
        return "Load it first, with a class of transformers and its from_pretrained."
    if inside(model) is not None:
        return of_peft
    inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
    return "Pass the model inside the wrapper." if isinstance(inner, PreTrainedModel) else ""


def has_family(model: PreTrainedModel) -> bool:
    """Return whether a model's layers can be found: its family is known or can be derived.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model.

    Returns
    -------
    bool
        False for a model of an unknown type without a numbered list of layers.
    """
    known = model.config.model_type in known_model_types()
    return known or is_converted(model) or bool(matrix_lists(base_of(model)))


def base_of(model: PreTrainedModel) -> nn.Module:
    """Return the base model: the model without its head, or the model itself.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    torch.nn.Module
        The module that owns the layers and, once converted, the banks.
    """
    base: nn.Module = model.base_model
    return base


def owners_of(model: PreTrainedModel) -> list[PreTrainedModel]:
    """Return a model and, when it is a model of its own, its base model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    list of transformers.PreTrainedModel
        One or two; what transformers keeps on a model must be said to both.
    """
    base = base_of(model)
    if isinstance(base, PreTrainedModel) and base is not model:
        return [model, base]
    return [model]


def prefix_of(model: PreTrainedModel) -> str:
    """Return what comes before the base model's names in the names of the whole model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    str
        Text such as ``"bert."``, or an empty one for a base model.
    """
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    Family
        That of its banks once it is converted, else the one that was registered for its type,
        else one derived from its layers.

    Raises
    ------
    ConversionError
        When the type is unknown and no family can be derived.
    """
    base, model_type = base_of(model), model.config.model_type
    family = getattr(base._modules.get(BANKS), "family", None)
    if isinstance(family, Family):
        return family
    layers = _stored_layers(model)
    if layers is None and model_type in known_model_types():
        return family_for(model_type)
    return derived_family(base, model_type, layers)


def _stored_layers(model: PreTrainedModel) -> str | None:
    """Return the lists of layers that the plan of a model in loading names, when it has them."""
    plan = getattr(getattr(model.config, "quantization_config", None), "plan", None)
    model_type, _, layers = str(getattr(plan, "family", "")).partition(MARK)
    known = matrix_lists(base_of(model))
    if model_type != model.config.model_type or not set(layers.split(AND)) <= set(known):
        return None
    return layers


def is_converted(model: PreTrainedModel) -> bool:
    """Return whether a model has banks.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    bool
        True for a converted model.
    """
    return BANKS in base_of(model)._modules


def layer_names(model: PreTrainedModel) -> list[str]:
    """Return the names of the layers, seen from the base model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    list of str
        At least one name.

    Raises
    ------
    ConversionError
        When the model has no layer that the family knows.
    """
    names = family_of(model).layer_names(base_of(model))
    if not names:
        raise ConversionError(
            f"model must have layers named like {family_of(model).layer_pattern!r}, got a "
            f"{type(model).__name__} without any."
        )
    return names


def uses_of_layers(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the layer module that each step of the forward runs, by number.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model of a family.

    Returns
    -------
    tuple of int
        ``(0, 1, 2, ...)`` where each layer runs once; ``(0, 0, 0, ...)`` for an ALBERT of one
        group.
    """
    if not family_of(model).repeats_layers:
        return tuple(range(len(layer_names(model))))
    config = model.config
    steps = config.num_hidden_layers * config.inner_group_num
    return repeated_layers(config.num_hidden_groups, config.inner_group_num, steps)


def repeated_layers(groups: int, inner: int, steps: int) -> tuple[int, ...]:
    """Return the layer module that each step runs when groups of layers are repeated.

    Parameters
    ----------
    groups : int
        Number of groups.
    inner : int
        Number of layers in a group, run one after the other.
    steps : int
        Number of steps, a multiple of `inner`.

    Returns
    -------
    tuple of int
        Number of the layer module, counted over all groups.

    Examples
    --------
    >>> repeated_layers(2, 1, 5)
    (0, 0, 0, 1, 1)
    """
    turns = steps // inner
    # The host rounds turn / (turns / groups) down, and so must this.
    picked = [int(turn / (turns / groups)) for turn in range(turns)]
    return tuple(group * inner + k for group in picked for k in range(inner))
