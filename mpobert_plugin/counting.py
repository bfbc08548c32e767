"""Count what a planned conversion would store, on the meta device, before anything is computed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from mpobert_plugin.accounting import account
from mpobert_plugin.attach import attach, expand_layers, make_banks
from mpobert_plugin.runtime import Banks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.accounting import ParameterReport
    from mpobert_plugin.plan import ConversionPlan


def planned_report(model: PreTrainedModel, plan: ConversionPlan) -> ParameterReport:
    """Return the counts of a model as it would be after a conversion; the model is only read.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    plan : ConversionPlan
        A plan made for it.

    Returns
    -------
    ParameterReport
        What `account` would return after the conversion.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> plan = mp.make_plan(plain, mp.MPOConfig(n=3, sharing="all"))
    >>> mp.account(plain).unique, planned_report(plain, plan).unique
    (5472, 5344)
    """
    skeleton = on_meta(model)
    expand_layers(skeleton, plan)
    attach(skeleton, plan, Banks(dict(make_banks(plan, device="meta")), plan))
    return account(skeleton)


def on_meta(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose tensors are on the meta device and take no memory.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model.

    Returns
    -------
    transformers.PreTrainedModel
        With the ties of the model.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> on_meta(BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))).device
    device(type='meta')
    """
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    memo |= {id(buffer): buffer.to("meta") for buffer in model.buffers()}
    return copy.deepcopy(model, memo)
