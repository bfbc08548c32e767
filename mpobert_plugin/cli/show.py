"""What commands print: a table, or JSON; and the files of their pictures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from mpobert_plugin.cli.in_options import CONVERSION, in_options
from mpobert_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpobert_plugin.accounting import ParameterReport
    from mpobert_plugin.report import ConversionReport, MatrixReport

FORMATS = (".png", ".svg", ".pdf")


def show_json(value: object) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


# Where no terminal tells a width, a log takes wide tables.
_LOG_WIDTH = 160


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], wide: bool = False
) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if wide and not console.is_terminal:
        console = Console(width=max(console.width, _LOG_WIDTH))
    console.print(table)


def counts_of(report: ParameterReport) -> dict[str, Any]:
    """Return the numbers of a parameter report as values that JSON can hold."""
    ratios = {
        "ratio": report.ratio,
        "ratio_before": report.ratio_before,
        "compression": report.compression,
    }
    return {**asdict(report), **ratios}


def show_counts(report: ParameterReport) -> None:
    """Print the numbers of a parameter report as a table."""
    show_table("Parameters", ("parameters", "number", "of stored"), report.rows())
    for line in report.summary():
        typer.echo(in_options(line, CONVERSION))


def show_report(report: ConversionReport) -> None:
    """Print the errors and sizes of a conversion as a table with a line for each role."""
    rows = [
        _of_matrices(role, [m for m in report.matrices if m.role == role])
        for role in dict.fromkeys(matrix.role for matrix in report.matrices)
    ]
    # A budget may leave every matrix plain.
    if rows:
        rows.append(_of_matrices("all matrices", report.matrices))
        columns = ("role", "matrices", "stored", "plain", "stored / plain", "relative errors")
        show_table(f"{report.model}: matrices in cores", columns, rows)
    for line in report.summary():
        typer.echo(in_options(line, CONVERSION))


def _of_matrices(name: str, matrices: Sequence[MatrixReport]) -> tuple[str, ...]:
    stored, dense = sum(m.stored for m in matrices), sum(m.dense for m in matrices)
    errors = [m.error for m in matrices if m.error is not None]
    span = f"{min(errors):.3g} to {max(errors):.3g}" if errors else "-"
    numbers = (f"{len(matrices)}", f"{round(stored):,}", f"{dense:,}", f"{stored / dense:.4f}")
    return (name, *numbers, span)


def check_picture(path: Path | None, force: bool) -> None:
    """Refuse a picture of an unknown format, in no folder, or one that would replace a file."""
    if path is None:
        return
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot must end in {', '.join(FORMATS)}, got {path.name!r}.")
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already. Name another file, or pass --force.")
    if path.is_dir():
        raise ConfigError(f"--plot must be a file, got the folder {path}.")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot must lie in a folder that is there, got {path}.")
