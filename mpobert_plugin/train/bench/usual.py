"""How transformers' models are usually pre-trained: autocast, labels at all positions."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.locate import base_of, layer_names
from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.data.samples import IGNORED
from mpobert_plugin.train.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from mpobert_plugin.train.objective import Losses

_SCALE = 65536.0


@dataclass(frozen=True)
class Usual:
    """A model in a plain loop: autocast around the forward, a scaled loss, a backward.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        On the device, in training mode.
    batches : list of Batch
        Micro-batches, on the host.
    counts : Tensor
        (2,): what they ask for.
    dtype : torch.dtype
        Number format of autocast; float32 for none.
    everywhere : bool
        Whether the head for masked tokens runs at all positions, as the model's own forward has
        it, or at the masked ones alone.
    """

    model: PreTrainedModel
    batches: list[Batch]
    counts: Tensor
    dtype: torch.dtype
    everywhere: bool

    def passes(self) -> None:
        """Run forwards and backwards of the micro-batches, without an update."""
        objective = Objective(self.model)
        for batch in self.batches:
            with self._format():
                loss = self._own_loss(batch) if self.everywhere else self._masked(objective, batch)
            torch.autograd.backward(loss * _SCALE)

    def _masked(self, objective: Objective, batch: Batch) -> Tensor:
        losses: Losses = objective(batch.to(self.counts.device))
        return losses.mean(self.counts)

    def _own_loss(self, batch: Batch) -> Tensor:
        on = batch.to(self.counts.device)
        output: Any = self.model(
            input_ids=on.input_ids,
            attention_mask=on.attention_mask,
            token_type_ids=on.token_type_ids,
            labels=dense_labels(on),
            next_sentence_label=on.orders,
        )
        loss: Tensor = output.loss
        return loss

    def _format(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.counts.device.type, dtype=self.dtype)


def dense_labels(batch: Batch) -> Tensor:
    """Return a label for every position, as transformers' models take them.

    Parameters
    ----------
    batch : Batch
        With positions and labels of what is asked for.

    Returns
    -------
    Tensor of int64
        (batch, length); -100 where nothing is asked for.
    """
    # Places that are not used say position 0, where nothing is ever asked for, and no label.
    empty = torch.full_like(batch.input_ids, IGNORED)
    return empty.scatter(1, batch.positions, batch.labels)


def pieces_of(batch: Batch, size: int) -> list[Batch]:
    """Return a batch cut into smaller ones.

    Parameters
    ----------
    batch : Batch
        On any device.
    size : int
        Samples of each.

    Returns
    -------
    list of Batch
        Views of it.
    """
    cut = zip(*(torch.split(tensor, size) for tensor in vars(batch).values()), strict=True)
    return [Batch(*tensors) for tensors in cut]


def compile_model(model: PreTrainedModel, what: str, everywhere: bool) -> None:
    """Compile a model in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain.
    what : str
        'none', 'layers' one by one, or 'model': all that is called at once.
    everywhere : bool
        Whether the model itself is called, or its base and the head at some positions.
    """
    base = base_of(model)
    if what == "layers":
        for name in layer_names(model):
            base.get_submodule(name).compile()
    elif what == "model":
        (model if everywhere else base).compile()
