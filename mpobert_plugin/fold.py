"""Adapters merged into plain matrices of each layer, in place, and taken out bit for bit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.accounting import account
from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConversionError, MPOBertWarning, shorten
from mpobert_plugin.fingerprint import fingerprint
from mpobert_plugin.guard import allow_saving, refuse_saving
from mpobert_plugin.held import Held, held_of, hold, let_go
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.locate import base_of
from mpobert_plugin.of_peft import MERGE_OR_UNLOAD
from mpobert_plugin.plain_modules import check_undispatched, check_unwrapped, plain_modules
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from mpobert_plugin.rounding import MergeReport
    from mpobert_plugin.runtime import Banks


def merge_adapters(model: PreTrainedModel) -> MergeReport:
    """Add every adapter to a plain matrix of its own layer, in place; return what that changed.

    A central tensor that layers share cannot take the adapter of one of them, so each adapted
    matrix becomes a plain one: computed in float64 with its adapter, rounded once to the element
    type of the model, and frozen. Banks without adapters stay as they are. The cores and adapters
    are kept aside, and `unmerge_adapters` brings them back bit for bit. Until then the model can
    run and train its other tensors; it cannot be saved, since a merged matrix has no cores.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model with adapters, changed in place.

    Returns
    -------
    MergeReport
        Rounding error of each matrix, and the stored parameters before and after.

    Raises
    ------
    ConversionError
        When the model is not converted, has no adapters or has merged them already, or when a
        matrix cannot be merged; nothing is changed then.

    Warns
    -----
    MPOBertWarning
        When layers shared a tensor that each of them has for itself now, with both counts.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3, adapter_rank=1, adapter_targets=["query"])
    >>> merge_adapters(model).adapters
    2
    >>> model.encoder.layer[0].attention.self.query
    Linear(in_features=8, out_features=8, bias=True)
    """
    banks = banks_of(model, MERGE_OR_UNLOAD)
    if is_merged(banks):
        raise ConversionError(
            "the adapters must not be merged yet, got a model in which they are. Call "
            "mpobert_plugin.unmerge_adapters(model) first."
        )
    check_unwrapped(model)
    check_undispatched(model)
    with torch.inference_mode(False), torch.no_grad():
        made = plain_modules(model, wanted=_is_adapted)
        if not made.modules:
            raise ConversionError(
                "model must have adapters to merge, got none. Ask for them when converting: "
                "adapter_rank=8."
            )
        before = account(model).unique
        modules = {id(module): module for module in model.modules()}
        originals = {name: modules[key] for key, name in made.names.items()}
        plain = {name: made.modules[key].requires_grad_(False) for key, name in made.names.items()}
        marks = {name: fingerprint(module.parameters()) for name, module in plain.items()}
        hold(banks, Held(originals, plain, marks, dict(banks.items())))
        _put(model, plain)
        shared = _drop_adapted(banks)
        refuse_saving(base_of(model))
    report = made.report(before, account(model).unique)
    if shared:
        warnings.warn(
            f"layers shared tensors of {shorten(shared)}; merged, each has a matrix of its own: "
            f"{report.stored_after:,} stored parameters instead of {report.stored_before:,}.",
            MPOBertWarning,
            stacklevel=2,
        )
    return report


def unmerge_adapters(model: PreTrainedModel) -> None:
    """Bring back the cores and adapters that `merge_adapters` took out, bit for bit.

    They follow the model to the device that it is on by now.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model with merged adapters, changed in place.

    Raises
    ------
    ConversionError
        When nothing is merged, or a merged matrix was changed, replaced or cast since, which
        would be lost; its full name is told and nothing is changed.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3, adapter_rank=1)
    >>> _ = merge_adapters(model)
    >>> unmerge_adapters(model)
    >>> type(model.encoder.layer[0].attention.self.query).__name__
    'MPOLinear'
    """
    banks = banks_of(model, MERGE_OR_UNLOAD)
    held = held_of(banks)
    if held is None:
        raise ConversionError(
            "the adapters must be merged, got a model in which they are not. Call "
            "mpobert_plugin.merge_adapters(model) first."
        )
    for name, plain in held.plain.items():
        _check_unchanged(model, name, plain, held.marks[name])
    device = next(iter(held.plain.values())).weight.device
    for module in (*held.originals.values(), *held.banks.values()):
        module.to(device)
    for name, original in held.originals.items():
        original.train(held.plain[name].training)
    _put(model, held.originals)
    banks._modules.clear()
    banks._modules.update(held.banks)
    banks.train(banks.training)
    let_go(banks)
    allow_saving(base_of(model))


def is_merged(banks: Banks) -> bool:
    """Return whether the adapters of a model are merged.

    Parameters
    ----------
    banks : Banks
        Banks of the model.

    Returns
    -------
    bool
        True between `merge_adapters` and `unmerge_adapters`.
    """
    return held_of(banks) is not None


def _is_adapted(module: nn.Module) -> bool:
    if isinstance(module, MPOLinear) and isinstance(module.bank, MPOBank):
        return module.bank.spec.adapter_rank > 0
    return isinstance(module, AdaptedLinear)


def _put(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module)


def _drop_adapted(banks: Banks) -> list[str]:
    """Take the adapted banks out of the model; return the names of those with shared tensors."""
    shared = []
    for name, bank in list(banks.items()):
        if isinstance(bank, MPOBank) and bank.spec.adapter_rank:
            del banks._modules[name]
            maps = (bank.spec.central, bank.spec.auxiliary)
            if any(len(set(slices)) < len(slices) for slices in maps):
                shared.append(name)
    return shared


def _check_unchanged(model: nn.Module, name: str, plain: nn.Module, mark: Tensor) -> None:
    place = model.get_submodule(name)
    now = fingerprint(parameter.detach() for parameter in plain.parameters()).cpu()
    if place is plain and now.shape == mark.shape and torch.equal(now, mark.cpu()):
        return
    raise ConversionError(
        f"{name} must be as it was merged, got another module, other values or another element "
        "type, which would be lost. Unmerge before training or casting, or call "
        "mpobert_plugin.merge(model) and go on with the plain model. Nothing was changed."
    )
