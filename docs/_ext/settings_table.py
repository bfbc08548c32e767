"""A table of the pre-training settings, made from the class that holds them."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive

from mpobert_plugin.train import settings_checks as checks
from mpobert_plugin.train.data import masking, samples
from mpobert_plugin.train.precision import FORMATS
from mpobert_plugin.train.schedule import KINDS
from mpobert_plugin.train.settings import PretrainConfig

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# What the values that are made of the settings check themselves.
WORDS = {
    **checks.WORDS,
    "task": samples.TASKS,
    "masking": masking.KINDS,
    "precision": FORMATS,
    "schedule": KINDS,
}
LEAST = {**checks.LEAST, "length": 5}
OTHER = {"mask_rate": "above 0, below 1", "shorter": "0 to 1"}
HEADS = ("Setting", "Default", "May be", "Changes", "What it does")
WIDTHS = (18, 12, 22, 8, 40)


@dataclass(frozen=True)
class Row:
    """One setting, in words."""

    name: str
    kind: str
    default: str
    words: tuple[str, ...]
    range: str
    free: bool
    text: str


def rows() -> list[Row]:
    """Return every setting, in the order of the class."""
    return [_row(entry) for entry in fields(PretrainConfig)]


def _row(entry: Field[Any]) -> Row:
    words = WORDS.get(entry.name, ("true", "false") if entry.type == "bool" else ())
    default = str(entry.default).lower() if entry.type == "bool" else f"{entry.default}"
    return Row(
        entry.name,
        str(entry.type),
        default,
        tuple(words),
        "" if words else _range(entry),
        entry.metadata["free"],
        entry.metadata["text"],
    )


def _range(entry: Field[Any]) -> str:
    if entry.name in OTHER:
        return OTHER[entry.name]
    if entry.type == "int":
        # The usual limit is there to catch slips alone.
        most = checks.MOST.get(entry.name)
        least = f"an integer from {LEAST.get(entry.name, 1)}"
        return least if most is None else f"{least} to {_short(most)}"
    if entry.name not in checks.LIMITS:
        return ""
    low, high = checks.LIMITS[entry.name]
    return f"{_short(low)} to {'below ' if entry.name in checks.OPEN_ABOVE else ''}{_short(high)}"


def _short(limit: float) -> str:
    """Return a limit as people write it, large powers of two as such."""
    for power in (-14, 24, 63):
        if limit == 2.0**power:
            return f"2**{power}"
        if limit == 2**power - 1:
            return f"2**{power} - 1"
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


class SettingsTable(Directive):
    """``{pretraining-settings}``: the table, with an anchor for each setting."""

    def run(self) -> list[nodes.Node]:
        return [made()]


def made() -> nodes.table:
    """Return the table."""
    table, group = nodes.table(), nodes.tgroup(cols=len(HEADS))
    table += group
    group += [nodes.colspec(colwidth=width) for width in WIDTHS]
    head, body = nodes.thead(), nodes.tbody()
    head += _line([nodes.paragraph(text=title) for title in HEADS])
    for row in rows():
        line = _line(_cells(row))
        line["ids"].append(f"setting-{row.name}")
        body += line
    group += [head, body]
    return table


def _line(cells: list[nodes.paragraph]) -> nodes.row:
    line = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += cell
        line += entry
    return line


def _cells(row: Row) -> list[nodes.paragraph]:
    allowed = nodes.paragraph(text=row.range)
    for number, word in enumerate(row.words):
        if number:
            allowed += nodes.Text(", ")
        allowed += nodes.literal(text=word)
    return [
        nodes.paragraph("", "", nodes.literal(text=row.name)),
        nodes.paragraph("", "", nodes.literal(text=row.default)),
        allowed,
        nodes.paragraph(text="yes" if row.free else "no"),
        nodes.paragraph(text=row.text),
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("pretraining-settings", SettingsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
