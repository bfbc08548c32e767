"""LoRA configurations that know the roles of a converted model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, TargetError, each_close_to
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.locate import check_model, family_of, prefix_of
from mpobert_plugin.needs import require
from mpobert_plugin.options import own_number
from mpobert_plugin.parts import module_beside
from mpobert_plugin.peft.checks import check_names, check_options, check_saved, check_tokens
from mpobert_plugin.peft.task_heads import task_heads

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


def lora_config(
    model: PreTrainedModel,
    rank: int = 8,
    targets: Sequence[str] | None = None,
    *,
    alpha: float | None = None,
    modules_to_save: Sequence[str] | None = None,
    **options: Any,
) -> LoraConfig:
    """Return a LoRA configuration for ``peft.get_peft_model(model, config)``.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model of any head.
    rank : int
        Rank of the LoRA matrices.
    targets : sequence of str, optional
        Roles, such as 'query' and 'ffn_in', or paths inside a layer; by default those that get
        adapters of the library's own. Each name must exist.
    alpha : float, optional
        The product is scaled by alpha / rank; alpha is the rank by default.
    modules_to_save : sequence of str, optional
        Modules that are trained whole and saved with the adapter. By default the head of a new
        task, such as a classifier, which starts at random; none for a language model or a model
        in pre-training, whose heads know their task.
    **options
        Further options of ``peft.LoraConfig``, such as ``lora_dropout``.

    Returns
    -------
    peft.LoraConfig
        A configuration that knows `MPOLinear`.

    Raises
    ------
    MissingPackageError
        When PEFT is not installed.
    TargetError
        When a name is none of the model's; close names are told.
    ConfigError
        When an option is impossible or would change the base weights.

    Examples
    --------
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> bert = BertForSequenceClassification(BertConfig(num_hidden_layers=2, **sizes))
    >>> config = lora_config(mp.convert(bert, n=3), rank=2, targets=["query", "value"])
    >>> config.modules_to_save
    ['classifier']
    """
    require("peft", extra="peft")
    from peft import LoraConfig

    check_model(model)
    saved = task_heads(model) if modules_to_save is None else list(modules_to_save)
    check_names(model, saved, "modules_to_save")
    if type(rank) is not int or rank < 1:
        raise ConfigError(f"rank must be an integer >= 1, got {rank!r}.")
    scale = own_number(rank if alpha is None else alpha)
    if type(scale) not in (int, float) or not 0 < scale < math.inf:
        raise ConfigError(f"alpha must be a number above 0, got {alpha!r}.")
    given: dict[str, Any] = {
        "r": rank,
        "lora_alpha": scale,
        "target_modules": _pattern(model, targets),
        "modules_to_save": saved or None,
    }
    try:
        config = LoraConfig(**given, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"options must be some that peft.LoraConfig takes beside {', '.join(given)}, which are "
            f"made here, got {', '.join(options)}: {error} Whatever needs a list of names for "
            "target_modules goes into a LoraConfig of your own and mpobert_plugin.peft.register."
        ) from error
    return register(config, model)


def register(config: LoraConfig, model: PreTrainedModel | None = None) -> LoraConfig:
    """Return the configuration after telling it how LoRA goes around an `MPOLinear`.

    PEFT refuses converted layers without. What PEFT stores does not hold this: a configuration
    that is read back must be registered again, which `load` does.

    Parameters
    ----------
    config : peft.LoraConfig
        Any LoRA configuration; changed in place.
    model : transformers.PreTrainedModel, optional
        The model that is to be adapted, to check that every name of ``target_modules`` and
        ``modules_to_save`` exists; PEFT itself is content with one of them.

    Returns
    -------
    peft.LoraConfig
        The same object.

    Raises
    ------
    MissingPackageError
        When PEFT is not installed.
    ConfigError
        When it is no LoRA configuration, or asks for what would change the base weights.
    TargetError
        When a name matches no module of `model`; close names are told.

    Examples
    --------
    >>> from peft import LoraConfig
    >>> config = register(LoraConfig(target_modules=["query"]))
    """
    require("peft", extra="peft")
    from peft import LoraConfig

    from mpobert_plugin.peft.injection import know_banks
    from mpobert_plugin.peft.layer import LoraMPOLinear
    from mpobert_plugin.peft.refusal import ask_before_merging

    if not isinstance(config, LoraConfig):
        raise ConfigError(f"config must be a peft.LoraConfig, got {type(config).__name__}.")
    check_options(config)
    if model is not None:
        check_model(model)
        check_names(model, config.target_modules, "target_modules")
        check_names(model, config.modules_to_save, "modules_to_save")
        check_saved(model, config.modules_to_save)
        check_tokens(model, config.trainable_token_indices)
    ask_before_merging()
    know_banks()
    config._register_custom_module({MPOLinear: LoraMPOLinear})
    return config


def _pattern(model: PreTrainedModel, targets: Sequence[str] | None) -> str:
    """Return a regular expression of the full names of the matrices of some roles.

    Names alone would match by their ends: 'output.dense' is two matrices of a BERT layer.
    """
    family = family_of(model)
    beside = {role: path for role, path in family.beside.items() if module_beside(model, path)}
    known = {**family.matrices, **beside}
    if targets is None:
        roles = [role for role in family.adapter_defaults if role in known]
    else:
        roles = _roles(targets, known)
    inside: dict[str, list[str]] = {}
    for role in roles:
        if role not in beside:
            layers = family.layers_of_role.get(role, family.layer_pattern)
            inside.setdefault(layers, []).append(re.escape(known[role]))
    parts = [rf"{layers}\.({'|'.join(paths)})" for layers, paths in inside.items()]
    parts += [re.escape(known[role]) for role in roles if role in beside]
    return re.escape(prefix_of(model)) + "(" + "|".join(parts) + ")"


def _roles(targets: object, known: dict[str, str]) -> list[str]:
    names = [targets] if isinstance(targets, str) else targets
    if not isinstance(names, Iterable):
        raise ConfigError(f"targets must list names, got {targets!r}.")
    listed = list(names)
    if not listed:
        raise ConfigError("targets must list at least one name, got none.")
    # Layers of several lists may have different roles at one path.
    roles: dict[str, set[str]] = {}
    for role, path in known.items():
        roles.setdefault(path, set()).add(role)
    roles |= {role: {role} for role in known}
    unknown = [name for name in listed if name not in roles]
    if unknown:
        hints = each_close_to(map(str, unknown), known)
        raise TargetError(
            f"targets must name matrices of the model ({', '.join(known)}), got {len(unknown)} "
            f"unknown of {len(listed)}. {hints}"
        )
    asked = {role for name in listed for role in roles[name]}
    return [role for role in known if role in asked]
