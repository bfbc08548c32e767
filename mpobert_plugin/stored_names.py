"""Names of tensors in files, where transformers stores a model under other names than it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from mpobert_plugin.checkpoint import expected_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel


def named_as_in_model(
    model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of stored tensors under the names that they get in loading.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model that is loaded.
    shapes : mapping of str to tuple of int
        Shapes by the names in the files.

    Returns
    -------
    dict of str to tuple of int
        Shapes by the model's names. A tensor that transformers puts together from several stored
        ones is taken to have the shape that the model expects: transformers checks it itself.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = ViTModel(ViTConfig(num_hidden_layers=1, image_size=8, patch_size=4, **sizes))
    >>> named_as_in_model(model, {"encoder.layer.0.layernorm_before.bias": (8,)})
    {'layers.0.layernorm_before.bias': (8,)}
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
    if not renamings and not converters:
        return dict(shapes)
    expected = expected_shapes(model)
    named: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        found, converter = rename_source_key(name, renamings, converters)
        named[found] = shape if converter is None else expected.get(found, shape)
    return named
