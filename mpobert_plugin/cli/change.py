"""Commands that write a new folder: ``mpobert convert`` and ``mpobert merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mpobert_plugin.cli.app import app, said
from mpobert_plugin.cli.calibration import (
    BATCH,
    LENGTH,
    LINES,
    batches_of,
    counts_of_batches,
    read_excerpt,
)
from mpobert_plugin.cli.folders import check_target, load, save
from mpobert_plugin.cli.in_options import CONVERSION
from mpobert_plugin.cli.look import AsJson, Folder, Force, Plot
from mpobert_plugin.cli.options import (
    given_options,
    integer,
    number,
    per_role,
    read_config,
    structured,
)
from mpobert_plugin.cli.show import check_picture, counts_of, show_json, show_report
from mpobert_plugin.errors import ConfigError

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")]
DTYPES = ("float16", "bfloat16", "float32", "float64")
# What `MPOConfig` takes where nothing is given; itself it would have to be imported for the help.
SITES, RANK, GAUGE = 5, 0, "symmetric"


@app.command()
def convert(
    folder: Folder,
    out: Out,
    config: Annotated[
        Path | None, typer.Option(help="JSON file of options; those given here override it.")
    ] = None,
    sharing: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]policy>",
            help="Which layers share: none, all, groups:k, albert, or blocks of layers in JSON.",
            show_default="what is one module",
        ),
    ] = [],  # noqa: B006
    n: Annotated[
        int | None,
        typer.Option(help="Number of sites of each matrix.", show_default=str(SITES)),
    ] = None,
    shapes: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]json>",
            help="Factors of rows and columns, for all or a role, or of a size: 64=[4,4,4].",
            show_default="chosen by size",
        ),
    ] = [],  # noqa: B006
    max_bond: Annotated[
        list[str],
        typer.Option(metavar="<[role=]int>", help="Largest bond.", show_default="no limit"),
    ] = [],  # noqa: B006
    rtol: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]float>",
            help="Largest relative error of a matrix; with --calibration, of its outputs.",
            show_default="no limit",
        ),
    ] = [],  # noqa: B006
    ratio: Annotated[
        float | None,
        typer.Option(
            help="Stored / plain parameters of the whole model, at most.", show_default="no limit"
        ),
    ] = None,
    max_params: Annotated[
        int | None,
        typer.Option(
            help="Stored parameters of the whole model, at most.", show_default="no limit"
        ),
    ] = None,
    target: Annotated[
        list[str],
        typer.Option(
            help="Role of a matrix to convert; repeatable.", show_default="all of the layers"
        ),
    ] = [],  # noqa: B006
    adapter_rank: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]int>",
            help="Rank of the adapters.",
            show_default=str(RANK),
        ),
    ] = [],  # noqa: B006
    adapter_alpha: Annotated[
        float | None,
        typer.Option(help="Adapters are scaled by alpha / rank.", show_default="the rank"),
    ] = None,
    adapter_target: Annotated[
        list[str],
        typer.Option(
            help="Role that gets an adapter; repeatable.", show_default="those of the family"
        ),
    ] = [],  # noqa: B006
    adapter_fit: Annotated[
        str | None,
        typer.Option(
            help="How adapters start: residual, from what the cores leave of a matrix; or zero.",
            show_default="residual with --fit joint, else zero",
        ),
    ] = None,
    share_bias: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]policy>", help="As --sharing, for biases.", show_default="none"
        ),
    ] = [],  # noqa: B006
    share_norm: Annotated[
        list[str],
        typer.Option(
            metavar="<[role=]policy>", help="As --sharing, for norms.", show_default="none"
        ),
    ] = [],  # noqa: B006
    gauge: Annotated[
        str | None,
        typer.Option(help="symmetric, central, left, right, identity.", show_default=GAUGE),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="How layers that differ come to share: mean, first, joint.",
            show_default="they are refused",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Text whose tokens say which errors matter: a line for each sample, also as .xz "
            "or .gz. The folder must have the tokenizer.",
            rich_help_panel="Calibration",
        ),
    ] = None,
    calibration_lines: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Lines, from the first one on. Have several times as many tokens as the largest "
            "matrix has columns.",
            show_default=str(LINES),
            rich_help_panel="Calibration",
        ),
    ] = None,
    calibration_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Lines that run at a time.",
            show_default=str(BATCH),
            rich_help_panel="Calibration",
        ),
    ] = None,
    calibration_length: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Tokens of a line at most; the rest of it is left out.",
            show_default=f"{LENGTH}, or what the model takes",
            rich_help_panel="Calibration",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Write a converted model: shared and cut tensors in the place of its matrices.

    Options with role= take one value for all matrices, or query=8, repeated for further roles. In
    bonds, errors and ranks '*=4' speaks for all others. One object of JSON can say the same.

    The result loads with AutoModel after "import mpobert_plugin". The files of the tokenizer are
    copied. Sharing by a function, calibration by batches of your own, and from_albert, which makes
    deeper models, are in Python alone.

    Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said():
        # Its names are those of Python, and so are those of messages about it.
        settings = read_config(config)
    with said(names=CONVERSION):
        import mpobert_plugin as mp

        options = given_options(
            {
                "sharing": per_role("sharing", sharing, structured),
                "n": n,
                "shapes": per_role("shapes", shapes, structured),
                "max_bond": per_role("max-bond", max_bond, integer),
                "rtol": per_role("rtol", rtol, number),
                "ratio": ratio,
                "max_params": max_params,
                "targets": target or None,
                "adapter_rank": per_role("adapter-rank", adapter_rank, integer),
                "adapter_alpha": adapter_alpha,
                "adapter_targets": adapter_target or None,
                "adapter_fit": adapter_fit,
                "share_bias": per_role("share-bias", share_bias, structured),
                "share_norm": per_role("share-norm", share_norm, structured),
                "gauge": gauge,
                "fit": fit,
            }
        )
        check_target(out, folder, force)
        check_picture(plot, force)
        text = read_excerpt(calibration, calibration_lines, calibration_batch, calibration_length)
        model = load(folder)
        batches = None if text is None else batches_of(text, folder, model)
        model = mp.convert(model, settings, **options, calibration=batches)
        seen = None if text is None or batches is None else counts_of_batches(text, batches)
        _finish(model, folder, out, as_json, plot, seen)


@app.command()
def merge(
    folder: Folder,
    out: Out,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float16, bfloat16, float32 or float64.", show_default="that of the model"
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the plain model that a converted one amounts to; it loads without this package.

    Exit code: 0 when done, 2 when it cannot run, 130 when Ctrl-C ends it.
    """
    with said(names=CONVERSION):
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


def _finish(
    model: Any,
    folder: Path,
    out: Path,
    as_json: bool,
    plot: Path | None,
    seen: dict[str, Any] | None,
) -> None:
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
        show_json({**fields, "calibration": seen, "report": report.to_dict()})
        return
    show_report(report)
    if seen is not None:
        counted = f"{seen['lines']:,} lines, {seen['tokens']:,} tokens"
        typer.echo(f"calibration: {counted} of {seen['file']}")
    typer.echo(_written(out, copied))


def _written(out: Path, copied: list[str]) -> str:
    return f"written: {out}" + (f", with {', '.join(copied)}" if copied else "")
