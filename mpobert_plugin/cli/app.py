"""The program itself: its name, its version, and how errors end it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpobert_plugin.cli.in_options import in_options
from mpobert_plugin.errors import MPOBertError, MPOBertWarning
from mpobert_plugin.words import load_package

# What an unknown option raises is one; typer gives it no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Commands(TyperGroup):
    """The commands, which of several options close to a misspelt one name the one that it is."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            close = getattr(error, "possibilities", None)
            if close:
                vars(error)["possibilities"] = closest(getattr(error, "option_name", ""), close)
            raise


def closest(given: str, close: Sequence[str]) -> list[str]:
    """Return the option that a misspelt one holds or is a part of, or all that are close.

    Parameters
    ----------
    given : str
        What was written.
    close : sequence of str
        Options that look like it.

    Returns
    -------
    list of str
        The longest one, or all.

    Examples
    --------
    >>> closest("--targets", ["--target", "--adapter-target", "--gauge"])
    ['--target']
    >>> closest("--shape-bias", ["--shapes", "--share-bias"])
    ['--shapes', '--share-bias']
    """
    name = given.lstrip("-")
    meant = [
        option
        for option in close
        if option.lstrip("-") in name or (name and name in option.lstrip("-"))
    ]
    return [max(meant, key=len)] if meant else list(close)


app = typer.Typer(
    name="mpobert",
    cls=_Commands,
    help="MPOBERT: Transformers whose layers share their central tensors.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
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
    interrupted: str = "Nothing was written.",
    names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Return a context that turns errors and warnings into lines, and errors into exit codes.

    Parameters
    ----------
    interrupted : str
        What to say when Ctrl-C ends the command.
    names : mapping of str to str
        Options of the command by the arguments of functions that messages name.

    Raises
    ------
    typer.Exit
        With 2 after an error of the user's making, 130 after Ctrl-C.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", MPOBertWarning)
            warnings.showwarning = partial(_warn, names)
            load_package()
            yield
    except BrokenPipeError:
        # Whoever reads has enough, as head has after some lines; the program's frame knows.
        raise
    except (MPOBertError, OSError) as error:
        typer.echo(f"Error: {in_options(str(error), names)}", err=True)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _warn(names: Mapping[str, str], message: Warning | str, *_where: Any, **_more: Any) -> None:
    typer.echo(f"Warning: {in_options(str(message), names)}", err=True)
