"""In which numbers the network computes, and how: what is around every forward of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.train.attention import kernels_for
from mpobert_plugin.train.half import HalfCopies
from mpobert_plugin.train.layers import LayerCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from mpobert_plugin.train.gradients import Gradients
    from mpobert_plugin.train.precision import Precision
    from mpobert_plugin.train.settings import PretrainConfig


class Network:
    """The number format of a network and the way its layers are called, around forwards.

    Parameters
    ----------
    precision : Precision
        The number format.
    copies : HalfCopies, optional
        What the network reads in half precision; autocast casts by itself without.
    calls : LayerCalls, optional
        How layers are called; as they are without.

    Examples
    --------
    >>> from mpobert_plugin.train.precision import Precision
    >>> with Network(Precision("bf16")).casting(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """

    def __init__(
        self,
        precision: Precision,
        copies: HalfCopies | None = None,
        calls: LayerCalls | None = None,
    ) -> None:
        self.precision = precision
        self.copies = copies
        self.calls = calls
        self._entered = False

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Return a context for forwards and their backwards; inside another it changes nothing.

        Yields
        ------
        None
            Masters must not change inside, for copies are made at the beginning.
        """
        if self._entered:
            yield
            return
        with ExitStack() as stack:
            if self.calls is not None:
                stack.enter_context(self.calls.installed())
            if self.copies is not None:
                stack.enter_context(self.copies.reading())
            self._entered = True
            try:
                yield
            finally:
                self._entered = False

    def casting(self, device: torch.device) -> AbstractContextManager[object]:
        """Return a context for a forward alone: autocast, where nothing else makes the format.

        Parameters
        ----------
        device : torch.device
            Where is computed.

        Returns
        -------
        context manager
            To be entered once.
        """
        if self.copies is not None or self.precision.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.precision.dtype)


def make_network(model: PreTrainedModel, gradients: Gradients, config: PretrainConfig) -> Network:
    """Return how a network computes, as settings ask for it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With float32 masters.
    gradients : Gradients
        Of the masters.
    config : PretrainConfig
        Settings.

    Returns
    -------
    Network
        The model itself is changed inside its context alone.
    """
    form, calls = config.format(), None
    if config.compile != "none" or config.recompute != "none":
        wanted = config.compile == "layers" and config.attention == "auto"
        size = _head_size(model)
        own = size if wanted and kernels_for(size, model.device) else 0
        calls = LayerCalls(model, config.compile, config.recompute, own_attention=own)
    fused = model.config._attn_implementation == "sdpa"
    half = is_half(config.network, form, fused and model.device.type == "cuda")
    return Network(form, HalfCopies(model, gradients, form.dtype) if half else None, calls)


def _head_size(model: PreTrainedModel) -> int:
    config = model.config
    width, heads = getattr(config, "hidden_size", 0), getattr(config, "num_attention_heads", 0)
    return int(width) // int(heads) if width and heads else 0


def is_half(network: str, form: Precision, fits: bool) -> bool:
    """Return whether a network reads copies in half precision.

    By itself in float16 alone: against float32, gradients of a half network of 12 plain layers
    were off by 2e-3 in float16 (6e-4 with autocast) and by 1.4e-2 in bfloat16 (4e-3), whose eight
    bits are few for norms and for what layers hand to each other. And only with fused attention on
    a GPU: other attention would take its softmax in half precision, and on a CPU torch keeps the
    statistics of norms in half precision.

    Parameters
    ----------
    network : str
        The setting.
    form : Precision
        The number format.
    fits : bool
        Whether the device and the host's attention sum in float32.

    Returns
    -------
    bool
        False in float32, whatever the setting.

    Examples
    --------
    >>> from mpobert_plugin.train.precision import Precision
    >>> [is_half("auto", Precision(name), True) for name in ("fp16", "bf16", "fp32")]
    [True, False, False]
    """
    if network == "auto":
        return fits and form.dtype == torch.float16
    return network == "half" and form.dtype != torch.float32
