"""The command ``mpobert bench``: how fast pre-training is here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpobert_plugin.cli.app import FAILED, app, said
from mpobert_plugin.cli.show import show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpobert_plugin.train.bench.options import BenchOptions
    from mpobert_plugin.train.bench.record import Record

MODELS, FORMATS = ("mpobert-48", "mpobert-24", "mpobert-12"), ("fp16", "bf16", "fp32")
_COLUMNS = {
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "ms": ("ms", "{:,.2f}"),
    "speed": ("times as fast", "{:.3f}"),
    "share_of_peak": ("of peak", "{:.3f}"),
    "memory_gib": ("GiB", "{:.2f}"),
}
# The record has them; a table has room for a few columns.
_LEFT_OUT = {"speed_low", "speed_high", "rounds", "tflops", "ms_of_a_whole_step"}


@app.command()
def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sections (network, transformers, reference, memory, optimizer, parts, scaling, "
            "ablation, loader; all by default), settings of pre-training such as micro_batch=16, "
            "and sizes such as model.num_layers=6."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the record; it is added to.")
    ] = Path("mpobert-bench"),
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Preset; repeatable. All three by default.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="fp16, bf16, fp32 or tf32; repeatable. Three by default, fp32 first on a CPU.",
        ),
    ] = None,
    accumulation: Annotated[
        int, typer.Option(min=1, help="Micro-batches of a step where several are measured.")
    ] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender at most.")] = 7,
    turn: Annotated[float, typer.Option(min=0.0, help="Seconds of a turn, about.")] = 0.5,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds of a section for a model; no case begins later.")
    ] = 180.0,
    limit: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds of everything; nothing begins later.", show_default="no limit"
        ),
    ] = 1e9,
    data: Annotated[
        Path | None, typer.Option(help="A prepared corpus; made-up text without.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Records of fewer processes, for the efficiency.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; a GPU when there is one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure pre-training on this machine beside what else could be used, in turns.

    Writes bench.json after every measurement, and bench.png at the end where matplotlib is
    installed. On a GPU layers are compiled unless compile=none is given. Several GPUs:
    torchrun --nproc-per-node 4 -m mpobert_plugin.cli bench scaling parts

    Exit code: 0 when all was measured, 1 when a measurement failed, 2 when it cannot run.
    """
    with said("What was measured is in the record."):
        import torch

        from mpobert_plugin.train.bench.options import BenchOptions
        from mpobert_plugin.train.bench.run import run_bench
        from mpobert_plugin.train.place import device_of

        place = device_of(device)
        on_gpu = torch.cuda.is_available() if place is None else place.type == "cuda"
        sections, config, sizes = split_words(words or [], on_gpu)
        options = BenchOptions(
            tuple(dict.fromkeys(models or MODELS)),
            sizes,
            config,
            tuple(dict.fromkeys(formats or (FORMATS if on_gpu else FORMATS[::-1]))),
            accumulation,
            rounds,
            turn,
            seconds,
            limit,
            data,
            tuple(against or ()),
        )
        record = run_bench(
            sections,
            options,
            out,
            command=_command(words or [], options),
            device=place,
            say=_nothing if as_json else typer.echo,
        )
        _show(record, out, as_json)
    if any("error" in row for row in record.rows):
        raise typer.Exit(FAILED)


def split_words(words: Sequence[str], on_gpu: bool) -> tuple[list[str], Any, dict[str, Any]]:
    """Return sections, settings of pre-training, and sizes of models."""
    from mpobert_plugin.errors import ConfigError
    from mpobert_plugin.train.settings_file import split_settings

    sections = [word for word in words if "=" not in word]
    given = [word for word in words if "=" in word]
    first = ["compile=layers"] if on_gpu else []
    config, others = split_settings(None, [*first, *given], ("model",))
    sizes = others.get("model", {})
    if not isinstance(sizes, dict):
        raise ConfigError(f"a preset must be given as --model {sizes}, got model={sizes}.")
    return sections, config, sizes


def _nothing(_line: str) -> None:
    """Tell nobody: what is printed is to be JSON alone."""


def _command(words: Sequence[str], options: BenchOptions) -> str:
    """Return the command in a form that says everything that differs between machines."""
    parts = ["mpobert", "bench", *words]
    for name in ("accumulation", "rounds", "turn", "seconds"):
        parts += [f"--{name}", f"{getattr(options, name):g}"]
    for flag, given in (("--model", options.models), ("--format", options.formats)):
        for word in given:
            parts += [flag, word]
    return shlex.join(parts)


def _show(record: Record, out: Path, as_json: bool) -> None:
    import os
    from importlib.util import find_spec

    if os.environ.get("RANK", "0") != "0":
        return
    if find_spec("matplotlib") is not None and any("values" in row for row in record.rows):
        from mpobert_plugin.plotting import save
        from mpobert_plugin.train.bench.picture import picture

        save(picture(record), out / "bench.png")
    if as_json:
        show_json(record.rows)
        return
    for section, model in dict.fromkeys((row["section"], row["model"]) for row in record.rows):
        rows = [r for r in record.rows if (r["section"], r["model"]) == (section, model)]
        _table(f"{section}, {model}, {rows[-1]['device']}", rows)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    lines: list[tuple[str, str, Mapping[str, Any]]] = []
    for row in rows:
        failed = {"": row.get("error", row.get("skipped", ""))[:60]}
        for name, values in row.get("values", {"-": failed}).items():
            lines.append((row["case"], name, values))
    known = [key for key in _COLUMNS if any(key in values for *_, values in lines)]
    others = dict.fromkeys(
        key for *_, values in lines for key in values if key not in {*_COLUMNS, *_LEFT_OUT}
    )
    heads = [_COLUMNS[key][0] for key in known] + [key.replace("_", " ") for key in others]
    cells = [
        [case, name, *(_cell(values, key) for key in (*known, *others))]
        for case, name, values in lines
    ]
    show_table(title, ("case", "contender", *heads), cells, wide=True)


def _cell(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None:
        return "-"
    if isinstance(value, dict):
        return "\n".join(f"{name.replace('_', ' ')} {number:.3g}" for name, number in value.items())
    if isinstance(value, str | bool):
        return str(value)
    text = _COLUMNS.get(key, ("", "{:.4g}"))[1].format(value)
    if key == "speed" and value != 1.0:
        text += f" ({values['speed_low']:.3f} to {values['speed_high']:.3f})"
    return text
