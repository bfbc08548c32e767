"""The published MPOBERT models by name, a deeper one and tiny ones, fresh or on meta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from mpobert_plugin.attach import make_banks
from mpobert_plugin.config import MPOConfig, option_names
from mpobert_plugin.convert import assemble
from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.init.fresh import check_identity, fill_fresh
from mpobert_plugin.init.stable import fresh_factors, scaled_plan
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.locate import base_of, family_of, layer_names
from mpobert_plugin.options import check_integer, own_integer, refuse_unknown, refuse_useless
from mpobert_plugin.planning import make_plan, options_by_role
from mpobert_plugin.runtime import Banks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "mpobert-96": Preset(96, 1024, 4096, 16, _LARGE),
}
# To try things out: their middle cores hold most of the matrices, as in the large ones.
SMALL_PRESETS = {
    "mpobert-tiny": Preset(2, 128, 512, 2, ((128, (2, 4, 4, 2, 2)), (512, (4, 4, 4, 4, 2)))),
    "mpobert-mini": Preset(4, 256, 1024, 4, ((256, (2, 4, 4, 4, 2)), (1024, (4, 4, 4, 4, 4)))),
}


# What a builder of fresh models could only ignore, and why.
_USELESS = {
    "num_hidden_layers": "Give the number of layers as num_layers=.",
    "num_hidden_groups": "Every layer is a module of its own; which share is told by sharing=.",
    "inner_group_num": "Every layer is a module of its own; which share is told by sharing=.",
    "rtol": "Fresh weights have nothing to cut; bonds are told by max_bond=.",
    "fit": "Fresh weights are equal where they are shared.",
    "ratio": "A budget goes by the weights, which are fresh; bonds are told by max_bond=.",
    "max_params": "A budget goes by the weights, which are fresh; bonds are told by max_bond=.",
}

_OWN = ("head", "device", "num_layers", "dtype", "scale", "branch_multiplier")


def build(
    name: str,
    adapter_rank: int | Mapping[str, int] = 0,
    head: str = "pretraining",
    device: torch.device | str | int | None = None,
    *,
    num_layers: int | None = None,
    dtype: torch.dtype | str | None = None,
    scale: str | None = None,
    branch_multiplier: float | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Return a published model by name, with fresh weights.

    Parameters
    ----------
    name : str
        'mpobert-12', 'mpobert-24', 'mpobert-48', 'mpobert-48+', 'mpobert-96', or for trials
        'mpobert-tiny' (2 layers, hidden 128) and 'mpobert-mini' (4 layers, hidden 256).
    adapter_rank : int or mapping of str to int
        Rank of the adapters on query, key, value, attention output, pooler and embedding
        projection; 0 for none.
    head : str
        'pretraining', 'masked_lm', 'none', 'sequence_classification', 'token_classification',
        'question_answering' or 'multiple_choice'.
    device : torch.device, str or int, optional
        Where the model is made; on 'meta' nothing is allocated and it takes seconds.
    num_layers : int, optional
        Number of layers; the preset's when None.
    dtype : torch.dtype or str, optional
        Floating-point type of all parameters; torch's default one when None.
    scale : str, optional
        Scaling for depth of value, attention output and both feed-forward matrices instead of a
        branch multiplier: 'product' multiplies each by (2L)^(-1/2), 'per_core' each of its
        auxiliary tensors by (2L)^(-1/4).
    branch_multiplier : float, optional
        Factor of the attention output and of the second feed-forward matrix, carried by their
        auxiliary tensors and adapters: 1 / L by default, 1.0 for none.
    **options
        Options of `MPOConfig` and of ``transformers.AlbertConfig`` that replace the preset's.
        With `n`, or for sizes that the preset does not have, matrices get balanced factors.

    Returns
    -------
    transformers.PreTrainedModel
        A converted ALBERT. Matrices have the variance of the host's initialization, but for the
        factors for depth.

    Raises
    ------
    ConfigError
        When the name, the head or an option is unknown, has an impossible value, or could only be
        ignored.

    Examples
    --------
    >>> model = build("mpobert-12", head="none", device="meta")
    >>> sum(parameter.numel() for parameter in model.parameters())
    19413936
    """
    presets = {**PRESETS, **SMALL_PRESETS}
    _one_of("name", name, presets)
    _one_of("head", head, HEADS)
    preset = presets[name]
    layers = preset.layers if num_layers is None else own_integer(num_layers)
    check_integer("num_layers", layers, least=1)
    place, kind = _device(device), _dtype(dtype)
    host, config = _configs(preset, adapter_rank, options)
    # Parameters made under inference_mode could never be trained.
    with torch.inference_mode(False), place:
        model: PreTrainedModel = getattr(transformers, HEADS[head])(host).to(kind)
        model.config.dtype = kind
        plan = make_plan(model, config, sources=(0,) * layers)
        config = config.replace(**options_by_role(model, config))
        factors = fresh_factors(scale, branch_multiplier, plan)
        plan = scaled_plan(plan, factors)
        check_identity(plan)
        banks = Banks(dict(make_banks(plan, dtype=kind)), plan)
        if model.device.type != "meta":
            fill_fresh(banks, host.initializer_range, config.gauge)
        assemble(model, plan, banks, config)
        _scale_plain(model, factors)
    return model


