"""Give a model readers in the place of matrices outside its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import EmbeddingBank, MPOEmbedding, MPOHead
from mpobert_plugin.heads import cut_ties, restore_ties, tied_heads
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.locate import BANKS, base_of, family_of
from mpobert_plugin.outside import EMBEDDING
from mpobert_plugin.parts import module_beside
from mpobert_plugin.uncompiled import no_graph_of_its_own
from mpobert_plugin.vocabulary import fix_vocabulary, free_vocabulary

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.runtime import Banks


def outside_banks(
    plan: ConversionPlan,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, MPOBank]:
    """Return uninitialized banks of the matrices outside the layers.

    Parameters
    ----------
    plan : ConversionPlan
        Sizes.
    device, dtype : optional
        Where and in which element type the tensors are made.

    Returns
    -------
    dict of str to MPOBank
        By role.
    """
    banks = {}
    for spec in plan.outside:
        kind = EmbeddingBank if spec.role == EMBEDDING else MPOBank
        banks[spec.role] = kind(spec, device, dtype)
        banks[spec.role].outside = True
    return banks


def outside_path(model: PreTrainedModel, role: str) -> str:
    """Return the path of a matrix outside the layers, whether this model has it or not.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.
    role : str
        'embedding', or a role beside the layers.

    Returns
    -------
    str
        Seen from the base model.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertForMaskedLM(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> outside_path(plain, "pooler")
    'pooler.dense'
    """
    family = family_of(model)
    return family.embedding if role == EMBEDDING else family.beside[role]


def attach_outside(model: PreTrainedModel, plan: ConversionPlan, banks: Banks) -> None:
    """Replace what the plan names outside the layers by readers of the banks, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model. One with another head may lack the pooler; its bank is then dropped.
    plan : ConversionPlan
        A plan made for this model or for its configuration.
    banks : Banks
        Banks of the plan.
    """
    for spec in plan.outside:
        path = outside_path(model, spec.role)
        plain, bank = module_beside(model, path), banks[spec.role]
        if plain is None:
            del banks[spec.role]
        elif isinstance(bank, EmbeddingBank):
            _attach_embedding(model, path, plain, bank)
        else:
            _put(base_of(model), path, MPOLinear(bank, 0), plain.training)  # type: ignore[arg-type]


def detach_outside(model: PreTrainedModel) -> None:
    """Take away what tells of an MPO embedding, for a model that is plain again.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place; without such an embedding nothing happens.
    """
    free_vocabulary(model)
    restore_ties(model)
    for hooks, own in ((model._forward_pre_hooks, _open), (model._forward_hooks, _close)):
        for number in [number for number, hook in hooks.items() if hook is own]:
            del hooks[number]
            model._forward_hooks_always_called.pop(number, None)


def _attach_embedding(
    model: PreTrainedModel, path: str, plain: nn.Module, bank: EmbeddingBank
) -> None:
    padding: Any = plain.padding_idx
    bank.padding_idx = padding
    heads = tied_heads(model)
    bank.heads = tuple(heads)
    cut_ties(model)
    embedding = MPOEmbedding(bank)
    _put(base_of(model), path, embedding, plain.training)
    for name, head in heads.items():
        _put(model, name, MPOHead(bank, head.bias), head.training)
    if heads:
        model.register_forward_pre_hook(_open)
        model.register_forward_hook(_close, always_call=True)
    fix_vocabulary(model, embedding)


def _put(root: nn.Module, path: str, module: nn.Module, training: bool) -> None:
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, module.train(training))


def _bank(model: Any) -> EmbeddingBank:
    bank: EmbeddingBank = base_of(model)._modules[BANKS]._modules[EMBEDDING]  # type: ignore[union-attr, assignment]
    return bank


@no_graph_of_its_own
def _open(model: nn.Module, _args: Any) -> None:
    """Begin a forward in which embedding and head use one matrix."""
    _bank(model).scope.set(True)


@no_graph_of_its_own
def _close(model: nn.Module, _args: Any, _output: Any) -> None:
    """Let go of the matrix of a forward, also after an error."""
    _bank(model).scope.set(False)
