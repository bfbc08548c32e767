"""An MPOBERT of any depth from a pre-trained ALBERT."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mpobert_plugin.config import option_names
from mpobert_plugin.convert import convert_with, merge_options
from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError, MPOBertWarning
from mpobert_plugin.locate import check_model, family_of, is_converted, repeated_layers
from mpobert_plugin.options import own_integer, refuse_unknown
from mpobert_plugin.plain import check_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.sharing import LayerMap, Policies

Model = TypeVar("Model", bound="PreTrainedModel")

DEEP_INITS = ("copy",)
_DEFAULTS = {"sharing": "all", "share_bias": True, "share_norm": True}


def from_albert(
    albert: Model,
    num_layers: int = 48,
    sharing: Policies = None,
    adapter_rank: int | None = None,
    deep_init: str = "copy",
    config: MPOConfig | None = None,
    *,
    share_bias: Policies = None,
    share_norm: Policies = None,
    **options: Any,
) -> Model:
    """Return a new MPOBERT of the same class, with a module of its own for each layer.

    The one layer of the ALBERT is decomposed; every layer of the result starts with copies of
    its auxiliary tensors, and the central tensors are shared. At the depth of the source the
    result computes what the source computes. Embeddings and head are copied; the source is not
    changed.

    Parameters
    ----------
    albert : transformers.PreTrainedModel
        A plain ALBERT with any head.
    num_layers : int
        Number of layers of the result, more or fewer than the source runs.
    sharing : str, list of blocks, function or mapping, optional
        Which layers share central tensors, as `mpobert_plugin.convert` takes it: 'all' by default.
    adapter_rank : int, optional
        Rank of the low-rank adapters of each layer, the pooler and the embedding projection; 0
        by default.
    deep_init : str
        'copy': layers beyond the depth of the source start as copies too.
    config : MPOConfig, optional
        Options in one object. Those that are given by name override it; what neither says is as
        the defaults here tell.
    share_bias, share_norm : bool, str, list of blocks, function or mapping, optional
        Sharing of biases and norms: True by default, which is one for all layers.
    **options
        Further options of `mpobert_plugin.convert`.

    Returns
    -------
    transformers.PreTrainedModel
        A converted model of the class of `albert`, in its training mode.

    Raises
    ------
    ModelTypeError
        When the model is no ALBERT.
    ConfigError
        When an option is unknown or has an impossible value.
    ConversionError
        When the ALBERT is converted already, or a module of it cannot be copied or replaced.
    SharingError
        When the ALBERT has several groups, which `sharing` would join, and no `fit` is given.

    Examples
    --------
    >>> from transformers import AlbertConfig, AlbertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> albert = AlbertModel(AlbertConfig(vocab_size=9, embedding_size=4, **sizes))
    >>> model = from_albert(albert, num_layers=3, n=3)
    >>> model.config.num_hidden_layers, model.mpo["query"].auxiliary_0.shape
    (3, torch.Size([3, 1, 2, 2, 4]))
    """
    check_model(albert)
    if not family_of(albert).repeats_layers:
        raise ModelTypeError(
            f"albert must be an ALBERT, got {type(albert).__name__}. "
            "Use mpobert_plugin.convert for other models."
        )
    if is_converted(albert):
        raise ConversionError(
            f"albert must be plain, got a {type(albert).__name__} that is converted already."
        )
    if deep_init not in DEEP_INITS:
        raise ConfigError(f"deep_init must be 'copy', got {deep_init!r}.")
    refuse_unknown(options, ["num_layers", "deep_init", *option_names()], "from_albert")
    given = {
        **options,
        "sharing": sharing,
        "adapter_rank": adapter_rank,
        "share_bias": share_bias,
        "share_norm": share_norm,
    }
    merged = merge_options(config, given)
    silent = {n: value for n, value in _DEFAULTS.items() if getattr(merged, n) is None}
    sources = _sources(albert, own_integer(num_layers))
    for name, module in albert.named_modules():
        check_forward(name, module)
    # Tensors copied under inference_mode could never be trained.
    with torch.inference_mode(False):
        return convert_with(copy.deepcopy(albert), merged.replace(**silent), sources)


def _sources(albert: PreTrainedModel, num_layers: int) -> LayerMap:
    groups, inner = albert.config.num_hidden_groups, albert.config.inner_group_num
    if type(num_layers) is not int or num_layers < 1 or num_layers % inner:
        step = f", a multiple of the {inner} layers of a group" if inner > 1 else ""
        raise ConfigError(f"num_layers must be an integer >= 1{step}, got {num_layers!r}.")
    sources = repeated_layers(groups, inner, num_layers)
    unused = sorted(
        {layer // inner for layer in range(groups * inner)} - {s // inner for s in sources}
    )
    if unused:
        warnings.warn(
            f"groups {unused} of the {groups} groups of the ALBERT are in none of the "
            f"{num_layers} layers.",
            MPOBertWarning,
            stacklevel=3,
        )
    return sources
