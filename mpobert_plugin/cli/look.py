"""Commands that look into a folder: ``mpobert account``, ``describe`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpobert_plugin.cli.app import app, said
from mpobert_plugin.cli.folders import load
from mpobert_plugin.cli.in_options import CONVERSION
from mpobert_plugin.cli.show import check_picture, counts_of, show_counts, show_json, show_report

Folder = Annotated[Path, typer.Argument(help="A folder that save_pretrained wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture: .png, .svg or .pdf.")]


@app.command()
def account(
    folder: Folder, as_json: AsJson = False, plot: Plot = None, force: Force = False
) -> None:
    """Count the parameters of a model, converted or plain, by kind.

    Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said(names=CONVERSION):
        import mpobert_plugin as mp
        from mpobert_plugin import plotting

        check_picture(plot, force)
        report = mp.account(load(folder))
        if plot is not None:
            plotting.save(plotting.parameters_by_kind(report), plot)
        if as_json:
            show_json(counts_of(report))
        else:
            show_counts(report)


@app.command()
def describe(folder: Folder, as_json: AsJson = False) -> None:
    """Say who shares what in a converted model: banks, bonds, and the layers of each slice.

    With --json, the plan of the conversion. Exit code: 0 when done, 2 when it cannot run,
    130 when Ctrl-C ends it.
    """
    with said(names=CONVERSION):
        import mpobert_plugin as mp
        from mpobert_plugin.runtime import banks_of

        model = load(folder)
        text = mp.describe(model)
        if as_json:
            show_json(banks_of(model).plan.to_dict())
        else:
            typer.echo(text)


@app.command()
def report(
    folder: Folder, as_json: AsJson = False, plot: Plot = None, force: Force = False
) -> None:
    """Say what a conversion lost and saved: the error and the size of every matrix.

    With --plot, a heat map of the errors by role and layer. Exit code: 0 when done, 2 when it
    cannot run, 130 when Ctrl-C ends it.
    """
    with said(names=CONVERSION):
        import mpobert_plugin as mp
        from mpobert_plugin import plotting
        from mpobert_plugin.runtime import banks_of

        check_picture(plot, force)
        model = load(folder)
        found = mp.report(model)
        if plot is not None:
            errors = plotting.errors_of_plan(banks_of(model).plan)
            plotting.save(plotting.errors_by_layer(errors), plot)
        if as_json:
            show_json(found.to_dict())
        else:
            show_report(found)
