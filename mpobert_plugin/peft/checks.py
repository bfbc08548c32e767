"""What a LoRA configuration must not ask of a converted model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpobert_plugin.embedding import MPOEmbedding
from mpobert_plugin.errors import ConfigError, TargetError, did_you_mean, shorten
from mpobert_plugin.locate import BANKS
from mpobert_plugin.reader import Reader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STARTS = (True, False, "gaussian")
# What would go around the banks: copies of layers with banks of their own, and LoRA on tensors.
_BEYOND = {
    "layer_replication": "a repeated layer would read a copy of the banks that nobody trains or "
    "saves. Deepen the model before: mpobert_plugin.from_albert(albert, num_layers).",
    "target_parameters": "the tensors of a bank are no matrices. Name roles: "
    "mpobert_plugin.peft.lora_config(model, targets=['query', 'value']).",
}


def check_options(config: Any) -> None:
    """Refuse options that write into the base weight, which is a copy in a converted model.

    Parameters
    ----------
    config : peft.LoraConfig
        The configuration.

    Raises
    ------
    ConfigError
        When it asks for another start than zeros in B, for a variant of LoRA, for biases of
        adapted layers alone, for repeated layers, or for LoRA on single tensors.
    """
    for name, reason in _BEYOND.items():
        if getattr(config, name, None):
            raise ConfigError(
                f"{name} must be left out on converted models, got {getattr(config, name)!r}: "
                f"{reason}"
            )
    start = config.init_lora_weights
    # 1 == True, but no option of PEFT.
    if not any(start is known or start == known for known in STARTS):
        raise ConfigError(
            f"init_lora_weights must be True, False or 'gaussian' on converted models, got "
            f"{start!r}, which changes the base weight: here that is a product of shared tensors."
        )
    fields = dataclasses.fields(config)
    variants = [field.name for field in fields if field.metadata.get("is_lora_variant")]
    for name in ("use_dora", *variants):
        if getattr(config, name, None):
            raise ConfigError(
                f"{name} must be left out on converted models, got {getattr(config, name)!r}: "
                "plain LoRA is what an MPOLinear can have."
            )
    if config.bias == "lora_only":
        raise ConfigError(
            "bias must be 'none' or 'all' on converted models, got 'lora_only': the biases are "
            "slices of one tensor of the bank."
        )


def in_bank(path: str) -> bool:
    """Return whether the name of a module is that of the banks, or of one of them.

    Parameters
    ----------
    path : str
        Full name.

    Returns
    -------
    bool
        True for banks.

    Examples
    --------
    >>> in_bank("bert.mpo.query"), in_bank("bert.encoder.layer.0.attention.self.query")
    (True, False)
    """
    return f".{BANKS}." in f".{path}."


def check_names(model: PreTrainedModel, names: object, argument: str) -> None:
    """Refuse names that match no module, as PEFT does only when none of them matches.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model that is to be adapted.
    names : str, iterable of str, or None
        A regular expression of full names, or names and ends of names; None is left to PEFT.
    argument : str
        Name of the option, for the message.

    Raises
    ------
    TargetError
        When a name matches nothing; close names are told.
    """
    if names is None:
        return
    paths = _adaptable(model)
    if isinstance(names, str):
        if names.lower() == "all-linear":
            raise TargetError(
                f"{argument}='all-linear' leaves out the matrices of a converted model. Name "
                "roles: mpobert_plugin.peft.lora_config(model, targets=['query', 'value'])."
            )
        if not any(re.fullmatch(names, path) for path in paths):
            raise TargetError(f"{argument} must match modules of the model, got {names!r}.")
        return
    listed = list(names) if isinstance(names, Iterable) else [names]
    unknown = [name for name in listed if not _matches(name, paths)]
    if unknown:
        known = sorted({path.rpartition(".")[2] for path in paths} - set(map(str, range(1000))))
        hints = " ".join(f"{name!r}: {did_you_mean(str(name), known)}" for name in unknown)
        raise TargetError(
            f"{argument} must name modules of the model, got {len(unknown)} unknown of "
            f"{len(listed)}: {shorten(map(str, unknown))}. {hints}"
        )


def _adaptable(model: PreTrainedModel) -> list[str]:
    """Return the names of modules outside the banks, and of none inside adapters there already."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    paths: list[str] = []
    inside = ""
    for path, module in model.named_modules():
        if not path or in_bank(path) or (inside and path.startswith(inside)):
            continue
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            inside = f"{path}."
        paths.append(path)
    return paths


def check_saved(model: PreTrainedModel, names: object) -> None:
    """Refuse to train whole what reads from a bank: PEFT would train a copy that nobody keeps.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model that is to be adapted.
    names : iterable of str, or None
        Modules to save.

    Raises
    ------
    TargetError
        When such a module, or one inside it, has its tensors in a bank.
    """
    listed = list(names) if isinstance(names, Iterable) else []
    for path, module in model.named_modules():
        name = next((name for name in listed if path and _matches(name, [path])), None)
        if name is not None and any(isinstance(part, Reader) for part in module.modules()):
            raise TargetError(
                f"modules_to_save must name modules with tensors of their own, got {name!r}: "
                f"{path} reads tensors of a bank. Name its role in targets instead, or train the "
                "bank without PEFT: mpobert_plugin.freeze(model, train=['auxiliary', 'head'])."
            )


def check_tokens(model: PreTrainedModel, indices: object) -> None:
    """Refuse to train single rows of an embedding that is an MPO: all rows share its cores.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model that is to be adapted.
    indices : list of int, mapping of str to list of int, or None
        Rows of the embedding of the tokens, or rows by names of modules.

    Raises
    ------
    ConfigError
        When such a module has its rows in a bank.
    """
    if not indices:
        return
    named = indices if isinstance(indices, Mapping) else None
    for path, module in model.named_modules():
        meant = any(_matches(name, [path]) for name in named) if named else path
        if meant and isinstance(module, MPOEmbedding):
            raise ConfigError(
                f"trainable_token_indices must be left out where {path} is an MPO, got {indices!r}:"
                " its rows share their cores. Convert the model without 'embedding' among targets."
            )


def _matches(name: object, paths: Sequence[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for path in paths)
