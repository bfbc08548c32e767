"""Heads that use the matrix of the word embedding, and the ties that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn
from transformers import PreTrainedModel

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.locate import prefix_of
from mpobert_plugin.outside import EMBEDDING, outside_paths
from mpobert_plugin.plain import check_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def tied_heads(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the output layers whose weight is the word embedding's, as the configuration says.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model, on the meta device perhaps.

    Returns
    -------
    dict of str to torch.nn.Linear
        Layers by full name; none in a base model, or when the configuration ties nothing.

    Raises
    ------
    ConversionError
        When a tied module is no plain linear layer.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> plain = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_head=1, n_layer=1))
    >>> tied_heads(plain)
    {'lm_head': Linear(in_features=4, out_features=9, bias=False)}
    """
    heads = {}
    for target in _targets(model):
        name = target.removesuffix(".weight")
        head = model.get_submodule(name)
        if isinstance(head, nn.Embedding):
            raise _several_embeddings(model, name)
        check_plain(name, head, (nn.Linear,))
        heads[name] = cast("nn.Linear", head)
    return heads


def check_heads(model: PreTrainedModel) -> None:
    """Refuse an embedding whose weight is used in ways that its bank could not follow.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model with values.

    Raises
    ------
    ConversionError
        When ties and configuration disagree, or something else than an output layer uses the
        weight; both full names are told.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> check_heads(BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)))
    """
    source = _source(model)
    # The host reads words by a copy of another embedding, which the others follow.
    first = model.get_expanded_tied_weights_keys(all_submodels=True).get(source)
    if first is not None:
        raise _several_embeddings(model, first.removesuffix(".weight"))
    declared = {f"{name}.weight" for name in tied_heads(model)}
    weight = model.get_parameter(source)
    users = {
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name != source and _is_same(parameter, weight)
    }
    for name in sorted(users - declared):
        raise ConversionError(
            f"{source} and {name} must be two parameters, got one that both use, although the "
            "configuration of the model does not tie them. Load the model with "
            f"tie_word_embeddings=True, or leave {EMBEDDING!r} out of targets. Nothing was changed."
        )
    for name in sorted(declared - users):
        raise ConversionError(
            f"{name} must be the parameter {source}, since config.tie_word_embeddings is True, "
            "got two parameters. Tie them with model.tie_weights(), or say that they are two with "
            "model.config.tie_word_embeddings = False. Nothing was changed."
        )


def _several_embeddings(model: PreTrainedModel, other: str) -> ConversionError:
    return ConversionError(
        f"{EMBEDDING!r} in targets needs a word embedding that only output layers share, got "
        f"{_source(model).removesuffix('.weight')}, which {other} shares, another embedding, as "
        "models with an encoder and a decoder have. One that only heads share, as in BERT and "
        f"GPT-2, can be converted; leave {EMBEDDING!r} out here. Nothing was changed."
    )


def cut_ties(model: PreTrainedModel) -> None:
    """Make transformers forget that heads are tied to the embedding: both will read one bank.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place; other ties, such as those of biases, stay.
    """
    for prefix, owner in _owners(model):
        source = _source(model).removeprefix(prefix)
        ties = owner.get_expanded_tied_weights_keys(all_submodels=False)
        kept = {target: name for target, name in ties.items() if name != source}
        if kept != ties:
            # On the object, since other models of the class keep theirs.
            vars(owner)["_tied_weights_keys"] = kept
        known = vars(owner).get("all_tied_weights_keys", {})
        vars(owner)["all_tied_weights_keys"] = {t: n for t, n in known.items() if n != source}


def restore_ties(model: PreTrainedModel) -> None:
    """Undo `cut_ties` for a model that is plain again.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place; without ties that were cut nothing happens.
    """
    for _, owner in _owners(model):
        if vars(owner).pop("_tied_weights_keys", None) is not None:
            ties = owner.get_expanded_tied_weights_keys(all_submodels=True)
            vars(owner)["all_tied_weights_keys"] = ties
            # Biases that were one parameter are so again.
            owner.tie_weights()


def _source(model: PreTrainedModel) -> str:
    return f"{prefix_of(model)}{outside_paths(model)[EMBEDDING]}.weight"


def _targets(model: PreTrainedModel) -> list[str]:
    source = _source(model)
    ties = model.get_expanded_tied_weights_keys(all_submodels=True)
    return [target for target, name in ties.items() if name == source]


def _owners(model: PreTrainedModel) -> Iterator[tuple[str, PreTrainedModel]]:
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            yield f"{name}." if name else "", module


def _is_same(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    both = not a.is_meta and not b.is_meta and a.numel() > 0
    return both and a.device == b.device and a.data_ptr() == b.data_ptr()