def _scale_plain(model: PreTrainedModel, factors: Mapping[str, float]) -> None:
    """Scale the matrices that no bank holds, since `targets` left them out."""
    base, family = base_of(model), family_of(model)
    with torch.no_grad():
        for layer in layer_names(model):
            for role, factor in factors.items():
                module = base.get_submodule(f"{layer}.{family.matrices[role]}")
                if not isinstance(module, MPOLinear):
                    module.weight.mul_(factor)  # type: ignore[operator]


def _one_of(argument: str, given: object, known: Iterable[str]) -> None:
    names = list(known)
    if not isinstance(given, str) or given not in names:
        raise ConfigError(
            f"{argument} must be one of {', '.join(names)}, got {given!r}."
            f"{close_to(str(given), names)}"
        )


def _device(given: object) -> torch.device:
    if given is None:
        return torch.get_default_device()
    try:
        device = torch.device(given)  # type: ignore[call-overload]
        torch.empty(0, device=device)
    # torch asserts that it was built with CUDA.
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device must be one of this machine, got {given!r}: {reason}") from error
    return cast("torch.device", device)


def _dtype(given: object) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if found is None and given is None:
        found = torch.get_default_dtype()
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(
            f"dtype must be a floating-point type of torch such as 'float32', got {given!r}."
        )
    return found


def _configs(
    preset: Preset, adapter_rank: int | Mapping[str, int], options: dict[str, Any]
) -> tuple[transformers.AlbertConfig, MPOConfig]:
    refuse_useless(options, _USELESS, "build")
    known = option_names()
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "embedding_size": EMBEDDING,
        "max_position_embeddings": POSITIONS,
        "hidden_size": preset.hidden,
        "intermediate_size": preset.intermediate,
        "num_attention_heads": preset.heads,
    }
    theirs = {key: value for key, value in options.items() if key not in (*known, *_USELESS)}
    names = dict.fromkeys([*_OWN, *known, *sizes, *_host_options()])
    refuse_unknown(theirs, [name for name in names if name not in _USELESS], "build")
    sizes |= {key: own_integer(value) for key, value in theirs.items()}
    for key in ("vocab_size", "embedding_size", "max_position_embeddings", "hidden_size"):
        check_integer(key, sizes[key], least=1)
    check_integer("intermediate_size", sizes["intermediate_size"], least=1)
    check_integer("num_attention_heads", sizes["num_attention_heads"], least=1)
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise ConfigError(
            f"hidden_size must be a multiple of num_attention_heads, got {sizes['hidden_size']} "
            f"and {sizes['num_attention_heads']}."
        )
    ours = {key: value for key, value in options.items() if key in known}
    kept = {sizes["hidden_size"], sizes["intermediate_size"]}
    if ours.get("n") is None:
        # The preset's factors are for its own sizes.
        ours = {"shapes": {k: v for k, v in preset.shapes if k in kept} or None, **ours}
    config = MPOConfig(
        **{
            "sharing": preset.sharing,
            "share_bias": True,
            "share_norm": True,
            **{key: value for key, value in ours.items() if value is not None},
            "adapter_rank": adapter_rank,
        }
    )
    return _host_config(sizes), config


def _host_options() -> list[str]:
    fixed = {"model_type", "transformers_version", "architectures", "quantization_config", "dtype"}
    plain = transformers.AlbertConfig()
    names = sorted(name for name in set(plain.to_dict()) - fixed if not name.startswith("_"))
    return [*names, "num_labels", "attn_implementation"]


def _host_config(sizes: dict[str, Any]) -> transformers.AlbertConfig:
    # One layer is enough: its matrices only give the sizes and are then replaced.
    try:
        return transformers.AlbertConfig(**sizes, num_hidden_layers=1, num_hidden_groups=1)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ConfigError(f"AlbertConfig does not take these options: {error}") from error
