"""Pictures of reports: parameters by kind, and the error of each matrix as a heat map."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.kinds import KINDS
from mpobert_plugin.needs import require

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpobert_plugin.accounting import ParameterReport
    from mpobert_plugin.plan import ConversionPlan

INK, BAR = "#22313f", "#0072b2"
# More columns leave no room for numbers in them.
MOST_NUMBERS = 14


def parameters_by_kind(report: ParameterReport) -> Figure:
    """Return a picture of how many parameters of each kind a model stores.

    Parameters
    ----------
    report : ParameterReport
        What `account` returns.

    Returns
    -------
    matplotlib.figure.Figure
        One bar for each kind, largest numbers in millions.

    Raises
    ------
    MissingPackageError
        When matplotlib is not installed.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> report = mp.account(mp.build("mpobert-12", head="none", device="meta"))
    >>> parameters_by_kind(report).axes[0].get_title(loc="left")
    'Stored parameters: 19.4 million, 0.22 of the plain model'
    """
    kinds = [kind for kind in KINDS if report.by_kind.get(kind)]
    figure, axes = _figure(7.0, 0.9 + 0.45 * len(kinds))
    numbers = [report.by_kind[kind] for kind in kinds]
    bars = axes.barh(kinds, numbers, color=BAR)
    labels = [f"{number:,}" for number in numbers]
    axes.bar_label(bars, labels, padding=4, color=INK, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(numbers, default=1))
    axes.set_xticks([])
    title = (
        f"Stored parameters: {report.unique / 1e6:.3g} million, {report.ratio:.2f} of the plain "
        "model"
    )
    _dress(axes, title)
    return figure


def errors_by_layer(errors: Mapping[str, Sequence[float | None]]) -> Figure:
    """Return a heat map of the relative error of each matrix, by role and layer.

    Parameters
    ----------
    errors : mapping of str to sequence of (float or None)
        For each role the relative Frobenius error of each layer; None where a layer has none,
        since its matrix is plain or was not decomposed.

    Returns
    -------
    matplotlib.figure.Figure
        One row for each role, one column for each layer.

    Raises
    ------
    ConfigError
        When there is no error to show, or roles have different numbers of layers.
    MissingPackageError
        When matplotlib is not installed.

    Examples
    --------
    >>> figure = errors_by_layer({"query": [0.1, 0.2], "key": [0.3, None]})
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['query', 'key']
    """
    lengths = {len(values) for values in errors.values()}
    shown = [value for values in errors.values() for value in values if value is not None]
    if len(lengths) != 1 or not shown:
        raise ConfigError(
            f"errors must give one number for each layer of each role, got {len(errors)} roles "
            f"with {sorted(lengths)} entries and {len(shown)} numbers in them."
        )
    layers = lengths.pop()
    figure, axes = _figure(min(16.0, 4.2 + 0.5 * layers), 1.6 + 0.42 * len(errors))
    grid = [[math.nan if value is None else value for value in row] for row in errors.values()]
    top = max(*shown, 1e-12)
    image = axes.imshow(grid, cmap="viridis", vmin=0.0, vmax=top, aspect="auto")
    axes.set_yticks(range(len(errors)), list(errors))
    step = max(1, layers // 12)
    axes.set_xticks(range(0, layers, step))
    axes.set_xlabel("layer")
    colours = figure.colorbar(image, ax=axes, shrink=0.9)
    colours.set_label("relative error", color=INK)
    if layers <= MOST_NUMBERS:
        _write_numbers(axes, grid, top)
    _dress(axes, f"Relative errors of matrices, at most {max(shown):.3g}")
    return figure


def errors_of_plan(plan: ConversionPlan) -> dict[str, list[float | None]]:
    """Return the relative errors that a conversion left, as `errors_by_layer` takes them.

    Parameters
    ----------
    plan : ConversionPlan
        The plan of a converted model.

    Returns
    -------
    dict of str to list of (float or None)
        One entry for each layer of each role.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> errors_of_plan(mp.ConversionPlan("bert", 2, (), (), ()))
    {}
    """
    errors: dict[str, list[float | None]] = {}
    for bank in plan.banks:
        row = errors.setdefault(bank.role, [None] * plan.n_layers)
        for layer, error in zip(bank.layer_numbers, bank.errors, strict=False):
            row[layer] = error
    return errors


def save(figure: Figure, path: Path) -> None:
    """Write a picture as a whole or not at all; the ending of the name says in which format.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The picture.
    path : pathlib.Path
        The file to write.

    Raises
    ------
    OSError
        When the operating system refuses; nothing is left behind then.
    """
    aside = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        figure.savefig(aside, metadata={"Date": None} if path.suffix == ".svg" else None)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    require("matplotlib", extra="plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure without pyplot: no window, no global state.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _write_numbers(axes: Axes, grid: Sequence[Sequence[float]], top: float) -> None:
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            if not math.isnan(value):
                colour = "white" if value < top / 2 else INK
                text = f"{value:.2g}"
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold", pad=10)
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.label.set_color(INK)
    axes.spines[:].set_visible(False)
