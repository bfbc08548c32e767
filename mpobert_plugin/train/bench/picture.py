"""A picture of a record: bars of every contender, one panel for each section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.needs import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpobert_plugin.train.bench.record import Record

INK, OURS, OTHERS = "#22313f", "#0072b2", "#e69f00"
# What a bar is as long as: the first of these that a contender has.
LENGTHS = {
    "tokens_per_second": "tokens per second",
    "ms": "milliseconds",
    "memory_gib": "GiB at the peak",
    "stays_gib": "GiB that stay between steps",
}
_OWN = ("mpo", "ours")


def picture(record: Record) -> Figure:
    """Return a picture of a record.

    Parameters
    ----------
    record : Record
        What `run_bench` returns.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each section: bars of tokens per second, milliseconds or memory, with the speed
        beside the first contender where there is one.

    Raises
    ------
    ConfigError
        When nothing was measured.
    MissingPackageError
        When matplotlib is not installed.

    Examples
    --------
    >>> from mpobert_plugin.train.bench.record import KEYS, Record
    >>> row = {**dict.fromkeys(KEYS, "x"), "values": {"mpo": {"ms": 1.0, "speed": 2.0}}}
    >>> picture(Record([row])).axes[0].get_xlabel()
    'milliseconds'
    """
    panels: dict[str, list[tuple[str, float, str, str]]] = {}
    units: dict[str, str] = {}
    for row in record.rows:
        for name, values in row.get("values", {}).items():
            bar = _bar(row, name, values)
            if bar is not None:
                panels.setdefault(row["section"], []).append(bar[1:])
                units.setdefault(row["section"], bar[0])
    if not panels:
        raise ConfigError("record must have measurements, got none. Look at the errors in it.")
    require("matplotlib", extra="plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [0.9 + 0.24 * len(bars) for bars in panels.values()]
    # A figure without pyplot: no window, no global state.
    figure = Figure(figsize=(11.0, sum(heights)), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (section, bars), (axes,) in zip(panels.items(), grid, strict=True):
        _panel(axes, section, units[section], bars)
    return figure


def _bar(
    row: Mapping[str, Any], name: str, values: Mapping[str, Any]
) -> tuple[str, str, float, str, str] | None:
    """Return unit, label, length, text and colour of a bar; None without a number."""
    found = [(LENGTHS[key], values[key]) for key in LENGTHS if _is_number(values.get(key))]
    if not found:
        return _stacked(row, name, values)
    unit, length = found[0]
    text = f"{length:,.0f}" if length >= 100 else f"{length:.3g}"
    speed = values.get("speed")
    if _is_number(speed) and speed != 1.0:
        text += f"   ({speed:.2f} times as fast)"
    return unit, _label(row, name), float(length), text, _colour(name)


def _stacked(
    row: Mapping[str, Any], name: str, values: Mapping[str, Any]
) -> tuple[str, str, float, str, str] | None:
    """Return a bar for parts of a step: their sum, with the largest of them as text."""
    shares, parts = values.get("share_of_a_whole_step"), values.get("ms_of_a_whole_step")
    if not isinstance(shares, dict) or not isinstance(parts, dict):
        return None
    largest = sorted(shares.items(), key=lambda part: -part[1])[:3]
    text = ", ".join(f"{part} {100 * share:.1f} %" for part, share in largest)
    total = float(sum(parts.values()))
    return "milliseconds of a whole step", _label(row, name), total, text, _colour(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(row: Mapping[str, Any], name: str) -> str:
    several = f", {row['world_size']} processes" if row["world_size"] != 1 else ""
    told = "" if str(row["case"]).endswith(name) else f": {name}"
    return f"{row['model']}, {row['case']}{several}{told}"


def _colour(name: str) -> str:
    return OURS if name.startswith(_OWN) else OTHERS


def _panel(axes: Axes, section: str, unit: str, bars: list[tuple[str, float, str, str]]) -> None:
    places = range(len(bars))
    drawn = axes.barh(places, [bar[1] for bar in bars], color=[bar[3] for bar in bars])
    axes.bar_label(drawn, [bar[2] for bar in bars], padding=4, color=INK, fontsize=7)
    axes.set_yticks(places, [bar[0] for bar in bars], fontsize=7)
    axes.invert_yaxis()
    # Room for what is written behind the bars.
    axes.set_xlim(0, 1.7 * max(bar[1] for bar in bars) or 1.0)
    axes.set_xticks([])
    axes.set_xlabel(unit, color=INK, fontsize=8)
    axes.tick_params(colors=INK, length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    axes.set_title(section, loc="left", color=INK, fontsize=10, fontweight="bold")
