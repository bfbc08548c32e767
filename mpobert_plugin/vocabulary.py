"""The size of a vocabulary whose rows share their cores stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.locate import base_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.embedding import MPOEmbedding

_METHOD = "resize_token_embeddings"


class FixedVocabulary:
    """What stands in the place of ``resize_token_embeddings`` of a model with an MPO embedding.

    Parameters
    ----------
    embedding : MPOEmbedding
        The embedding.
    """

    def __init__(self, embedding: MPOEmbedding) -> None:
        self.embedding = embedding

    def __call__(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,  # noqa: ARG002 (the host's signature)
    ) -> nn.Module:
        """Return the embedding when its size is to stay as it is.

        Parameters
        ----------
        new_num_tokens : int, optional
            Size that is asked for.
        pad_to_multiple_of : int, optional
            Number of which the size is to be a multiple.
        mean_resizing : bool
            How new rows would be filled.

        Returns
        -------
        MPOEmbedding
            The embedding.

        Raises
        ------
        ConversionError
            When another size is asked for.
        """
        rows = self.embedding.num_embeddings
        asked = rows if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of:
            asked = -(-asked // pad_to_multiple_of) * pad_to_multiple_of
        if asked == rows:
            return self.embedding
        raise ConversionError(
            f"resize_token_embeddings must keep the {rows} rows of an embedding that is an MPO, "
            f"whose cores all rows share, got {asked}. Resize the plain model and convert it "
            "again: plain = mpobert_plugin.merge(model); plain.resize_token_embeddings"
            f"({asked}); mpobert_plugin.convert(plain, ...). Nothing was changed."
        )


def fix_vocabulary(model: PreTrainedModel, embedding: MPOEmbedding) -> None:
    """Refuse another size of the vocabulary by name, where transformers would not know better.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place, with its base model.
    embedding : MPOEmbedding
        Its embedding.
    """
    for owner in (model, base_of(model)):
        vars(owner)[_METHOD] = FixedVocabulary(embedding)


def free_vocabulary(model: PreTrainedModel) -> None:
    """Undo `fix_vocabulary` for a model that is plain again.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place.
    """
    for owner in (model, base_of(model)):
        vars(owner).pop(_METHOD, None)
