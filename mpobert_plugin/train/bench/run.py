"""Run sections of the benchmark, and write down each measurement as soon as it is there."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.presets import build
from mpobert_plugin.train.bench.ablation import ablation
from mpobert_plugin.train.bench.host import host
from mpobert_plugin.train.bench.loader import loader
from mpobert_plugin.train.bench.memory import memory
from mpobert_plugin.train.bench.network import network
from mpobert_plugin.train.bench.parts import parts
from mpobert_plugin.train.bench.published import published
from mpobert_plugin.train.bench.record import Record
from mpobert_plugin.train.bench.scaling import scaling
from mpobert_plugin.train.bench.scene import Scene
from mpobert_plugin.train.bench.text import made_up_corpus
from mpobert_plugin.train.bench.timing import Pace
from mpobert_plugin.train.bench.trained import let_go
from mpobert_plugin.train.bench.update import update
from mpobert_plugin.train.data.store import open_corpus
from mpobert_plugin.train.processes import joined

if TYPE_CHECKING:
    from mpobert_plugin.train.bench.options import BenchOptions
    from mpobert_plugin.train.bench.scene import Case, Section
    from mpobert_plugin.train.data.store import Corpus
    from mpobert_plugin.train.processes import Processes

# By weight, so that what matters most is there when time runs out.
SECTIONS: dict[str, Section] = {
    "network": network,
    "transformers": host,
    "reference": published,
    "memory": memory,
    "optimizer": update,
    "parts": parts,
    "scaling": scaling,
    "ablation": ablation,
    "loader": loader,
}
# Those that several processes can run together.
TOGETHER = ("parts", "scaling")
RECORD, TEXT = "bench.json", "made-up-text"
# What an impossible measurement raises: no memory, a compiler that gives up, a missing kernel.
# The others still tell something.
_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    OSError,
)
_SPECIAL = 5


def run_bench(
    sections: Sequence[str],
    options: BenchOptions,
    out: Path,
    *,
    command: str = "",
    device: torch.device | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Record:
    """Return what was measured, with what the folder had before.

    Each measurement is written to ``bench.json`` when it is there. One that fails is written with
    its error, and the next one begins. Under ``torchrun`` the sections 'parts' and 'scaling' run,
    and an error ends the job.

    Parameters
    ----------
    sections : sequence of str
        Names from ``SECTIONS``; all of them when empty.
    options : BenchOptions
        What is measured, and for how long.
    out : Path
        Folder of the record, and of the made-up text.
    command : str
        What is written beside each figure.
    device : torch.device, optional
        The process's own GPU, or the CPU, by default.
    say : callable
        Called with a line for each measurement.

    Returns
    -------
    Record
        All rows of the folder.

    Raises
    ------
    ConfigError
        When a section is unknown, or a record cannot be read.
    OSError
        When the folder cannot be written.
    """
    for name in sections:
        if name not in SECTIONS:
            raise ConfigError(
                f"a section must be one of {', '.join(SECTIONS)}, got {name!r}."
                f"{close_to(name, list(SECTIONS))}"
            )
    out.mkdir(parents=True, exist_ok=True)
    file, end = out / RECORD, time.monotonic() + options.limit
    record = Record.read(file) if file.exists() else Record()
    known = [row for path in options.against for row in Record.read(path).rows]
    with joined(device) as processes:
        names = _chosen(sections, processes)
        bench = _Bench(options, record, known, file, command, processes, say, end)
        for model in options.models:
            corpus = corpus_for(options, model, out, processes)
            for name in names:
                bench.section(name, model, corpus)
    return record


def _chosen(sections: Sequence[str], processes: Processes) -> list[str]:
    possible = list(SECTIONS) if processes.world_size == 1 else list(TOGETHER)
    names = [*dict.fromkeys(sections)] or possible
    alone = [name for name in names if name not in possible]
    if alone:
        raise ConfigError(
            f"sections must be some of {', '.join(TOGETHER)} with several processes, got "
            f"{', '.join(alone)} with {processes.world_size}. Run those without torchrun."
        )
    return names


def corpus_for(options: BenchOptions, model: str, out: Path, processes: Processes) -> Corpus:
    """Return the text of a measurement: a prepared one, or made-up words.

    Parameters
    ----------
    options : BenchOptions
        Which text, and sizes of the model.
    model : str
        Preset, whose vocabulary made-up text has.
    out : Path
        Folder for made-up text.
    processes : Processes
        Of whom the first writes it.

    Returns
    -------
    Corpus
        Opened.
    """
    if options.data is not None:
        return open_corpus(options.data)
    sizes = {name: value for name, value in options.sizes.items() if name == "vocab_size"}
    wanted = int(build(model, device="meta", num_layers=1, **sizes).config.vocab_size)
    folder = out / f"{TEXT}-{wanted}"
    if processes.first:
        made_up_corpus(folder, wanted - _SPECIAL)
    processes.wait()
    return open_corpus(folder)


class _Bench:
    """What sections have in common: the record, the clock, and how failures are noted."""

    def __init__(
        self,
        options: BenchOptions,
        record: Record,
        known: list[dict[str, Any]],
        file: Path,
        command: str,
        processes: Processes,
        say: Callable[[str], None],
        end: float,
    ) -> None:
        self.options, self.record, self.known = options, record, known
        self.file, self.command, self.processes = file, command, processes
        self.say, self.end = say, end

    def section(self, name: str, model: str, corpus: Corpus) -> None:
        options = self.options
        until = min(time.monotonic() + options.seconds, self.end)
        scene = Scene(
            model,
            options.sizes,
            options.config,
            corpus,
            self.processes,
            options.formats,
            options.accumulation,
            Pace(options.rounds, options.turn, until),
            [*self.known, *self.record.rows],
        )
        for case in SECTIONS[name](scene):
            self._case(name, scene, case)

    def _case(self, section: str, scene: Scene, case: Case) -> None:
        start = time.monotonic()
        found: dict[str, Any] = {"skipped": "no time was left"}
        if not self.processes.any(start > scene.pace.until):
            found = _run(case)
        row = {
            "section": section,
            "model": scene.model,
            "case": case.name,
            "precision": case.precision,
            **self._about(),
            "sizes": dict(scene.sizes),
            "settings": scene.config.to_dict(),
            "seconds": round(time.monotonic() - start, 2),
            **found,
        }
        if self.processes.first:
            self.record.add(row)
            self.record.write(self.file)
            self.say(_line(row))
        _let_go(self.processes.device)
        if "error" in found and self.processes.world_size > 1:
            # The others wait for this one, or have failed too.
            raise ConfigError(f"{section}, {scene.model}, {case.name}: {found['error']}")

    def _about(self) -> dict[str, Any]:
        device = self.processes.device
        on_gpu = device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(device) if on_gpu else "CPU",
            "world_size": self.processes.world_size,
            "command": self.command,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        }


def _run(case: Case) -> dict[str, Any]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    try:
        return {"values": case.run()}
    except _FAILURES as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        torch.set_float32_matmul_precision(before)


def _let_go(device: torch.device) -> None:
    """Free what a measurement has left: graphs that were compiled, and memory."""
    # Each network brings graphs of the same code, which has room for a few alone.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    let_go(device)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['section']}, {row['model']}, {row['case']}"
    if "values" not in row:
        return f"{head}: {row.get('error', row.get('skipped'))}"
    told = []
    for name, values in row["values"].items():
        rate, speed = values.get("tokens_per_second"), values.get("speed")
        words = [] if rate is None else [f"{rate:,.0f} tokens/s"]
        words += [] if speed is None else [f"{speed:.3f} times as fast"]
        told.append(f"{name} {', '.join(words)}".strip())
    return f"{head} ({row['seconds']:.0f} s): {'; '.join(told)}"
