"""The command ``mpobert stability``: updates of the output against depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpobert_plugin.cli.app import app, said
from mpobert_plugin.cli.show import check_picture, show_json, show_table

if TYPE_CHECKING:
    from mpobert_plugin.stability import Sweep

SWEEP = {
    "depths": "--depth",
    "optimizers": "--optimizer",
    "sites": "--sites",
    "seeds": "--seeds",
    "start": "--start",
    "scale": "--scale",
    "branch_multiplier": "--branch-multiplier",
    "depth_rates": "--depth-rates",
    "hidden_size": "--hidden-size",
}


@app.command()
def stability(
    depths: Annotated[list[int], typer.Option("--depth", min=1, help="Layers; repeatable.")] = [  # noqa: B006
        6,
        12,
        24,
        48,
        96,
    ],
    optimizers: Annotated[
        list[str], typer.Option("--optimizer", help="sgd, adam or lamb; repeatable.")
    ] = ["sgd", "adam", "lamb"],  # noqa: B006
    sites: Annotated[
        list[int], typer.Option("--sites", min=1, help="Cores of a matrix; repeatable.")
    ] = [3, 5],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Models of each kind, one for each seed.")] = 3,
    start: Annotated[str, typer.Option(help="fresh, or copies of one layer.")] = "fresh",
    scale: Annotated[str | None, typer.Option(help="product or per_core.")] = None,
    branch_multiplier: Annotated[
        float | None, typer.Option(help="Factor of each branch; 1 / layers by default.")
    ] = None,
    depth_rates: Annotated[
        bool, typer.Option(help="Rates of biases, norms and auxiliary tensors by depth.")
    ] = True,
    hidden_size: Annotated[int, typer.Option(min=8, help="Width of the models.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: .png, .svg or .pdf.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
) -> None:
    """Measure how far one optimizer step moves the output of models of many depths.

    Small models with real attention, in float64: a minute or two for all cases. Prints the fitted
    exponents of the depth. Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said(names=SWEEP):
        from mpobert_plugin.stability import sweep

        check_picture(plot, force)
        found = sweep(
            depths=sorted(set(depths)),
            optimizers=list(dict.fromkeys(optimizers)),
            sites=sorted(set(sites)),
            seeds=range(seeds),
            start=start,
            scale=scale,
            branch_multiplier=branch_multiplier,
            depth_rates=depth_rates,
            hidden_size=hidden_size,
        )
        if plot is not None:
            from mpobert_plugin.plotting import save
            from mpobert_plugin.stability_plot import updates_by_depth

            save(updates_by_depth(found), plot)
        if as_json:
            show_json(found.to_dict())
        else:
            _show(found)


def _show(found: Sweep) -> None:
    kinds = list(dict.fromkeys(exponent.kind for exponent in found.exponents()))
    table = {(e.optimizer, e.sites, e.kind): e for e in found.exponents()}
    rows = []
    for optimizer, count in found.cases:
        cells = [table.get((optimizer, count, kind)) for kind in kinds]
        words = [f"{cell.value:+.2f}" if cell else "-" for cell in cells]
        largest = max((cell.deviation for cell in cells if cell), default=0.0)
        rows.append([f"{optimizer}, {count}", *words, f"{largest:.2f}"])
    title = "Exponent of the depth in the update of the output, by optimizer and cores"
    show_table(title, ("step of", *kinds, "± up to"), rows)
