"""The two losses of pre-training as sums, with the head run at masked positions alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpobert_plugin.errors import ModelTypeError
from mpobert_plugin.locate import base_of, check_model
from mpobert_plugin.train.data.samples import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.train.data.batches import Batch

# Where the heads of a model are: masked tokens, and the order of two segments.
_TOKEN_HEADS = ("predictions", "cls.predictions", "lm_head")
_ORDER_HEADS = ("sop_classifier", "cls.seq_relationship")
# Hosts whose attention is the same in all layers and has no terms of its own.
_WHOLE_MASKS = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


@dataclass(frozen=True)
class Losses:
    """Sums over the samples of a micro-batch; sums, so that any division adds up to the same.

    Parameters
    ----------
    tokens, orders : Tensor
        Sums of the cross entropies (natural logarithm) of masked tokens and of sentence orders.
    right_tokens, right_orders : Tensor
        How many of them were predicted.
    """

    tokens: Tensor
    orders: Tensor
    right_tokens: Tensor
    right_orders: Tensor

    def mean(self, counts: Tensor) -> Tensor:
        """Return this part of the mean loss over a global batch.

        Parameters
        ----------
        counts : Tensor
            (2,): masked tokens and orders of the whole batch, over all processes.

        Returns
        -------
        Tensor
            Sum of the two means; a loss that nothing is asked for is 0.
        """
        divisors = counts.clamp(min=1)
        return self.tokens / divisors[0] + self.orders / divisors[1]

    def numbers(self) -> Tensor:
        """Return what is logged, to be summed over micro-batches and processes.

        Returns
        -------
        Tensor of float32
            (4,), detached.
        """
        parts = (self.tokens, self.orders, self.right_tokens, self.right_orders)
        return torch.stack([part.detach().float() for part in parts])


class Objective(nn.Module):
    """A model with its heads, as a function from a batch to losses.

    Attention is torch's fused one where the host has it (``sdpa``). A batch without padding gets
    no mask, so that on a GPU flash attention can be taken; whether there is padding is asked while
    the batch is on the host. With padding, a mask of booleans hides it, which the
    memory-efficient and cuDNN kernels take and flash attention does not. Hosts that make masks of
    their own, such as those with windows or relative positions, get the plain mask of tokens.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a head for masked tokens, and perhaps one for sentence order.
    orders : bool
        Whether the samples ask for sentence orders; without, the head of that task is left out, so
        that decay does not move what no loss asks for.

    Raises
    ------
    ModelTypeError
        When the model has no head for masked tokens.
    """

    def __init__(self, model: PreTrainedModel, orders: bool = True) -> None:
        super().__init__()
        check_model(model)
        self.model = model
        self._tokens = _find(model, _TOKEN_HEADS)
        self._orders = _find(model, _ORDER_HEADS) if orders else None
        if self._tokens is None:
            raise ModelTypeError(
                f"model must have a head for masked tokens ({', '.join(_TOKEN_HEADS)}), got a "
                f"{type(model).__name__}. Use AlbertForPreTraining, BertForPreTraining or a "
                "...ForMaskedLM class, or mpobert_plugin.build(..., head='pretraining')."
            )

    @property
    def has_order(self) -> bool:
        """Whether the model predicts sentence order."""
        return self._orders is not None

    def forward(self, batch: Batch, padded: bool | None = None) -> Losses:
        """Return the losses of a micro-batch.

        Parameters
        ----------
        batch : Batch
            On the host or on the device of the model, where it is put.
        padded : bool, optional
            Whether it has padding, where that is known; `is_padded` says it else.

        Returns
        -------
        Losses
            Sums.
        """
        padded = is_padded(batch) if padded is None else padded
        batch = batch.to(self.model.device)
        output = base_of(self.model)(**self._inputs(batch, padded))
        hidden = output.last_hidden_state
        places = batch.positions[..., None].expand(-1, -1, hidden.shape[-1])
        at = hidden.gather(1, places).flatten(0, 1)
        tokens, right_tokens = _summed(_called(self._tokens, at), batch.labels.flatten())
        if self._orders is None:
            zero = tokens.new_zeros(())
            return Losses(tokens, zero, right_tokens, zero)
        logits = _called(self._orders, output.pooler_output)
        orders, right_orders = _summed(logits, batch.orders)
        return Losses(tokens, orders, right_tokens, right_orders)

    def _inputs(self, batch: Batch, padded: bool) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": batch.input_ids}
        if not takes_whole_masks(self.model):
            inputs["attention_mask"] = batch.attention_mask
        elif padded:
            # Whole already: transformers would look into one of tokens, and wait for the device.
            rows, length = batch.input_ids.shape
            seen = batch.attention_mask.bool()[:, None, None, :]
            inputs["attention_mask"] = seen.expand(rows, 1, length, length)
        # Models such as RoBERTa have one type alone, and DistilBERT has none.
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = batch.token_type_ids
        return inputs


def is_padded(batch: Batch) -> bool:
    """Return whether a batch has padding; one on a device is taken to have some, unread.

    Parameters
    ----------
    batch : Batch
        On the host, to be answered exactly.

    Returns
    -------
    bool
        False when every sample fills the length.
    """
    if batch.sizes.device.type != "cpu":
        return True
    return bool((batch.sizes < batch.input_ids.shape[1]).any())


def takes_whole_masks(model: PreTrainedModel) -> bool:
    """Return whether a model takes a mask of (batch, 1, length, length) as it is, and none at all.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model.

    Returns
    -------
    bool
        True for encoders of BERT's kind with torch's fused attention.
    """
    config = model.config
    plain = config.model_type in _WHOLE_MASKS and not getattr(config, "is_decoder", False)
    return plain and config._attn_implementation == "sdpa"


def _find(model: nn.Module, paths: tuple[str, ...]) -> nn.Module | None:
    for path in paths:
        module: Any = model
        for name in path.split("."):
            module = getattr(module, name, None)
        if isinstance(module, nn.Module):
            return module
    return None


def _called(head: Callable[[Tensor], Tensor] | None, x: Tensor) -> Tensor:
    return x if head is None else head(x)


def _summed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross entropies in float32, and how many predictions are right."""
    total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    right = (logits.detach().argmax(-1) == labels).sum()
    return total, right
