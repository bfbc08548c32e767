"""Layers that run again in backward compute with the values of their own forward."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.lazy import maker_of, parts_of
from mpobert_plugin.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from mpobert_plugin.lazy import Lazy, Parts, Values

_FLAG, _FUNCTION = "gradient_checkpointing", "_gradient_checkpointing_func"


def carry_values(base: nn.Module) -> None:
    """Make the checkpointed layers of a base model carry what their readers are handed.

    Parameters
    ----------
    base : torch.nn.Module
        Base model with banks; changed where transformers has set a checkpointing function.
    """
    # Before every forward with a graph, where the walk of nn.Module would take its time.
    left, seen = [base], {id(base)}
    while left:
        module = left.pop()
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                left.append(child)
        own = vars(module)
        checkpoint = own.get(_FUNCTION)
        if own.get(_FLAG) and checkpoint and not isinstance(checkpoint, CarryingCheckpoint):
            own[_FUNCTION] = CarryingCheckpoint(checkpoint, module)


def drop_carrying(base: nn.Module) -> None:
    """Put back the checkpointing functions that transformers has set.

    Parameters
    ----------
    base : torch.nn.Module
        A base model that has no banks any more.
    """
    for module in base.modules():
        own = vars(module)
        if isinstance(own.get(_FUNCTION), CarryingCheckpoint):
            own[_FUNCTION] = own[_FUNCTION].checkpoint


class CarryingCheckpoint:
    """A checkpointing function that passes the values of a module's readers as arguments.

    As arguments they live as long as the graph of their forward, whatever is handed out later,
    and in reentrant mode their gradients meet before the one way back through the bank.

    Parameters
    ----------
    checkpoint : callable
        Takes a function and its arguments, as ``torch.utils.checkpoint.checkpoint`` does.
    module : torch.nn.Module
        The module that runs again.
    """

    def __init__(self, checkpoint: Callable[..., Any], module: nn.Module) -> None:
        self.checkpoint = checkpoint
        self.module = module

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns, checkpointed.

        Parameters
        ----------
        function : callable
            What runs now and again in backward.
        *args, **kwargs
            Arguments of the function and options of the checkpointing function.

        Returns
        -------
        object
            The output of the function.
        """
        # A compiled graph holds the values by itself and must not see attributes change.
        if torch.compiler.is_compiling():
            return self.checkpoint(function, *args, **kwargs)
        readers = [module for module in self.module.modules() if isinstance(module, Reader)]
        handed = [(reader, reader.handed) for reader in readers]
        given = [(reader, values) for reader, values in handed if values is not None]
        parts = [parts_of(values) for _, values in given]
        makers = [maker_of(values) for _, values in given]
        run = _WithValues(function, [reader for reader, _ in given], makers, [*map(len, parts)])
        return self.checkpoint(run, *chain.from_iterable(parts), *args, **kwargs)


class _WithValues:
    """A function that hands its first arguments to readers before it runs with the others."""

    def __init__(
        self,
        function: Callable[..., Any],
        readers: Sequence[Reader],
        makers: Sequence[Callable[[Parts], Values | Lazy]],
        counts: Sequence[int],
    ) -> None:
        self.function = function
        self.readers = readers
        self.makers = makers
        self.counts = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stream = iter(args)
        values = [
            maker(tuple(islice(stream, count)))
            for maker, count in zip(self.makers, self.counts, strict=True)
        ]
        before = [reader.handed for reader in self.readers]
        try:
            self._hand(values)
            return self.function(*stream, **kwargs)
        finally:
            # Also when a checkpoint stops the function early, by an exception.
            self._hand(before)

    def _hand(self, values: Sequence[Values | Lazy | None]) -> None:
        for reader, value in zip(self.readers, values, strict=True):
            reader.hand(value)
