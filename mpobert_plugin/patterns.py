"""Targets by patterns: names of modules with * in them become the roles that they select."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mpobert_plugin.errors import TargetError, did_you_mean, shorten
from mpobert_plugin.locate import family_of, layer_names, prefix_of
from mpobert_plugin.parts import layers_of_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

_WILD = frozenset("*?[")


def expand_targets(
    model: PreTrainedModel, targets: Sequence[str] | None, argument: str
) -> tuple[str, ...] | None:
    """Return targets in which every pattern is replaced by the roles that it selects.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model of a family.
    targets : sequence of str, or None
        Roles, paths inside a layer, or patterns of full module names with ``*``, ``?`` or
        ``[...]``, such as ``"*.self_attn.q_proj"``.
    argument : str
        Name of the option, for messages.

    Returns
    -------
    tuple of str, or None
        Names without patterns; None stays None.

    Raises
    ------
    TargetError
        When a pattern selects no matrix, or one only in some of the layers of a list.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> expand_targets(plain, ["*.attention.self.*", "ffn_in"], "targets")
    ('query', 'key', 'value', 'ffn_in')
    """
    if targets is None:
        return None
    names: dict[str, None] = {}
    for target in targets:
        names |= dict.fromkeys(
            _selected(model, target, argument) if _WILD & set(target) else [target]
        )
    return tuple(names)


def _selected(model: PreTrainedModel, pattern: str, argument: str) -> list[str]:
    names = [f"{prefix_of(model)}{name}" for name in layer_names(model)]
    matrices = family_of(model).matrices
    roles = []
    for role, path in matrices.items():
        layers = [names[layer] for layer in layers_of_role(model, role)]
        chosen = [layer for layer in layers if fnmatchcase(f"{layer}.{path}", pattern)]
        if chosen and len(chosen) < len(layers):
            others = [layer for layer in layers if layer not in chosen]
            raise TargetError(
                f"{argument} must select a matrix in all layers or in none, got {pattern!r}, "
                f"which selects {path!r} in {len(chosen)} of {len(layers)} layers and not in "
                f"{shorten(others, 3)}. Put a * in place of the number of the layer. Nothing was "
                "changed."
            )
        if chosen:
            roles.append(role)
    if not roles:
        first, path = next(iter(matrices.items()))
        example = f"{names[layers_of_role(model, first)[0]]}.{path}"
        known = [f"*.{path}" for path in matrices.values()]
        raise TargetError(
            f"{argument} must select matrices of the model, got {pattern!r}, which fits none of "
            f"the names such as {example}. "
            f"{did_you_mean(pattern, known)} Nothing was changed."
        )
    return roles
