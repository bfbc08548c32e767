"""An MPOBERT of any depth from a pre-trained ALBERT."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mpobert_plugin.config import option_names
from mpobert_plugin.convert import convert_with, merge_options
from mpobert_plugin.errors import (
    ConfigError,
    ConversionError,
    ModelTypeError,
    MPOBertWarning,
    close_to,
)
from mpobert_plugin.init.stable import DEEP_INITS, Deep, check_scale
from mpobert_plugin.locate import check_model, family_of, is_converted, repeated_layers
from mpobert_plugin.of_peft import CONVERT_BEFORE
from mpobert_plugin.options import check_integer, own_integer, refuse_unknown
from mpobert_plugin.plain import check_forward
from mpobert_plugin.wrapped import TO_CONVERT, refuse_wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transformers import PreTrainedModel

    from mpobert_plugin.calibrate import Batch
    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.sharing import LayerMap, Policies

Model = TypeVar("Model", bound="PreTrainedModel")

# What the text of the MPOBERT paper says; its listing scales copies, its code scales nothing.
PRESETS: dict[str | None, tuple[str, str | None]] = {
    None: ("copy", None),
    "paper": ("xavier_scaled", "per_core"),
}
_DEFAULTS = {"sharing": "all", "share_bias": True, "share_norm": True}


def from_albert(
    albert: Model,
    num_layers: int = 48,
    sharing: Policies = None,
    adapter_rank: int | Mapping[str, int] | None = None,
    deep_init: str | None = None,
    config: MPOConfig | None = None,
    *,
    share_bias: Policies = None,
    share_norm: Policies = None,
    scale: str | None = None,
    threshold: int | None = None,
    preset: str | None = None,
    calibration: Iterable[Batch] | None = None,
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
    adapter_rank : int or mapping of str to int, optional
        Rank of the low-rank adapters of each layer, the pooler and the embedding projection; 0
        by default.
    deep_init : str, optional
        What the auxiliary tensors of layers beyond `threshold` start from: 'copy' (by default),
        copies of the source's; 'copy_scaled', copies times the factor that `scale` tells, but for
        query and key; 'xavier_scaled', Xavier's random numbers times that factor.
    config : MPOConfig, optional
        Options in one object. Those that are given by name override it; what neither says is as
        the defaults here tell.
    share_bias, share_norm : bool, str, list of blocks, function or mapping, optional
        Sharing of biases and norms: True by default, which is one for all layers.
    scale : str, optional
        'product' (by default where something is scaled): the matrix is scaled by (2L)^(-1/2).
        'per_core': each of its auxiliary tensors is scaled by (2L)^(-1/4).
    threshold : int, optional
        Number of the first layer that starts as `deep_init` says: the depth of the source by
        default, 0 for all layers.
    preset : str, optional
        'paper': the wording of the MPOBERT paper, which is ``deep_init='xavier_scaled'`` and
        ``scale='per_core'``; options given beside it win.
    calibration : iterable of mappings or Tensors, optional
        A few batches for the ALBERT, as `mpobert_plugin.convert` takes them.
    **options
        Further options of `mpobert_plugin.convert`.

    Returns
    -------
    transformers.PreTrainedModel
        A converted model of the class of `albert`, in its training mode.

    Raises
    ------
    ModelTypeError
        When the model is no ALBERT, or wrapped or sharded.
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
    refuse_wrapped(albert, TO_CONVERT)
    check_model(albert, CONVERT_BEFORE)
    if not family_of(albert).repeats_layers:
        raise ModelTypeError(
            f"albert must be an ALBERT, got {type(albert).__name__}. "
            "Use mpobert_plugin.convert for other models."
        )
    if is_converted(albert):
        raise ConversionError(
            f"albert must be plain, got a {type(albert).__name__} that is converted already."
        )
    own = ("num_layers", "deep_init", "scale", "threshold", "preset")
    names = [*own, *option_names(), "calibration", "config"]
    refuse_unknown(options, names, "from_albert")
    deep = _deep(deep_init, scale, preset, threshold, albert.config.num_hidden_layers)
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
        own_copy = copy.deepcopy(albert)
        return convert_with(own_copy, merged.replace(**silent), sources, deep, calibration)


def _deep(
    deep_init: object, scale: str | None, preset: object, threshold: object, source_depth: int
) -> Deep:
    if preset is not None and preset != "paper":
        raise ConfigError(f"preset must be 'paper' or None, got {preset!r}.")
    usual = PRESETS["paper" if preset else None]
    init = usual[0] if deep_init is None else deep_init
    if not isinstance(init, str) or init not in DEEP_INITS:
        words = ", ".join(map(repr, DEEP_INITS))
        raise ConfigError(
            f"deep_init must be one of {words}, got {init!r}.{close_to(str(init), DEEP_INITS)}"
        )
    check_scale(scale)
    if init == "copy" and scale is not None:
        raise ConfigError(
            f"scale needs deep_init='copy_scaled' or 'xavier_scaled', got scale={scale!r} and "
            "deep_init='copy', which scales nothing."
        )
    first = source_depth if threshold is None else own_integer(threshold)
    check_integer("threshold", first, least=0)
    return Deep(first, init, None if init == "copy" else scale or usual[1] or "product")


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
