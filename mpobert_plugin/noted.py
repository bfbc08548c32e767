"""What a converted model was like when its conversion or loading ended, by names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpobert_plugin.locate import prefix_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What saving and casts write into a configuration, and what no tensor goes by.
_OTHER = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "dtype",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)


@dataclass(frozen=True)
class Noted:
    """Names and shapes of a model's tensors, and the configuration that they belong to.

    Parameters
    ----------
    base : dict of str to tuple of int
        Shapes by the base model's names; tensors without elements are left out.
    head : dict of str to tuple of int
        Shapes of all others, by full names.
    config : dict of str to object
        The fields of the configuration that the shape of a tensor may go by.
    """

    base: dict[str, tuple[int, ...]]
    head: dict[str, tuple[int, ...]]
    config: dict[str, Any]

    def same(self, other: Noted) -> bool:
        """Return whether a model or its base model alone is as another was noted.

        Parameters
        ----------
        other : Noted
            What was noted of the whole model.

        Returns
        -------
        bool
            False leaves open whether it can be saved.

        Examples
        --------
        >>> whole = Noted({"weight": (2, 2)}, {"head.weight": (3, 2)}, {})
        >>> Noted({"weight": (2, 2)}, {}, {}).same(whole)
        True
        """
        heads = not self.head or self.head == other.head
        return heads and (self.base, self.config) == (other.base, other.config)


def note(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Noted:
    """Return what a model is like.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.
    shapes : mapping of str to tuple of int, optional
        Shapes of what is to be saved in place of the model's own tensors, by full names.

    Returns
    -------
    Noted
        Without the marker of the guard, which has no elements.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> note(plain).base["embeddings.word_embeddings.weight"]
    (9, 8)
    """
    if shapes is None:
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    prefix = prefix_of(model)
    filled = {name: shape for name, shape in shapes.items() if 0 not in shape}
    base = {n.removeprefix(prefix): s for n, s in filled.items() if n.startswith(prefix)}
    head = {name: shape for name, shape in filled.items() if not name.startswith(prefix)}
    return Noted(base, head, _that_shape(model.config.to_dict()))


def _that_shape(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _that_shape(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if name not in _OTHER
    }
