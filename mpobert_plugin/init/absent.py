"""First values of what a conversion put into a model and a checkpoint does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpobert_plugin.adapter import AdaptedLinear, init_adapter
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.init.fresh import fill_fresh
from mpobert_plugin.runtime import Banks, banks_of
from mpobert_plugin.unfilled import FILLED

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def init_absent(model: PreTrainedModel, module: nn.Module) -> None:
    """Give a module of a converted model its first values where no file gave any, in place.

    These are an adapter beside a plain layer, the bias of a tied head, and the matrix of a pooler
    that the saved model did not have. Everything else is the host's to initialize.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model whose loaded tensors carry transformers' mark.
    module : torch.nn.Module
        A part of it.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> init_absent(model, model.embeddings)
    """
    if isinstance(module, AdaptedLinear):
        if _is_absent(module.adapter_up):
            init_adapter(module.adapter_up, module.adapter_down)
    elif isinstance(module, MPOHead):
        bias = module._parameters["bias"]
        if bias is not None and _is_absent(bias):
            with torch.no_grad():
                bias.zero_()
    elif isinstance(module, MPOBank) and _is_new(module):
        plan = banks_of(model).plan
        fill_fresh(Banks({module.role: module}, plan), _std(model), plan.gauge)


def _is_new(bank: MPOBank) -> bool:
    return bank.outside and all(_is_absent(tensor) for tensor in bank.parameters())


def _is_absent(tensor: Tensor) -> bool:
    return not getattr(tensor, FILLED, False) and not tensor.is_meta


def _std(model: PreTrainedModel) -> float:
    return float(getattr(model.config, "initializer_range", 0.02))
