"""The command line: ``tensornet decompose``, ``inspect``, ``reconstruct``, ``search``, ``plan``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
except ImportError as error:
    raise SystemExit(
        "The command line needs typer and rich. Install them: pip install 'tensornet-mpo[cli]'"
    ) from error

from tensornet import __version__
from tensornet.errors import OptionError, ShapeError, TensorNetError, complaint

UNUSABLE, INTERRUPTED = 2, 130
_LIMITS = "max_bond|max_params|ratio|rtol"
_OPTIONS = (
    f"{_LIMITS}|batch|dtype|exclude|include|memory_limit|min_size|minimize|name|out|shape|sites"
)

app = typer.Typer(
    name="tensornet",
    help="Matrices as chains of small tensors: decompose files of weights and look into them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[Path, typer.Argument(help="A .safetensors file, or the .index.json of several.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the result; forget an interrupted run of other limits."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MaxBond = Annotated[int | None, typer.Option(help="Hard cap for every bond.")]
Rtol = Annotated[float | None, typer.Option(help="Largest relative error of each matrix.")]
Ratio = Annotated[float | None, typer.Option(help="Stored / dense of each matrix, at most.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Decompose files of weights and look into them."""


@app.command()
def decompose(
    source: Source,
    out: Out,
    max_bond: MaxBond = None,
    rtol: Rtol = None,
    ratio: Ratio = None,
    max_params: Annotated[
        int | None,
        typer.Option(help="Elements of the whole file, at most; reads every matrix twice."),
    ] = None,
    include: Annotated[list[str], typer.Option(help="Names to decompose; repeatable.")] = ["*"],  # noqa: B006
    exclude: Annotated[list[str], typer.Option(help="Names to leave; repeatable.")] = [],  # noqa: B006
    shape: Annotated[
        list[str],
        typer.Option(
            help="Factors of rows and columns, such as 4,4,4,4,3x4,4,4,4,3, for matrices of that "
            "size (repeatable); or the number of sites of all others."
        ),
    ] = [],  # noqa: B006
    sites: Annotated[int, typer.Option(help="Number of sites of a chain.")] = 5,
    dtype: Annotated[
        str | None,
        typer.Option(help="Element type of the cores: float64, float32, float16, bfloat16."),
    ] = None,
    min_size: Annotated[int, typer.Option(help="Leave matrices with a smaller side.")] = 16,
    keep_larger: Annotated[
        bool, typer.Option("--keep-larger", help="Store chains larger than their matrix too.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a file whose matrices are chains, one matrix in memory at a time.

    Interrupted, the same command goes on where it was. Exit code: 0 when done,
    2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with _said(f"Run the same command again to go on; what is done is in {out}.parts."):
        from tensornet.streaming import Options, decompose_file

        shapes = [_factors(text) for text in shape if not text.isdecimal()]
        numbers = [int(text) for text in shape if text.isdecimal()]
        options = Options(
            max_bond=max_bond,
            rtol=rtol,
            ratio=ratio,
            include=tuple(include),
            exclude=tuple(exclude),
            sites=numbers[-1] if numbers else sites,
            min_size=min_size,
            keep_larger=keep_larger,
            shapes=tuple(shapes),
            dtype=dtype,
            max_params=max_params,
        )
        with _progress("decomposing") as progress:
            summary = decompose_file(source, out, options, overwrite=overwrite, progress=progress)
        _show(summary, as_json)


@app.command()
def reconstruct(source: Source, out: Out, overwrite: Overwrite = False) -> None:
    """Write plain matrices again from a file of chains."""
    with _said(f"{out} was not written."):
        from tensornet.streaming import reconstruct_file

        with _progress("rebuilding") as progress:
            summary = reconstruct_file(source, out, overwrite=overwrite, progress=progress)
        n = len(summary.rows)
        typer.echo(f"{n} {'matrix' if n == 1 else 'matrices'} rebuilt: {out}")


@app.command()
def inspect(source: Source, as_json: AsJson = False) -> None:
    """Show what a file holds: chains with their bonds and errors, and plain tensors."""
    with _said("Nothing was changed."):
        from tensornet.streaming import inspect_file

        _show(inspect_file(source), as_json)


@app.command()
def search(
    source: Source,
    name: Annotated[str, typer.Option(help="Name of the matrix.")],
    max_params: Annotated[int | None, typer.Option(help="Parameters to spend, at most.")] = None,
    rtol: Rtol = None,
    ratio: Ratio = None,
    as_json: AsJson = False,
) -> None:
    """Rank chains of many shapes, the plain SVD and the dense matrix for one matrix."""
    with _said("Nothing was changed."):
        import warnings

        import tensornet as tn
        from tensornet.streaming.source import open_source

        entry = _named(open_source(source).entries, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the table says it already
            found = tn.search_shape(entry.matrix(), max_params=max_params, ratio=ratio, rtol=rtol)
        _show(found, as_json)


@app.command()
def plan(
    equation: Annotated[
        str, typer.Argument(help="Such as 'ij,jk->ik'; or, with --name, a file of chains.")
    ],
    shapes: Annotated[
        list[str] | None, typer.Argument(help="One shape for each operand, such as 2x3.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A matrix of the file of chains.")] = None,
    batch: Annotated[int, typer.Option(help="Vectors that the matrix is multiplied with.")] = 1,
    memory_limit: Annotated[
        int | None, typer.Option(help="Elements alive at a time, at most.")
    ] = None,
    minimize: Annotated[
        str | None, typer.Option(help="multiply_adds, peak, traffic; for a matrix also time.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best order to contract a network, or to multiply with a matrix of a file."""
    with _said("Nothing was changed."):
        import tensornet as tn

        options: dict[str, Any] = {"memory_limit": memory_limit}
        if minimize is not None:
            options["minimize"] = minimize
        if name is None:
            made = tn.plan(equation, *map(_shape, shapes or ()), **options)
        elif shapes:
            raise OptionError(complaint("shapes", "be left out with --name", " ".join(shapes)))
        else:
            from tensornet.streaming import load_chain

            made = load_chain(equation, name).plan(batch, **options)
        typer.echo(made.to_json() if as_json else str(made))


@contextmanager
def _said(interrupted: str) -> Iterator[None]:
    """Turn errors into one line and an exit code."""
    try:
        yield
    except TensorNetError as error:
        typer.echo(f"Error: {_flagged(str(error))}", err=True)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _flagged(text: str) -> str:
    """Return what an error says of Python's options in words of the command line."""

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    text = re.sub(rf"(^|: )({_OPTIONS})(?= must )", lambda m: m[1] + flag(m[2]), text)
    if text.startswith("limits must"):
        text = re.sub(rf"\b({_LIMITS})\b", lambda m: flag(m[0]), text)
    text = re.sub(r"(?<![\w./])overwrite=True\b", "--overwrite", text)
    return re.sub(rf"(?<![\w./])({_LIMITS})=(?=\d)", lambda m: f"{flag(m[1])} ", text)


@contextmanager
def _progress(verb: str) -> Iterator[Any]:
    """Yield what shows progress on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)

        def note(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{verb} {name}")

        yield note


def _show(summary: Any, as_json: bool) -> None:
    typer.echo(json.dumps(summary.to_json(), indent=1) if as_json else str(summary))


def _named(entries: dict[str, Any], name: str) -> Any:
    from tensornet.streaming.source import names_near

    entry, matrices = entries.get(name), [n for n, e in entries.items() if not e.no_matrix]
    if entry is None:
        remedy = names_near(name, matrices)
        raise OptionError(complaint("name", "be that of a tensor in the file", repr(name), remedy))
    if entry.no_matrix:
        given, remedy = f"{entry.dtype} of shape {entry.shape}", names_near(name, matrices)
        raise ShapeError(complaint("name", "be that of a matrix", given, remedy))
    return entry


def _factors(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*x[1-9]\d*(,[1-9]\d*)*", text):
        expected = "be a number of sites, or look like 4,4,3x4,4,3"
        raise ShapeError(complaint("shape", expected, repr(text)))
    rows, cols = (tuple(int(d) for d in side.split(",")) for side in text.split("x"))
    return rows, cols


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"scalar|\d+(x\d+)*", text):
        raise ShapeError(complaint("shapes", "look like 2x3, or 'scalar'", repr(text)))
    return () if text == "scalar" else tuple(int(d) for d in text.split("x"))


if __name__ == "__main__":
    app()
