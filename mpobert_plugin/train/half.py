"""Working copies in half precision: the network reads them, the masters stay float32."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mpobert_plugin.adding import add_wide
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.locate import is_converted
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from mpobert_plugin.train.gradients import Gradients

# Matrix products are fastest on operands that begin at a multiple of 128 bytes.
_ALIGNED = 64


class HalfCopies:
    """Half-precision copies of what a model computes with, in one buffer.

    Everything but the cores and adapters of banks has a copy: biases, norms, embeddings, heads,
    and the matrices of a plain model. Banks rebuild their matrices from the float32 cores and
    round them once, so that these are the working copies. On a GPU, norms and fused attention
    take their sums in float32, as torch's kernels do for inputs in half precision, and the losses
    do everywhere; what layers hand to each other is in half precision, where autocast keeps the
    output of a norm in float32.

    Gradients of the copies are added to the float32 ones of the masters as they come.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With float32 masters; outside `reading` it is as it was.
    gradients : Gradients
        Of the masters that are trained.
    dtype : torch.dtype
        float16 or bfloat16.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> from mpobert_plugin.train.gradients import Gradients
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = BertForMaskedLM(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> copies = HalfCopies(model, Gradients(dict(model.named_parameters())), torch.bfloat16)
    >>> with copies.reading():
    ...     {parameter.dtype for parameter in model.parameters()}
    {torch.bfloat16}
    """

    def __init__(self, model: PreTrainedModel, gradients: Gradients, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._banks = _banks(model)
        cores = {id(core) for bank in self._banks for core in bank.cores().values()}
        places = _places(model, cores)
        self.masters: list[Tensor] = [master for master, _ in places.values()]
        self.copies = _copies(self.masters, dtype)
        self._swaps = [
            (module._parameters, name, master, copy)
            for (master, found), copy in zip(places.values(), self.copies, strict=True)
            for module, name in found
        ]
        parts = {id(p): gradients.parts[name] for name, p in gradients.parameters.items()}
        for master, copy in zip(self.masters, self.copies, strict=True):
            if copy.requires_grad and id(master) in parts:
                hook = partial(_add_to, parts[id(master)])
                # torch leaves this method without types.
                copy.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context in which the model computes with copies that are made at its beginning.

        Yields
        ------
        None
            Backward passes of what is computed belong into the same context.
        """
        self.refresh()
        try:
            for parameters, name, _, copy in self._swaps:
                parameters[name] = copy  # type: ignore[assignment]
            for bank in self._banks:
                bank.wanted = self.dtype
            yield
        finally:
            for bank in self._banks:
                bank.wanted = None
            for parameters, name, master, _ in self._swaps:
                parameters[name] = master

    def refresh(self) -> None:
        """Round the masters to the copies, in one pass over the memory."""
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.masters)


def _banks(model: PreTrainedModel) -> list[MPOBank]:
    if not is_converted(model):
        return []
    return [bank for bank in banks_of(model).stacked() if isinstance(bank, MPOBank)]


def _places(
    model: nn.Module, left_out: set[int]
) -> dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Return each parameter with all places that read it: tied ones have several."""
    places: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in left_out:
                places.setdefault(id(parameter), (parameter, []))[1].append((module, name))
    return places


def _copies(masters: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    rooms = [-(-master.numel() // _ALIGNED) * _ALIGNED for master in masters]
    flat = torch.zeros(sum(rooms), dtype=dtype, device=masters[0].device)
    pieces = torch.split(flat, rooms)
    return [
        nn.Parameter(piece[: master.numel()].view(master.shape), master.requires_grad)
        for piece, master in zip(pieces, masters, strict=True)
    ]


def _add_to(total: Tensor, copy: Tensor) -> None:
    gradient, copy.grad = copy.grad, None
    if gradient is not None:
        add_wide(total, gradient)
