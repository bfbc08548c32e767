"""Draws the demo's picture: bond spectra of the matrices and the loss of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpobert_plugin.demo.errors import DemoError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, PALE, GRID = "#22313f", "#9fb3c8", "#e3e8ee"
# Okabe and Ito's colours: told apart by people who see colours differently.
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")


@dataclass(frozen=True)
class Curve:
    """The training as drawn: losses of the steps, held-out accuracy before and after."""

    losses: Sequence[float]
    accuracy_before: float
    accuracy_after: float


def draw(path: Path, spectra: Mapping[str, Sequence[float]], curve: Curve) -> None:
    """Write the picture as PNG.

    Parameters
    ----------
    path : pathlib.Path
        File to write.
    spectra : mapping of str to sequence of float
        For each matrix the singular values at its largest bond, descending.
    curve : Curve
        Losses (nats) and accuracies (0 to 1).

    Raises
    ------
    DemoError
        When matplotlib is not installed; the message is the command that installs it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise DemoError(
            "The demo's picture needs matplotlib, which is not installed. Run: "
            'pip install "tensornet-mpo[plot]"'
        ) from error
    # A figure without pyplot: no window, no global state.
    layout = ConstrainedLayoutEngine(wspace=0.08)
    figure = Figure(figsize=(11, 4.4), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _spectra(left, spectra)
    _loss(right, curve)
    figure.savefig(path)


def _spectra(axes: Axes, spectra: Mapping[str, Sequence[float]]) -> None:
    for colour, (name, values) in zip(COLOURS, spectra.items(), strict=False):
        scaled = [value / values[0] for value in values]
        axes.plot(range(1, len(scaled) + 1), scaled, color=colour, lw=1.8, label=name)
    _dress(axes, "Spectra at the largest bond of each matrix", "number of the singular value")
    axes.set_ylabel("singular value / largest")
    axes.set_ylim(0, 1.05)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")


def _loss(axes: Axes, curve: Curve) -> None:
    steps = range(1, len(curve.losses) + 1)
    axes.plot(steps, curve.losses, color=PALE, lw=1.0, label="each step")
    axes.plot(steps, running_mean(curve.losses), color=COLOURS[0], lw=2.2, label="running mean")
    _dress(axes, "Training the MPOBERT of 24 layers", "step")
    axes.set_ylabel("masked-token loss (nats)")
    axes.set_ylim(0, 1.4 * max(curve.losses))  # room for the legend
    legend = axes.legend(
        title=(
            "held-out accuracy "
            f"{curve.accuracy_before:.1%} before, {curve.accuracy_after:.1%} after"
        ),
        ncols=2,
        facecolor="white",
        edgecolor="none",
        framealpha=1.0,
        fontsize=9,
        title_fontsize=10,
        labelcolor=INK,
        loc="upper right",
    )
    legend.get_title().set_color(INK)


def running_mean(values: Sequence[float], window: int = 8) -> list[float]:
    """Return the mean of each value and up to ``window - 1`` before it.

    Examples
    --------
    >>> running_mean([4.0, 2.0, 0.0], window=2)
    [4.0, 3.0, 1.0]
    """
    parts = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]


def _dress(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold", pad=10)
    axes.set_xlabel(below)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.margins(x=0.02)
