"""The published MPOBERT models by name, with fresh weights or on the meta device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from mpobert_plugin.attach import make_banks
from mpobert_plugin.config import MPOConfig
from mpobert_plugin.convert import assemble
from mpobert_plugin.errors import ConfigError, did_you_mean
from mpobert_plugin.init.fresh import fill_fresh
from mpobert_plugin.planning import make_plan
from mpobert_plugin.runtime import Banks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY = 30000
EMBEDDING = 128
POSITIONS = 512

HEADS = {
    "pretraining": "AlbertForPreTraining",
    "masked_lm": "AlbertForMaskedLM",
    "none": "AlbertModel",
    "sequence_classification": "AlbertForSequenceClassification",
    "token_classification": "AlbertForTokenClassification",
    "question_answering": "AlbertForQuestionAnswering",
    "multiple_choice": "AlbertForMultipleChoice",
}


@dataclass(frozen=True)
class Preset:
    """Sizes and sharing of a published model.

    Parameters
    ----------
    layers, hidden, intermediate, heads : int
        Sizes.
    shapes : tuple of (int, tuple of int)
        Factors of each size.
    sharing : str
        Which layers share central tensors.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    shapes: tuple[tuple[int, tuple[int, ...]], ...]
    sharing: str = "all"


_BASE = ((768, (4, 4, 4, 4, 3)), (3072, (4, 4, 8, 6, 4)))
_LARGE = ((1024, (4, 4, 4, 4, 4)), (4096, (4, 4, 8, 8, 4)))

PRESETS = {
    "mpobert-12": Preset(12, 768, 3072, 12, _BASE),
    "mpobert-24": Preset(24, 1024, 4096, 16, _LARGE),
    "mpobert-48": Preset(48, 1024, 4096, 16, _LARGE),
    "mpobert-48+": Preset(48, 1024, 4096, 16, _LARGE, "groups:3"),
}


def build(
    name: str,
    adapter_rank: int = 0,
    head: str = "pretraining",
    device: torch.device | str | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Return a published model by name, with fresh weights.

    Parameters
    ----------
    name : str
        'mpobert-12', 'mpobert-24', 'mpobert-48' or 'mpobert-48+'.
    adapter_rank : int
        Rank of the adapters on query, key, value, attention output, pooler and embedding
        projection; 0 for none.
    head : str
        'pretraining', 'masked_lm', 'none', 'sequence_classification', 'token_classification',
        'question_answering' or 'multiple_choice'.
    device : torch.device or str, optional
        Where the model is made; on 'meta' nothing is allocated and it takes seconds.
    **options
        Options of `MPOConfig` and of ``transformers.AlbertConfig`` that replace the preset's.

    Returns
    -------
    transformers.PreTrainedModel
        A converted ALBERT. Matrices have the variance of the host's initialization.

    Raises
    ------
    ConfigError
        When the name, the head or an option is unknown.

    Examples
    --------
    >>> model = build("mpobert-12", head="none", device="meta")
    >>> sum(parameter.numel() for parameter in model.parameters())
    19413936
    """
    if name not in PRESETS:
        raise ConfigError(
            f"name must be one of {', '.join(PRESETS)}, got {name!r}. "
            f"{did_you_mean(str(name), list(PRESETS))}"
        )
    if head not in HEADS:
        raise ConfigError(
            f"head must be one of {', '.join(HEADS)}, got {head!r}. "
            f"{did_you_mean(str(head), list(HEADS))}"
        )
    host, config = _configs(PRESETS[name], adapter_rank, options)
    with torch.device(device if device is not None else torch.get_default_device()):
        model: PreTrainedModel = getattr(transformers, HEADS[head])(host)
        layers = PRESETS[name].layers if "num_layers" not in options else options["num_layers"]
        plan = make_plan(model, config, sources=(0,) * layers)
        banks = Banks(dict(make_banks(plan)), plan)
        if model.device.type != "meta":
            fill_fresh(banks, host.initializer_range, config.gauge)
    assemble(model, plan, banks, config)
    return model


def _configs(
    preset: Preset, adapter_rank: int, options: dict[str, Any]
) -> tuple[transformers.AlbertConfig, MPOConfig]:
    known = [name for name in MPOConfig.__init__.__annotations__ if name not in ("return", "other")]
    ours: dict[str, Any] = {
        "sharing": preset.sharing,
        "shapes": dict(preset.shapes),
        "share_bias": True,
        "share_norm": True,
        **{key: value for key, value in options.items() if key in known},
    }
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "embedding_size": EMBEDDING,
        "max_position_embeddings": POSITIONS,
        "hidden_size": preset.hidden,
        "intermediate_size": preset.intermediate,
        "num_attention_heads": preset.heads,
    }
    theirs = {key: value for key, value in options.items() if key not in (*known, "num_layers")}
    unknown = [key for key in theirs if not hasattr(transformers.AlbertConfig(), key)]
    if unknown:
        names = [*known, *sizes]
        raise ConfigError(f"build has no option {unknown[0]!r}. {did_you_mean(unknown[0], names)}")
    # One layer is enough: its matrices only give the sizes and are then replaced.
    host = transformers.AlbertConfig(
        **{**sizes, **theirs, "num_hidden_layers": 1, "num_hidden_groups": 1}
    )
    return host, MPOConfig(adapter_rank=adapter_rank, **ours)
