"""Matrices outside the layers: word embedding, pooler, projection of the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.host_matrix import HostMatrix
from mpobert_plugin.locate import family_of, prefix_of
from mpobert_plugin.parts import module_beside
from mpobert_plugin.plain import check_embedding, check_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING = "embedding"
# Choosing how rows are looked up takes time that grows with the square of the number.
MOST_SITES = 32


def outside_paths(model: PreTrainedModel) -> dict[str, str]:
    """Return the matrices outside the layers that a model has, by role, with their paths.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family, plain or converted.

    Returns
    -------
    dict of str to str
        Role to the path of the module, seen from the base model.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> config = BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)
    >>> outside_paths(BertModel(config))
    {'embedding': 'embeddings.word_embeddings', 'pooler': 'pooler.dense'}
    >>> list(outside_paths(BertForMaskedLM(config)))
    ['embedding']
    """
    family = family_of(model)
    known = {EMBEDDING: family.embedding, **family.beside}
    return {
        role: path
        for role, path in known.items()
        # A role of the layers goes before one outside them.
        if path and role not in family.matrices and module_beside(model, path) is not None
    }


def outside_matrix(model: PreTrainedModel, role: str) -> tuple[str, HostMatrix]:
    """Return the matrix of a role outside the layers with the full name of its module.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model that has the role.
    role : str
        A key of `outside_paths`.

    Returns
    -------
    tuple of (str, HostMatrix)
        Full name and matrix; an embedding has a row for each word.

    Raises
    ------
    ConversionError
        When the module is no plain one, or does more than to look up rows.
    """
    path = outside_paths(model)[role]
    module, name = module_beside(model, path), prefix_of(model) + path
    if module is None:
        raise ConversionError(f"{name} must be there, got nothing.")
    if role == EMBEDDING:
        check_embedding(name, module)
    else:
        check_plain(name, module, (nn.Linear,))
    return name, HostMatrix(module)
