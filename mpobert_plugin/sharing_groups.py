"""Which modules of a converted model read the same slice of a tensor, by their full names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.reader import Reader
from mpobert_plugin.runtime import banks_of
from mpobert_plugin.stacked import StackedBank

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def sharing_groups(model: PreTrainedModel) -> dict[str, list[list[str]]]:
    """Return the groups of modules that share a slice, for each tensor of the banks.

    A bank holds every tensor once, under one name. Tools that look for parameters with several
    names find none, and need none: nothing can come apart. This lists who shares nevertheless.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    dict of str to list of list of str
        ``"bank.tensor"`` to its groups of two and more full module names, all of a module that
        has several; tensors that nobody shares are left out.

    Raises
    ------
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3, sharing="all", fit="mean", targets=["ffn_in"])
    >>> for tensor, groups in sharing_groups(model).items():
    ...     print(tensor, *groups[0])
    ffn_in.central encoder.layer.0.intermediate.dense encoder.layer.1.intermediate.dense
    """
    banks = banks_of(model)
    names = {id(bank): name for name, bank in banks.items() if isinstance(bank, StackedBank)}
    found: dict[tuple[str, int], list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, Reader) or id(module.bank) not in names:
            continue
        for tensor, slices in module.bank.slices().items():
            key = (f"{names[id(module.bank)]}.{tensor}", slices[module.slot])
            found.setdefault(key, []).append(path)
    groups: dict[str, list[list[str]]] = {}
    for (tensor, _), users in sorted(found.items(), key=lambda entry: entry[0]):
        if len(users) > 1:
            groups.setdefault(tensor, []).append(users)
    return groups
