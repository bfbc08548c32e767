"""A picture of updates against depth, one panel for each optimizer and number of cores."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.needs import require
from mpobert_plugin.update import SPLIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpobert_plugin.stability import Sweep

INK, GRID = "#22313f", "#e3e8ee"
# Okabe and Ito's colours: told apart by people who see colours differently.
COLOURS = {
    "total": INK,
    "central": "#0072b2",
    "auxiliary": "#d55e00",
    "adapter": "#cc79a7",
    "bias": "#009e73",
    "norm": "#e69f00",
}


def updates_by_depth(sweep: Sweep) -> Figure:
    """Return a picture of a sweep: updates of the output against depth, both logarithmic.

    Parameters
    ----------
    sweep : Sweep
        What `mpobert_plugin.stability.sweep` returns.

    Returns
    -------
    matplotlib.figure.Figure
        A column for each optimizer, a row for each number of cores. Lines are means over the
        seeds, bands reach from the smallest to the largest; the numbers are fitted exponents.

    Raises
    ------
    ConfigError
        When the sweep has no measurement.
    MissingPackageError
        When matplotlib is not installed.

    Examples
    --------
    >>> from mpobert_plugin.stability import sweep
    >>> found = sweep(depths=(2, 4), optimizers=["lamb"], sites=[3], seeds=[0], hidden_size=8)
    >>> updates_by_depth(found).axes[0].get_xscale()
    'log'
    """
    if not sweep.measured:
        raise ConfigError("sweep must have measurements, got none.")
    require("matplotlib", extra="plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    optimizers = list(dict.fromkeys(optimizer for optimizer, _ in sweep.cases))
    sites = list(dict.fromkeys(count for _, count in sweep.cases))
    size = (1.2 + 4.6 * len(optimizers), 0.8 + 3.0 * len(sites))
    # A figure without pyplot: no window, no global state.
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(sites), len(optimizers), squeeze=False, sharex=True)
    for row, count in enumerate(sites):
        for column, optimizer in enumerate(optimizers):
            _panel(panels[row][column], sweep, optimizer, count)
            if row == len(sites) - 1:
                panels[row][column].set_xlabel("layers", color=INK)
        panels[row][0].set_ylabel("relative update of the output", color=INK)
    return figure


def _panel(axes: Axes, sweep: Sweep, optimizer: str, sites: int) -> None:
    fitted = {
        exponent.kind: exponent
        for exponent in sweep.exponents()
        if (exponent.optimizer, exponent.sites) == (optimizer, sites)
    }
    depths: list[int] = []
    for kind in ("total", *SPLIT):
        if kind not in fitted:
            continue
        curve = sweep.curve(optimizer, sites, kind)
        depths = list(curve)
        means = [statistics.fmean(sizes) for sizes in curve.values()]
        label = f"{kind} {fitted[kind].value:+.2f}"
        width = 2.4 if kind == "total" else 1.4
        axes.plot(depths, means, color=COLOURS[kind], lw=width, marker="o", ms=3.5, label=label)
        low, high = (list(map(pick, curve.values())) for pick in (min, max))
        axes.fill_between(depths, low, high, color=COLOURS[kind], alpha=0.15, lw=0)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xticks([], minor=True)
    axes.grid(color=GRID)
    axes.tick_params(colors=INK, length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{optimizer}, {sites} cores", loc="left", color=INK, fontsize=10)
    # Beside the panel: inside it would cover curves.
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=7,
        frameon=False,
        title="exponent",
        title_fontsize=7,
    )
