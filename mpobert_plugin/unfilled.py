"""Give values to tensors that a loaded state dict left on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.initialization import guard_torch_init_functions

from mpobert_plugin.errors import CheckpointError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

# The mark by which transformers' initialization knows a tensor that it must leave alone.
FILLED = "_is_hf_initialized"


def fill_unfilled(
    model: PreTrainedModel, initialize: Callable[[PreTrainedModel, nn.Module], None] | None = None
) -> None:
    """Initialize what is on the meta device, in place, as a new model of the host would be.

    No state dict holds the buffers that a model computes for itself, such as the numbers of the
    positions, nor the head of a new task. A model that was made on the meta device and took the
    tensors of a state dict would have them without values.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model most of whose tensors have values.
    initialize : callable, optional
        Takes the model and a module of it, and fills what is not the host's to initialize.

    Raises
    ------
    CheckpointError
        When the host does not say which values a buffer has; the names are told.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> plain.embeddings.position_ids = plain.embeddings.position_ids.to("meta")
    >>> fill_unfilled(plain)
    >>> plain.embeddings.position_ids[0, :3]
    tensor([0, 1, 2])
    """
    owners = [module for module in model.modules() if any(t.is_meta for t in _own(module))]
    if not owners:
        return
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    for tensor in (*model.parameters(), *model.buffers()):
        setattr(tensor, FILLED, not tensor.is_meta)
    for module in owners:
        _allocate(module, device)
    unknown = []
    for name, module in model.named_modules():
        if module in owners:
            unknown += [f"{name}.{buffer}" for buffer in _initialize(model, module)]
            if initialize is not None:
                initialize(model, module)
    if unknown:
        raise CheckpointError(
            f"every buffer must have values, got {shorten(unknown)} on the meta device, which the "
            "state_dict does not hold and the host does not initialize. Build the model on the "
            "CPU instead, and load with assign=False."
        )


def _own(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _allocate(module: nn.Module, device: torch.device) -> None:
    for name, tensor in list(module.named_parameters(recurse=False)):
        if tensor.is_meta:
            empty = torch.empty_like(tensor, device=device)
            setattr(module, name, nn.Parameter(empty, tensor.requires_grad))
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.is_meta:
            setattr(module, name, torch.empty_like(buffer, device=device))


def _initialize(model: PreTrainedModel, module: nn.Module) -> list[str]:
    """Run the host's initialization of one module; return the buffers that it left alone."""
    buffers = {n: b for n, b in module.named_buffers(recurse=False) if not hasattr(b, FILLED)}
    runs = []
    for mark in (0, 1):
        # A buffer that the host fills is the same whatever was in it before.
        for buffer in buffers.values():
            buffer.fill_(mark)
        with torch.no_grad(), guard_torch_init_functions():
            model._init_weights(module)  # type: ignore[no-untyped-call]
        runs.append({name: buffer.clone() for name, buffer in buffers.items()})
    return [name for name in buffers if not torch.equal(runs[0][name], runs[1][name])]
