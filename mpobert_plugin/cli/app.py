"""The program itself: its name, its version, and how errors end it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from mpobert_plugin.errors import MPOBertError, MPOBertWarning
from mpobert_plugin.words import load_package

app = typer.Typer(
    name="mpobert",
    help="MPOBERT: Transformers whose layers share their central tensors.",
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
    """Convert, inspect, merge and train models of transformers."""


@contextmanager
def said(
    interrupted: str = "Nothing was written.", names: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Return a context that turns errors and warnings into lines, and errors into exit codes.

    Parameters
    ----------
    interrupted : str
        What to say when Ctrl-C ends the command.
    names : mapping of str to str, optional
        What the command calls arguments of functions that messages name.

    Raises
    ------
    typer.Exit
        With 2 after an error of the user's making, 130 after Ctrl-C.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", MPOBertWarning)
            warnings.showwarning = _warn
            load_package()
            yield
    except BrokenPipeError:
        # Whoever reads has enough, as head has after some lines; the program's frame knows.
        raise
    except (MPOBertError, OSError) as error:
        text = str(error)
        for argument, option in (names or {}).items():
            text = text.replace(argument, option)
        typer.echo(f"Error: {text}", err=True)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _warn(message: Warning | str, *_where: Any, **_more: Any) -> None:
    typer.echo(f"Warning: {message}", err=True)
