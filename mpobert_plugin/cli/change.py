"""Commands that write a new folder: ``mpobert convert`` and ``mpobert merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mpobert_plugin.cli.app import app, said
from mpobert_plugin.cli.folders import check_target, load, save
from mpobert_plugin.cli.look import AsJson, Folder, Force, Plot
from mpobert_plugin.cli.options import given_options, read_config, structured
from mpobert_plugin.cli.show import check_picture, counts_of, show_json, show_report
from mpobert_plugin.errors import ConfigError

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")]
DTYPES = ("float16", "bfloat16", "float32", "float64")


@app.command()
def convert(
    folder: Folder,
    out: Out,
    config: Annotated[
        Path | None, typer.Option(help="JSON file of options; those given here override it.")
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(help="none, all, groups:k, albert, or JSON: blocks of layers, or per role."),
    ] = None,
    n: Annotated[int | None, typer.Option(help="Number of sites of each matrix.")] = None,
    shapes: Annotated[
        str | None, typer.Option(help="JSON: factors by size or role, or one pair for all.")
    ] = None,
    max_bond: Annotated[int | None, typer.Option(help="Largest bond.")] = None,
    rtol: Annotated[float | None, typer.Option(help="Largest relative error of a matrix.")] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Stored / plain parameters of the whole model, at most.")
    ] = None,
    max_params: Annotated[
        int | None, typer.Option(help="Stored parameters of the whole model, at most.")
    ] = None,
    target: Annotated[
        list[str], typer.Option(help="Role of a matrix to convert; repeatable.")
    ] = [],  # noqa: B006
    adapter_rank: Annotated[int | None, typer.Option(help="Rank of the adapters.")] = None,
    adapter_alpha: Annotated[
        float | None, typer.Option(help="Adapters are scaled by alpha / rank.")
    ] = None,
    adapter_target: Annotated[
        list[str], typer.Option(help="Role that gets an adapter; repeatable.")
    ] = [],  # noqa: B006
    share_bias: Annotated[str | None, typer.Option(help="As --sharing, for biases.")] = None,
    share_norm: Annotated[str | None, typer.Option(help="As --sharing, for norms.")] = None,
    gauge: Annotated[
        str | None, typer.Option(help="symmetric, central, left, right, identity.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="How layers that differ come to share: mean, first, joint.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Write a converted model: shared and cut tensors in the place of its matrices.

    The result loads with AutoModel after "import mpobert_plugin". The files of the tokenizer are
    copied. Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said():
        import mpobert_plugin as mp

        options = given_options(
            {
                "sharing": structured("sharing", sharing),
                "n": n,
                "shapes": structured("shapes", shapes),
                "max_bond": max_bond,
                "rtol": rtol,
                "ratio": ratio,
                "max_params": max_params,
                "targets": target or None,
                "adapter_rank": adapter_rank,
                "adapter_alpha": adapter_alpha,
                "adapter_targets": adapter_target or None,
                "share_bias": structured("share-bias", share_bias),
                "share_norm": structured("share-norm", share_norm),
                "gauge": gauge,
                "fit": fit,
            }
        )
        check_target(out, folder, force)
        check_picture(plot, force)
        model = mp.convert(load(folder), read_config(config), **options)
        _finish(model, folder, out, as_json, plot)


@app.command()
def merge(
    folder: Folder,
    out: Out,
    dtype: Annotated[
        str | None, typer.Option(help="float16, bfloat16, float32 or float64.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the plain model that a converted one amounts to; it loads without this package.

    Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said():
        import torch

        import mpobert_plugin as mp

        if dtype is not None and dtype not in DTYPES:
            raise ConfigError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
        check_target(out, folder, force)
        kind = None if dtype is None else getattr(torch, dtype)
        merged, report = mp.merge_with_report(load(folder), kind)
        copied = save(merged, folder, out)
        if as_json:
            show_json({"folder": str(out), "copied": copied, **report.to_dict()})
        else:
            typer.echo(str(report))
            typer.echo(_written(out, copied))


def _finish(model: Any, folder: Path, out: Path, as_json: bool, plot: Path | None) -> None:
    import mpobert_plugin as mp
    from mpobert_plugin import plotting
    from mpobert_plugin.runtime import banks_of

    report = mp.report(model)
    picture = None
    if plot is not None:
        picture = plotting.errors_by_layer(plotting.errors_of_plan(banks_of(model).plan))
    copied = save(model, folder, out)
    if plot is not None and picture is not None:
        plotting.save(picture, plot)
    if as_json:
        counts = counts_of(mp.account(model))
        fields = {"folder": str(out), "copied": copied, "account": counts}
        show_json({**fields, "report": report.to_dict()})
        return
    show_report(report)
    typer.echo(_written(out, copied))


def _written(out: Path, copied: list[str]) -> str:
    return f"written: {out}" + (f", with {', '.join(copied)}" if copied else "")
