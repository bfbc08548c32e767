"""Back to dense: a plain model with the matrices that a converted one rebuilds."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from mpobert_plugin.accounting import account
from mpobert_plugin.attach_outside import detach_outside
from mpobert_plugin.checkpointing import forbid_checkpointing
from mpobert_plugin.guard import allow_saving, remove_guard
from mpobert_plugin.locate import BANKS, base_of, owners_of
from mpobert_plugin.of_peft import MERGE_BOTH
from mpobert_plugin.placement import forget_banks
from mpobert_plugin.plain_modules import check_undispatched, check_unwrapped, plain_modules
from mpobert_plugin.recompute import drop_carrying
from mpobert_plugin.rounding import check_dtype
from mpobert_plugin.runtime import banks_of, remove_hooks
from mpobert_plugin.skeleton import forget_conversion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.rounding import MergeReport

Model = TypeVar("Model", bound="PreTrainedModel")


def merge(model: Model, dtype: torch.dtype | None = None) -> Model:
    """Return a plain model of the same class that computes the same; loadable without the plugin.

    Each matrix is the product of its cores with its adapter added, computed in float64 and
    rounded once. What layers share becomes a copy in each of them, as the plain class has it: an
    ALBERT that was converted without options keeps its one layer, while an MPOBERT of 48 layers
    becomes an ALBERT of 48 groups. Ties between embedding and head, training mode, device,
    ``requires_grad`` and the configuration of generation stay. The memory is that of both models
    and a few matrices; the given model is not changed.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    dtype : torch.dtype, optional
        Floating-point type of all parameters of the result; that of the model by default.

    Returns
    -------
    transformers.PreTrainedModel
        A new model.

    Raises
    ------
    ConversionError
        When the model is not converted, has no values, or has been changed since, so that a
        matrix would be wrong; the full name is told.
    ConfigError
        When `dtype` is none that models have, or too small for an entry.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> merged = merge(mp.convert(plain, n=3, max_bond=2))
    >>> merged.encoder.layer[0].attention.self.query
    Linear(in_features=8, out_features=8, bias=True)
    """
    return merge_with_report(model, dtype)[0]


def merge_with_report(model: Model, dtype: torch.dtype | None = None) -> tuple[Model, MergeReport]:
    """Return a plain model as `merge` does, and the rounding error of each of its matrices.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    dtype : torch.dtype, optional
        Floating-point type of all parameters of the result; that of the model by default.

    Returns
    -------
    tuple of (transformers.PreTrainedModel, MergeReport)
        The new model and the report.

    Raises
    ------
    MPOBertError
        As `merge` does.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> _, report = merge_with_report(mp.convert(plain, n=3))
    >>> len(report.errors), report.largest < 1e-7
    (12, True)
    """
    banks_of(model, MERGE_BOTH)
    check_unwrapped(model)
    return merged_copy(model, model, dtype)


def merged_copy(
    root: nn.Module, model: PreTrainedModel, dtype: torch.dtype | None
) -> tuple[Any, MergeReport]:
    """Return a copy of a module in which a converted model is plain, and the report.

    Parameters
    ----------
    root : torch.nn.Module
        The model, or a wrapper around it.
    model : transformers.PreTrainedModel
        The converted model.
    dtype : torch.dtype or None
        Floating-point type of all parameters of the result.

    Returns
    -------
    tuple of (torch.nn.Module, MergeReport)
        The copy and the report.

    Raises
    ------
    MPOBertError
        As `merge` does.
    """
    dtype, banks = check_dtype(dtype), banks_of(model)
    check_undispatched(root)
    # Tensors made under inference_mode could never be trained.
    with torch.inference_mode(False), torch.no_grad():
        made = plain_modules(model, dtype)
        # The banks are not copied; what stands in their place is thrown away.
        memo: dict[int, Any] = {id(banks): nn.Identity(), **made.modules}
        result = copy.deepcopy(root, memo)
        inner = memo[id(model)]
        _clean(inner)
        if dtype is not None:
            for parameter in result.parameters():
                parameter.data = parameter.data.to(dtype)
    return result, made.report(account(model).unique, account(inner).unique)


def _clean(model: PreTrainedModel) -> None:
    """Take out of a copy what makes a model a converted one."""
    base = base_of(model)
    del base._modules[BANKS]
    remove_hooks(base)
    remove_guard(base)
    forbid_checkpointing(owners_of(model))
    forget_banks(model)
    allow_saving(base)
    drop_carrying(base)
    detach_outside(model)
    for module in model.modules():
        forget_conversion(vars(module).get("config"))
