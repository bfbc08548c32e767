"""What the benchmark of running is made of: models, steps, times taken in turns, memory."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

import mpobert_plugin as mp
from mpobert_plugin.reconstruct import rebuild

Work = Callable[[], None]
Result = dict[str, Any]

SIZES = {
    "12x768": ("mpobert-12", {}),
    "24x1024": ("mpobert-24", {}),
    "48x1024": ("mpobert-48", {}),
    "tiny": (
        "mpobert-12",
        {
            "num_layers": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_attention_heads": 4,
            "vocab_size": 500,
            "n": 5,
        },
    ),
}
KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALE = 1024.0


def on_gpu() -> bool:
    return torch.cuda.is_available()


def device() -> str:
    return "cuda" if on_gpu() else "cpu"


def wait() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def plain_model(size: str) -> AlbertModel:
    """Return ALBERT with a group of its own for each layer of the preset."""
    name, options = SIZES[size]
    host = mp.build(name, head="none", device="meta", **options).config
    config = AlbertConfig(
        vocab_size=host.vocab_size,
        embedding_size=host.embedding_size,
        hidden_size=host.hidden_size,
        intermediate_size=host.intermediate_size,
        num_attention_heads=host.num_attention_heads,
        num_hidden_layers=host.num_hidden_layers,
        num_hidden_groups=host.num_hidden_layers,
        hidden_act="gelu",
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    with torch.device(device()):
        return AlbertModel(config)


def mpo_model(size: str, **more: Any) -> AlbertModel:
    """Return the MPOBERT of the preset on the device."""
    name, options = SIZES[size]
    torch.manual_seed(0)
    fixed = {"hidden_act": "gelu", "attn_implementation": "sdpa"}
    return mp.build(name, head="none", device=device(), **{**options, **fixed, **more})


def words(model: nn.Module, rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    high = model.config.vocab_size  # type: ignore[union-attr]
    return torch.randint(5, high, (rows, length), generator=generator).to(device())


def autocast(kind: str) -> contextlib.AbstractContextManager[Any]:
    if kind == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device(), KINDS[kind])


def train_step(
    model: nn.Module, ids: Tensor, kind: str, keep: bool = False, optimizer: Any = None
) -> None:
    with autocast(kind):
        out = model(ids).last_hidden_state
    (SCALE * out.float().square().mean()).backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=not keep)


def evaluate(model: nn.Module, ids: Tensor, kind: str | None) -> None:
    with torch.no_grad(), autocast(kind) if kind else contextlib.nullcontext():
        model(ids)


def taking_turns(works: dict[str, Work], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the milliseconds of each work in each round; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        # The order is turned around each time, so that none is always the first.
        for name, work in list(works.items())[:: 1 if turn % 2 else -1]:
            wait()
            start = time.perf_counter()
            for _ in range(steps):
                work()
            wait()
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start) / steps)
    return times


def compared(works: dict[str, Work], rounds: int, steps: int) -> Result:
    """Return medians, and ratios to the first work: the median of those of each round."""
    times = taking_turns(works, rounds, steps)
    base = next(iter(times))
    found: Result = {}
    for name, mine in times.items():
        ratios = sorted(a / b for a, b in zip(mine, times[base], strict=True))
        found[name] = {
            "ms": round(statistics.median(mine), 3),
            "ratio": round(statistics.median(ratios), 4),
            "ratio_low": round(ratios[0], 4),
            "ratio_high": round(ratios[-1], 4),
        }
    return found


def activations(work: Work) -> Result:
    """Return the peak of memory above what parameters and their gradients take, in MiB."""
    if not on_gpu():
        return {}
    work()  # gradients exist from now on, and count as gradients
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    wait()
    peak = torch.cuda.max_memory_allocated()
    return {"activations_mib": round((peak - before) / 2**20, 1)}


def layers_of(model: nn.Module) -> list[nn.Module]:
    groups = model.encoder.albert_layer_groups  # type: ignore[union-attr]
    return [layer for group in groups for layer in group.albert_layers]  # type: ignore[union-attr]


def compile_layers(model: nn.Module) -> None:
    # Two models, in training and in evaluation, are compiled from the code of one class.
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined, unused-ignore]
    for layer in layers_of(model):
        layer.compile(fullgraph=True)


@contextlib.contextmanager
def graphs() -> Iterator[Result]:
    """Return a context that counts compiled graphs and recompilations."""
    from torch._dynamo.utils import counters

    counters.clear()
    found: Result = {}
    yield found
    found["graphs"] = counters["stats"]["unique_graphs"]
    found["recompilations"] = dict(counters["recompiles"])
    found["graph_breaks"] = sum(counters["graph_break"].values())


def set_training(model: nn.Module, name: str) -> None:
    mp.set_strategy(model, name, when="training")


def rebuild_all(banks: list[Any], kind: torch.dtype, manner: Result, backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        for bank in banks:
            made = rebuild(bank.spec, bank.recipe, bank.cores(), kind, **manner)
            if backward:
                torch.autograd.backward(made, [torch.ones_like(matrix) for matrix in made])
                bank.zero_grad()


def rebuild_errors(bank: Any) -> Result:
    """Return relative errors of the matrices: rounded once, and rebuilt in float16."""
    with torch.no_grad():
        wide = {name: tensor.double() for name, tensor in bank.cores().items()}
        exact = rebuild(bank.spec, bank.recipe, wide, torch.float64)[0]
        found = {}
        for kind in (torch.float16, torch.bfloat16):
            for half in (False, True):
                made = rebuild(bank.spec, bank.recipe, bank.cores(), kind, half=half)[0]
                label = f"{'half' if half else 'exact'} {str(kind).removeprefix('torch.')}"
                found[label] = float((made.double() - exact).norm() / exact.norm())
        found["cast float16"] = float((exact.half().double() - exact).norm() / exact.norm())
    return found
