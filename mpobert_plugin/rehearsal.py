"""Run a strategy on tensors without data, and tell what it costs beside plain weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import linear

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.lazy import Lazy, Values
from mpobert_plugin.spec import BankSpec
from mpobert_plugin.strategy import Strategy
from mpobert_plugin.tally import SPEEDS, Tally, seconds


@dataclass(frozen=True)
class Cost:
    """What a strategy costs in one forward, and in training its backward.

    Parameters
    ----------
    name : str
        The strategy.
    multiply_adds : int
        Multiply-adds beyond those of the layers with plain weights; negative where cores are
        cheaper than the matrix.
    matrices : int
        Bytes of rebuilt matrices that are kept: from forward to backward in training, between
        forwards in evaluation with a cache.
    saved : int
        Bytes of everything else that is kept from forward to backward.
    workspace : int
        Most bytes alive beyond those at any moment.
    milliseconds : float
        Expected time, from round figures for the kind of device, the layers' products included.

    Examples
    --------
    >>> Cost("batched", 10, 4, 2, 3, 0.1).peak
    9
    """

    name: str
    multiply_adds: int
    matrices: int
    saved: int
    workspace: int
    milliseconds: float

    @property
    def peak(self) -> int:
        """Most bytes at any moment."""
        return self.matrices + self.saved + self.workspace


@dataclass(frozen=True)
class Scene:
    """What a strategy is rehearsed for.

    Parameters
    ----------
    specs : tuple of BankSpec
        The banks, in their order in a layer.
    tokens : int
        Number of inputs of a forward.
    training : bool
        Whether a backward follows.
    stored, computed : torch.dtype
        Element types of the tensors of the banks and of the products in the layers.
    device : str
        Kind of device, 'cuda' or 'cpu'.
    """

    specs: tuple[BankSpec, ...]
    tokens: int
    training: bool
    stored: torch.dtype
    computed: torch.dtype
    device: str


class _Imagined(MPOBank):
    """A bank without data that behaves as one on some device would."""

    def __init__(self, spec: BankSpec, scene: Scene, strategy: Strategy) -> None:
        super().__init__(spec, "meta", scene.stored)
        self.scene = scene
        self.strategy = strategy
        self.train(scene.training)

    def _compute_dtype(self) -> torch.dtype:
        return self.scene.computed

    def _device_type(self) -> str:
        return self.scene.device


@lru_cache(maxsize=256)
def rehearse(scene: Scene, name: str, group: int) -> Cost:
    """Return what a strategy costs.

    Parameters
    ----------
    scene : Scene
        What it is rehearsed for.
    name : str
        The strategy.
    group : int
        Number of layers of a group.

    Returns
    -------
    Cost
        Bytes and multiply-adds as counted while the strategy runs.

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 4, 4, 1), (0, 0), (0, 1))
    >>> scene = Scene((spec,), 100, True, torch.float32, torch.float32, "cpu")
    >>> rehearse(scene, "batched", 1).matrices, rehearse(scene, "per_layer", 1).matrices
    (512, 0)
    """
    when = "training" if scene.training else "evaluation"
    strategy = Strategy(group=group).having(when, name)
    if name == "factorized":
        return _factorized(scene, strategy)
    with Tally(SPEEDS[scene.device]) as tally, torch.set_grad_enabled(scene.training):
        banks = [_Imagined(spec, scene, strategy) for spec in scene.specs]
        before, _ = tally.alive, tally.reset_peak()
        # Without inputs, so that only what belongs to the matrices is counted.
        matrices, saved = _run(banks, scene, 0, tally, before)
    _, time = _dense(scene)
    extra = tally.multiply_adds
    if name == "cached":
        extra, time = 0, time + _look(scene)
    else:
        time += tally.seconds
    workspace = tally.peak - before - matrices - saved
    return Cost(name, extra, matrices, saved, workspace, 1e3 * time)


def _factorized(scene: Scene, strategy: Strategy) -> Cost:
    """Return the cost by the cores: all layers of a bank do the same, so that one of them runs."""
    adds = saved = workspace = 0
    time = 0.0
    for spec in scene.specs:
        one = replace(spec, central=(0,), auxiliary=(0,), bias=spec.bias and (0,), errors=())
        with Tally(SPEEDS[scene.device]) as tally, torch.set_grad_enabled(scene.training):
            banks = [_Imagined(one, scene, strategy)]
            before, _ = tally.alive, tally.reset_peak()
            _, kept = _run(banks, scene, scene.tokens, tally, before)
        adds += spec.n_layers * tally.multiply_adds
        saved += spec.n_layers * kept
        workspace = max(workspace, tally.peak - before - kept)
        time += spec.n_layers * tally.seconds
    return Cost("factorized", adds - _dense(scene)[0], 0, saved, workspace, 1e3 * time)


def _run(
    banks: Sequence[_Imagined], scene: Scene, tokens: int, tally: Tally, before: int
) -> tuple[int, int]:
    """Return the bytes of matrices and of everything else that is kept after a forward."""
    handed = [bank.all_values() for bank in banks]
    matrices = _bytes([v[0] for values in handed for v in values if not isinstance(v, Lazy)])
    outputs = []
    for slot in range(max(bank.spec.n_layers for bank in banks)):
        for bank, values in zip(banks, handed, strict=True):
            if slot < bank.spec.n_layers:
                size = (tokens, bank.spec.cols)
                x = torch.empty(size, dtype=scene.computed, device="meta")
                x.requires_grad_(scene.training)
                outputs.append(_product(x, values[slot]))
    if not scene.training:
        return (matrices, 0) if banks[0].strategy.evaluation == "cached" else (0, 0)
    del handed, values
    beside = sum(y.numel() * y.element_size() for y in outputs)
    saved = tally.alive - before - beside - matrices
    torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
    return matrices, saved


def _product(x: Tensor, values: Values | Lazy) -> Tensor:
    return values.linear(x) if isinstance(values, Lazy) else linear(x, *values)


def _bytes(tensors: Sequence[Tensor]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _dense(scene: Scene) -> tuple[int, float]:
    """Return multiply-adds and seconds of the layers' own products."""
    size, passes = scene.computed.itemsize, 3 if scene.training else 1
    speed, adds, time = SPEEDS[scene.device], 0, 0.0
    for spec in scene.specs:
        one = scene.tokens * spec.rows * spec.cols
        moved = size * (spec.rows * spec.cols + scene.tokens * (spec.rows + spec.cols))
        adds += passes * spec.n_layers * one
        time += passes * spec.n_layers * seconds(speed, one, size, moved)
    return adds, time


def _look(scene: Scene) -> float:
    """Return the seconds of one look at the tensors of all banks."""
    shapes = [shape for spec in scene.specs for shape in spec.tensor_shapes().items()]
    read = sum(torch.Size(shape).numel() for name, shape in shapes if name != "bias")
    return 10 * SPEEDS[scene.device].start + seconds(
        SPEEDS[scene.device], 0, 4, 4 * scene.stored.itemsize * read
    )
