"""Heads that a new task needs trained: those that no pre-training has filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.locate import base_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A language model may have the head of a task beside that of its tokens.
_BESIDE_TOKENS = "choice_head"
# Where transformers keeps base model and head in one module, as T5 for questions has them.
_INSIDE = ("classification_head", "classifier", "projector", "qa_outputs", "score")


def task_heads(model: PreTrainedModel) -> list[str]:
    """Return the parts of a model that are new for its task.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.

    Returns
    -------
    list of str
        Names of modules that share no tensor with the base model. A head that returns tokens was
        pre-trained with its model, and is as large as the vocabulary: it is none, whether it is
        tied to the embedding or not, and neither are the heads of pre-training.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> config = BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)
    >>> task_heads(BertForTokenClassification(config)), task_heads(BertForMaskedLM(config))
    (['classifier'], [])
    """
    if "ForPreTraining" in type(model).__name__:
        return []
    base = base_of(model)
    of_base = set() if base is model else {id(parameter) for parameter in base.parameters()}
    heads = []
    for name, part in model.named_children():
        own = [id(parameter) for parameter in part.parameters()]
        if part is not base and own and not of_base.intersection(own):
            heads.append(name)
    tokens: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if tokens is not None:
        return [name for name in heads if name.endswith(_BESIDE_TOKENS)]
    return [name for name in heads if base is not model or name in _INSIDE]
