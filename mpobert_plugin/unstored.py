"""What a model makes by itself, since no file holds it, must not be of any size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mpobert_plugin.checkpoint import computed_names
from mpobert_plugin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

# Elements; hosts may compute positions one by one.
MOST_COMPUTED = 2**23
# Bytes of anything else, or as many as the files have; masks of all layers may be half of that.
MOST_BYTES = 2**30


def check_unstored(
    model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], new_head: Sequence[str] = ()
) -> None:
    """Refuse tensors that are made in loading, and larger than a checkpoint can mean.

    A configuration from a stranger can ask for any number of positions where no file holds them,
    and for a new head of any size.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model on the meta device, into which the checkpoint is going to be loaded.
    shapes : mapping of str to tuple of int
        Shapes of the stored tensors.
    new_head : sequence of str
        Names of the tensors that start at random.

    Raises
    ------
    CheckpointError
        With the largest of them.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> check_unstored(BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)), {})
    """
    kept, known = set(model.state_dict()), computed_names(model)
    computed = {name: t for name, t in model.named_parameters() if name in known}
    made: dict[str, Tensor] = {name: t for name, t in model.named_buffers() if name not in kept}
    made |= {name: tensor for name, tensor in model.named_parameters() if name in new_head}
    elements = sum(tensor.numel() for tensor in computed.values())
    if elements > MOST_COMPUTED:
        raise _too_large(computed, f"{MOST_COMPUTED:,} elements", f"{elements:,}")
    most = max(MOST_BYTES, 4 * sum(math.prod(shape) for shape in shapes.values()))
    size = sum(tensor.nbytes for tensor in made.values())
    if size > most:
        raise _too_large(made, f"{most:,} bytes", f"{size:,}")


def _too_large(tensors: Mapping[str, Tensor], most: str, given: str) -> CheckpointError:
    name = max(tensors, key=lambda each: tensors[each].numel())
    return CheckpointError(
        f"what no file of the checkpoint holds must have at most {most}, got {given}, {name} of "
        f"shape {tuple(tensors[name].shape)} among them. The sizes in config.json were changed: "
        "use the one that save_pretrained wrote. Nothing was loaded."
    )
