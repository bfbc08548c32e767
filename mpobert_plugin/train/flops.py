"""Floating-point operations of a training step by the model's own count, and a card's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Dense peaks in TFLOP/s that the makers state for matrix products of 16-bit numbers.
_PEAKS_16 = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "V100": 125.0}


def flops_per_sample(model: PreTrainedModel, length: int, asked: int) -> int:
    """Return the operations of one sample, forward and backward.

    Counted are the matrix products of the layers (6 for each weight and token), both products of
    attention, and the head at the masked positions; not rebuilding the matrices, softmax or norms,
    as is the custom for the share of peak.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        BERT-like.
    length : int
        Tokens of a sample.
    asked : int
        Positions at which the head runs.

    Returns
    -------
    int
        Operations.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-48", device="meta")
    >>> round(flops_per_sample(model, 512, 77) / 1e12, 3)
    2.012
    """
    config = model.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", 4 * hidden)
    embedding = getattr(config, "embedding_size", hidden)
    per_token = layers * (4 * hidden * hidden + 2 * hidden * inner)
    attention = layers * 2 * length * hidden
    projection = hidden * embedding if embedding != hidden else 0
    head = hidden * embedding + embedding * config.vocab_size
    return int(6 * (length * (per_token + attention + projection) + asked * head))


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak of a card for matrix products, when it is known.

    Parameters
    ----------
    device : torch.device
        Where the model is.
    dtype : torch.dtype
        Number format.

    Returns
    -------
    float or None
        Operations per second; None for other cards, formats and CPUs.
    """
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    name = torch.cuda.get_device_name(device)
    found = [peak for card, peak in _PEAKS_16.items() if card in name]
    return found[0] * 1e12 if found else None
