"""How the layers of a model are called in training: compiled, or run again in backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.locate import base_of, layer_names
from mpobert_plugin.recompute import CarryingCheckpoint
from mpobert_plugin.train.rewriting import rewriting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from transformers import PreTrainedModel

# What takes long to compute: products of matrices and attention.
_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")
)
_ATTENTION = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)


def kept_result(_ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Return whether backward finds the result of an operation or computes it again.

    Attention with dropout is computed again: where it is not, the random numbers of all that
    follows would be others than those of the forward.
    """
    if operation in _PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    if operation in _ATTENTION and not _dropout(operation, args, kwargs):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _dropout(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    for number, argument in enumerate(operation._schema.arguments):
        if argument.name == "dropout_p":
            given = args[number] if number < len(args) else None
            return float(
                kwargs.get("dropout_p", argument.default_value if given is None else given)
            )
    return 0.0


_WHOLE = partial(checkpoint, use_reentrant=False)
_BUT_PRODUCTS = partial(
    _WHOLE, context_fn=partial(create_selective_checkpoint_contexts, kept_result)
)


class LayerCalls:
    """What is called in place of the forward of each layer while a run computes.

    A layer that is run again in backward keeps its input alone; matrices of banks are its input
    too, so that it computes with those of its own forward. Its numbers are the same, for dropout
    begins again with the random state that it had. Compiled layers share one graph for each of
    training and evaluation, with and without a mask: shapes are fixed, and every layer gets its
    tensors as inputs. A layer that cannot be compiled is an error, for running it uncompiled
    would pass for a slow GPU.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of any family; outside `installed` it is as it was.
    compiled : str
        'none', or 'layers': each layer by ``torch.compile``.
    recompute : str
        'none', 'layers', or 'every_2', 'every_3', 'every_4': the first of so many layers. Or
        'selective': all layers, but for products of matrices and attention without dropout, whose
        results are kept; norms, activations and dropout are computed again.
    backend : str or callable
        As ``torch.compile`` takes it; it gets graphs as `rewriting.rewritten` leaves them.
    own_attention : int
        Dimensions of the heads that attend by kernels of this package in compiled layers where
        samples are padded, 0 for none; masks must hide the ends of samples and nothing else.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = BertForMaskedLM(BertConfig(vocab_size=9, num_hidden_layers=3, **sizes))
    >>> LayerCalls(model, recompute="every_2").recomputed
    (True, False, True)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        compiled: str = "none",
        recompute: str = "none",
        backend: str | Callable[..., Any] = "inductor",
        own_attention: int = 0,
    ) -> None:
        self._limit: Callable[[], AbstractContextManager[object]] = nullcontext
        if compiled == "layers":
            self._limit = _many_graphs
        base = base_of(model)
        layers = [base.get_submodule(name) for name in layer_names(model)]
        every = _every(recompute)
        checkpointing = _BUT_PRODUCTS if recompute == "selective" else _WHOLE
        self.recomputed = tuple(bool(every) and k % every == 0 for k in range(len(layers)))
        forwards: dict[type[nn.Module], Callable[..., Any]] = {}
        self._calls: list[tuple[nn.Module, Callable[..., Any]]] = []
        for layer, again in zip(layers, self.recomputed, strict=True):
            call: Callable[..., Any] = layer.forward
            if compiled == "layers":
                kind = type(layer)
                if kind not in forwards:
                    forwards[kind] = _compiled(kind, rewriting(backend, own_attention))
                call = partial(forwards[kind], layer)
            if again:
                call = partial(_again, CarryingCheckpoint(checkpointing, layer), call)
            if call != layer.forward:
                self._calls.append((layer, call))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Return a context in which the layers are called so.

        Yields
        ------
        None
            Backward passes of what is computed belong into the same context.
        """
        try:
            for layer, call in self._calls:
                vars(layer)["forward"] = call
            with self._limit():
                yield
        finally:
            for layer, _ in self._calls:
                vars(layer).pop("forward", None)


def _every(recompute: str) -> int:
    if recompute == "none":
        return 0
    return 1 if recompute in ("layers", "selective") else int(recompute.removeprefix("every_"))


def _again(
    carrying: CarryingCheckpoint, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return call(*args, **kwargs)
    return carrying(partial(call, **kwargs), *args)


def _many_graphs() -> AbstractContextManager[object]:
    """Return a context that lets a function have as many graphs as there are ways to run it.

    With and without a mask, in training, first and later evaluations, and for two element types
    under autocast: twelve, where torch gives up after eight.
    """
    from torch._dynamo import config

    return config.patch(recompile_limit=32)  # type: ignore[no-any-return]


def _compiled(kind: type[nn.Module], backend: Callable[..., Any]) -> Callable[..., Any]:
    # Imported here, for it takes a second that most runs need not wait.
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    run = torch.compile(kind.forward, backend=backend, fullgraph=True, dynamic=False)

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(layer, *args, **kwargs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"compile='layers' needs layers that torch {torch.__version__} can compile on "
                f"this machine, got {kind.__name__} and: {reason} Use compile='none'."
            ) from error

    return call
