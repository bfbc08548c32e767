"""``mpobert demo``: a real ALBERT becomes an MPOBERT before your eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpobert_plugin.cli.app import FAILED, INTERRUPTED, UNUSABLE, app
from mpobert_plugin.words import load_package


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

    load_package()
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
