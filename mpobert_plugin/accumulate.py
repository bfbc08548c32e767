"""Accumulate gradients over micro-batches with matrices that are rebuilt once for all of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.once import Once
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def accumulate(model: object, *, exact: bool = True) -> Iterator[None]:
    """Return a context for the backwards of one optimizer step, with matrices rebuilt once.

    The matrices are rebuilt at the first forward with gradient and stay for all others. Their
    gradients add up, in float32 for matrices in half precision, and go back to cores and adapters
    once, at the end of the block; all other parameters get theirs as usual. Clip, unscale and
    step after the block. When the block is left by an error, cores get no gradient from it.

    Under ``DistributedDataParallel`` only the end of the block reaches the cores, so that its
    reduction in each backward must be off (``no_sync``) and gradients be reduced after the block.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    exact : bool
        Whether matrices in half precision are rebuilt in float32 and rounded once. It costs
        little, since it is done once for all micro-batches.

    Raises
    ------
    ConversionError
        When the model is not converted.
    ConfigError
        When the model accumulates already, or its tensors are sharded over devices.
    ChangedTensorError
        At the end, when cores or adapters were modified in the block.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3).train()
    >>> with accumulate(model):
    ...     for word in (1, 2):
    ...         model(torch.tensor([[word]]))[0].sum().backward()
    ...     before = model.mpo["query"].central.grad
    >>> before is None, model.mpo["query"].central.grad is None
    (True, False)
    """
    with Accumulation(model, exact=exact).step():
        yield


class Accumulation:
    """Accumulations of one model, one after the other.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    exact : bool
        As for `accumulate`.
    lasting : bool
        Whether rebuilt matrices and the sums of their gradients stay where they are in memory, so
        that work on them can be recorded. They take their room between the steps, too, and the
        cores get a gradient in every step, of zeros where nothing was computed.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = mp.convert(plain, n=3).train()
    >>> accumulation = Accumulation(model, lasting=True)
    >>> for _ in range(2):
    ...     with accumulation.step():
    ...         model(torch.tensor([[1]]))[0].sum().backward()
    >>> model.mpo["query"].central.grad is None
    False
    """

    def __init__(self, model: object, *, exact: bool = True, lasting: bool = False) -> None:
        self.exact, self.lasting = exact, lasting
        self._banks = [bank for bank in banks_of(model).stacked() if isinstance(bank, MPOBank)]
        self._kept: list[Once] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for the backwards of one optimizer step.

        Yields
        ------
        None
            As `accumulate` does.
        """
        banks = self._banks
        if any(bank.once is not None for bank in banks):
            raise ConfigError(
                "model must not be inside another block of mpobert_plugin.accumulate, got one that "
                "accumulates already. Leave the first block before the second begins."
            )
        for bank in banks:
            _check_whole(bank)
        try:
            for bank, once in zip(banks, self._begun(), strict=True):
                bank.once = once
            yield
            _go_back(banks)
        finally:
            for bank in banks:
                bank.once = None

    def _begun(self) -> list[Once]:
        if self._kept:
            for bank, once in zip(self._banks, self._kept, strict=True):
                once.renew(bank.cores())
            return self._kept
        made = [
            Once(bank.spec, bank.recipe, bank.cores(), self.exact, self.lasting)
            for bank in self._banks
        ]
        self._kept = made if self.lasting else []
        return made


def _check_whole(bank: MPOBank) -> None:
    # Those of sharded parameters are freed between a forward and its backward.
    sharded = [name for name, tensor in bank.cores().items() if hasattr(tensor, "full_tensor")]
    if sharded:
        raise ConfigError(
            f"model must have whole tensors in its banks to accumulate once for a step, got "
            f"{sharded[0]!r} of bank {bank.name!r} sharded over devices. Run the backwards without "
            "mpobert_plugin.accumulate: their gradients are the same."
        )


def _go_back(banks: list[MPOBank]) -> None:
    ends = []
    for bank in banks:
        if bank.once is not None:
            bank.once.check(bank.cores())
            ends += bank.once.ends()
    if ends:
        promises, gradients = zip(*ends, strict=True)
        torch.autograd.backward(promises, gradients)
