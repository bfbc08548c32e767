"""Gradient checkpointing for hosts that have none of their own, such as ALBERT and MPNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel


def allow_checkpointing(owners: Sequence[PreTrainedModel], layers: Sequence[nn.Module]) -> None:
    """Let a host's layers run again in backward when transformers is asked for it, in place.

    Nothing changes for hosts whose layers can do so already, and nothing before
    ``model.activation_checkpointing_enable()`` (``gradient_checkpointing_enable()`` in older
    versions) or the ``gradient_checkpointing`` of ``TrainingArguments``.

    Parameters
    ----------
    owners : sequence of transformers.PreTrainedModel
        A model of any host, and its base model, which may be taken out of its head.
    layers : sequence of torch.nn.Module
        Its layers; each gets a subclass of its class, under the same name.

    Examples
    --------
    >>> from transformers import AlbertConfig, AlbertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = AlbertModel(AlbertConfig(vocab_size=9, embedding_size=4, **sizes))
    >>> layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    >>> allow_checkpointing([model], [layer])
    >>> type(layer).__name__, layer.gradient_checkpointing
    ('AlbertLayer', False)
    """
    if owners[0].supports_gradient_checkpointing:
        return
    for layer in layers:
        if not isinstance(layer, GradientCheckpointingLayer):
            layer.__class__ = _checkpointed(type(layer))
    for owner in owners:
        owner.supports_gradient_checkpointing = True


def forbid_checkpointing(owners: Sequence[PreTrainedModel]) -> None:
    """Give the layers that `allow_checkpointing` changed their own class back, in place.

    Parameters
    ----------
    owners : sequence of transformers.PreTrainedModel
        A model of any host, and its base model.
    """
    for module in owners[0].modules():
        if isinstance(module, _Checkpointed):
            for name in ("gradient_checkpointing", "_gradient_checkpointing_func"):
                vars(module).pop(name, None)
            module.__class__ = module.host_class  # type: ignore[assignment]
    for owner in owners:
        vars(owner).pop("supports_gradient_checkpointing", None)


# One subclass for each class of a host: layers of one class stay of one class.
_MADE: dict[type[nn.Module], type[nn.Module]] = {}


# transformers leaves the making of its subclasses without types.
class _Checkpointed(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    """What the subclasses have in common; they are made at run time, and pickles name the host's.

    Nothing is wrapped here but in the subclass, which has the forward of its host.
    """

    host_class: type[nn.Module]

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return _empty, (self.host_class,), dict(vars(self))


def _empty(host_class: type[nn.Module]) -> nn.Module:
    made = _checkpointed(host_class)
    module: nn.Module = made.__new__(made)
    return module


def _checkpointed(host_class: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass with gradient checkpointing, under the name that transformers goes by."""
    if host_class in _MADE:
        return _MADE[host_class]
    space = {
        "__module__": host_class.__module__,
        "__qualname__": host_class.__qualname__,
        "__doc__": host_class.__doc__,
        "forward": host_class.forward,
        "host_class": host_class,
    }
    return _MADE.setdefault(
        host_class, type(host_class.__name__, (_Checkpointed, host_class), space)
    )
