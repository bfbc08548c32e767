"""The command line: ``mpobert demo``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="mpobert",
    help="MPOBERT: deep ALBERT and BERT models whose layers share their central tensors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("tensornet-mpo"))
        except PackageNotFoundError:
            typer.echo("unknown: tensornet-mpo is not installed as a package")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Make, train and inspect MPOBERT models."""


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the model and the picture.", dir_okay=True)
    ] = Path("mpobert-demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 48,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but what goes wrong.")
    ] = False,
) -> None:
    """Turn a real ALBERT into an MPOBERT, deepen it, train it, save it and reload it.

    Exit code: 0 when all that is shown holds, 1 when a claim fails,
    2 when it cannot run, 130 when Ctrl-C ends it.
    """
    from rich.console import Console

    from mpobert_plugin.demo.run import run
    from mpobert_plugin.demo.settings import Settings
    from mpobert_plugin.errors import MPOBertError

    try:
        failed = run(Settings(out=out, steps=steps, seed=seed), Console(quiet=quiet))
    except (MPOBertError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNUSABLE) from error
    except KeyboardInterrupt as error:
        typer.echo("\nStopped; nothing was written.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if failed:
        typer.echo("These claims do not hold: " + "; ".join(failed), err=True)
        raise typer.Exit(FAILED)
