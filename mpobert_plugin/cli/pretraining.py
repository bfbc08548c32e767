"""Commands of pre-training: ``mpobert prepare`` and ``mpobert pretrain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mpobert_plugin.cli.app import app, said

PREPARING = {
    "overwrite": "--force",
    "field": "--field",
    "separator": "--separator",
    "tokenizer": "--tokenizer",
    "tokenizer kind": "--kind",
    "vocabulary size": "--size",
    "workers": "--workers",
    "out": "--out",
}


@app.command()
def prepare(
    sources: Annotated[
        list[Path], typer.Argument(help="Text files (.txt, .md, .jsonl, ...) or folders of them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, or a folder with one; else one is trained.")
    ] = None,
    kind: Annotated[str, typer.Option(help="wordpiece or unigram, for a new one.")] = "wordpiece",
    size: Annotated[int, typer.Option(help="Tokens of a new one at most.")] = 30_000,
    cased: Annotated[bool, typer.Option("--cased", help="A new one keeps capitals.")] = False,
    separator: Annotated[
        str, typer.Option(help="blank_line ends a document, or each file is one: file.")
    ] = "blank_line",
    field: Annotated[str, typer.Option(help="Field of JSON lines with the text.")] = "text",
    workers: Annotated[
        int | None, typer.Option(help="Processes.", show_default="one for each processor")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a corpus that is there.")] = False,
) -> None:
    """Turn text into a prepared corpus: token ids in memory maps, with a manifest.

    An interrupted command goes on where it was when it is given again. Exit code: 0 when done,
    2 when it cannot run, 130 when Ctrl-C ends it.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from mpobert_plugin.train.data.prepare import Vocabulary
    from mpobert_plugin.train.data.prepare import prepare as run
    from mpobert_plugin.train.data.texts import Reading

    columns = SpinnerColumn(), TextColumn("{task.completed:,} characters"), TimeElapsedColumn()
    again = said("Give the command again to go on.", PREPARING)
    console = Console()
    # A file or a pipe would get an empty line in place of the bar.
    hidden = not console.is_interactive
    with again, Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        corpus = run(
            sources,
            out,
            Vocabulary(tokenizer, kind, size, not cased),
            Reading(separator, field),
            workers=workers or os.cpu_count() or 1,
            overwrite=force,
            progress=lambda count: bar.advance(task, count),
            say=typer.echo,
        )
    typer.echo(repr(corpus))


@app.command()
def pretrain(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of settings, with model, data and out.")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(help="Settings such as lr=1e-3 that override the file's.")
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", help="Print every setting with its default, and end.")
    ] = False,
) -> None:
    """Pre-train a model, or go on with a run that is in its folder already.

    For several GPUs: torchrun --nproc-per-node 4 -m mpobert_plugin.cli pretrain run.yaml

    Exit code: 0 when finished, or when SIGTERM or Ctrl-C ended it behind a checkpoint, 2 when it
    cannot run or diverges, 130 when Ctrl-C ended it without one.
    """
    from mpobert_plugin.cli.bar import step_bar
    from mpobert_plugin.train.run import pretrain as run
    from mpobert_plugin.train.run import settings_of

    if options:
        _show_options()
        return
    with said("The last checkpoint, if there was one, is kept; give the command again to go on."):
        if config is not None and "=" in str(config) and not config.exists():
            # A first word that is no file.
            words, config = [str(config), *(words or [])], None
        order = settings_of(config, words or [])
        with step_bar() as bar:
            result = run(**order, say=bar.say, progress=bar.moved)
        state = "finished" if result.finished else f"stopped by {result.signal}"
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"{state} after step {result.step}: {result.checkpoint}")


def _show_options() -> None:
    from dataclasses import fields

    from mpobert_plugin.train.settings import PretrainConfig

    typer.echo("preset:  # Settings for a model, such as mpobert-tiny; all others override them.")
    typer.echo("model:  # A preset, a folder, a run, or {from_albert: folder, num_layers: 24}.")
    typer.echo("data:  # Folder of `mpobert prepare`; held_out: another one, to evaluate on.")
    typer.echo("out: mpobert-run  # Folder of the run.")
    for entry in fields(PretrainConfig):
        typer.echo(f"{entry.name}: {entry.default}  # {entry.metadata['text']}")
