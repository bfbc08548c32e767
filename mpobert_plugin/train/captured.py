"""Work that is recorded once and then queued by one call, so that the host never holds a GPU up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from mpobert_plugin.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

Tensors: TypeAlias = tuple[Tensor, ...]
Work: TypeAlias = Callable[..., Tensors]
Replay: TypeAlias = Callable[[], Tensors]
# The first run compiles, makes moments and plans of products; the second one has what it needs.
_WARM_UPS = 2


class Recorder(Protocol):
    """Runs work as it will be recorded, and records it."""

    device: torch.device

    def begin(self) -> None:
        """Make room before work runs for the first time."""

    def forget(self) -> None:
        """Take note that everything that was recorded is dropped."""

    def run(self, work: Work, inputs: Tensors) -> Tensors:
        """Return what work returns."""

    def record(self, work: Work, inputs: Tensors) -> Replay:
        """Return a call that does the work again, on what `inputs` hold then."""


class CudaGraphs:
    """Records CUDA graphs, which share one pool of memory: they never run side by side.

    Parameters
    ----------
    device : torch.device
        A GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # torch leaves this class without types.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def begin(self) -> None:
        """Free what is cached, or what stays from the first run would be put into pieces of it.

        Large blocks that hold a little would then be lost for what is recorded.
        """
        torch.cuda.empty_cache()

    def forget(self) -> None:
        """Take another pool next time: torch frees one whose graphs are gone, and not for reuse."""
        self._pool = None

    def run(self, work: Work, inputs: Tensors) -> Tensors:
        """Return what work returns, run on the stream on which it is recorded later.

        Parameters
        ----------
        work : callable
            Takes the inputs.
        inputs : tuple of Tensor
            On the device.

        Returns
        -------
        tuple of Tensor
            To be used on the current stream.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found = work(*inputs)
        current.wait_stream(self._stream)
        for tensor in found:
            tensor.record_stream(current)
        return found

    def record(self, work: Work, inputs: Tensors) -> Replay:
        """Return a call that queues the same work again, without running it now.

        Parameters
        ----------
        work : callable
            Takes the inputs.
        inputs : tuple of Tensor
            Whose places in memory the work reads each time.

        Returns
        -------
        callable
            Returns copies of what the work has made.

        Raises
        ------
        ConfigError
            When the work cannot be recorded: it waits for the device, as some models do.
        """
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # Other threads, such as the one that pins batches, may go on with what they do.
        recording = torch.cuda.graph(
            graph, self._pool, self._stream, capture_error_mode="thread_local"
        )
        before = torch.cuda.current_stream()
        try:
            with recording:
                found = work(*inputs)
        except torch.OutOfMemoryError:
            torch.cuda.set_stream(before)
            raise
        except RuntimeError as error:
            # A recording that fails leaves its stream as the current one.
            torch.cuda.set_stream(before)
            raise ConfigError(
                f"the steps of this model cannot be recorded as CUDA graphs: {error} "
                "Give graphs='none' to run them as they are."
            ) from error

        def replay() -> Tensors:
            graph.replay()
            # The next graph may use the same memory.
            return tuple(tensor.clone() for tensor in found)

        return replay


@dataclass
class _Kept:
    inputs: Tensors
    runs: int = 0
    replay: Replay | None = None


class Captured:
    """Work by name: run as it is at first, then recorded, and queued by one call from then on.

    What work changes has to stay at its place in memory, and shapes and all that the host decides
    have to be part of the name. Random numbers are drawn anew each time, as the generator of the
    device is set then.

    Parameters
    ----------
    recorder : Recorder
        Such as `CudaGraphs`.
    warm_ups : int
        Runs before the work is recorded.
    """

    def __init__(self, recorder: Recorder, warm_ups: int = _WARM_UPS) -> None:
        self._recorder = recorder
        self._warm_ups = warm_ups
        self._kept: dict[Hashable, _Kept] = {}

    def __call__(self, name: Hashable, work: Work, inputs: Sequence[Tensor]) -> Tensors:
        """Return what work makes of the inputs.

        Parameters
        ----------
        name : hashable
            What is recorded; the first work of that name.
        work : callable
            Takes tensors in the places of the inputs, on the device.
        inputs : sequence of Tensor
            On the host, in pinned memory, or on the device.

        Returns
        -------
        tuple of Tensor
            Of the caller's own.
        """
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _Kept(self._room(inputs))
        for place, tensor in zip(kept.inputs, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        if kept.runs < self._warm_ups:
            if kept.runs == 0:
                self._recorder.begin()
            kept.runs += 1
            return self._recorder.run(work, kept.inputs)
        if kept.replay is None:
            kept.replay = self._recorder.record(work, kept.inputs)
        return kept.replay()

    def forget(self) -> None:
        """Forget what was recorded: things have got other places in memory."""
        self._kept.clear()
        self._recorder.forget()

    def _room(self, inputs: Sequence[Tensor]) -> Tensors:
        device = self._recorder.device
        return tuple(torch.empty_like(tensor, device=device) for tensor in inputs)


@contextmanager
def recordable(optimizer: Optimizer) -> Iterator[None]:
    """Return a context in which torch's optimizers let their step be recorded.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With a learning rate and counts on the device.

    Yields
    ------
    None
        Outside of a recording they would warn of the option that is set here.
    """
    recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    groups = [g for g in optimizer.param_groups if recorded and not g.get("capturable", True)]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False
