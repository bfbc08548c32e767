"""The demo's tables: predictions, parameters and certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mpobert_plugin.demo.evaluate import Score
from mpobert_plugin.demo.smiles import MASK, SmilesTokenizer
from mpobert_plugin.kinds import KINDS

if TYPE_CHECKING:
    from mpobert_plugin.accounting import ParameterReport
    from mpobert_plugin.demo.inspection import MatrixReport

GAP = "_"  # stands for a masked token; no SMILES has it


def plain_table(*, show_header: bool = True) -> Table:
    """Return an empty table in the demo's style, as wide as its content."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=show_header)


def masked_smiles(tokenizer: SmilesTokenizer, ids: Sequence[int]) -> Text:
    """Return a reaction in which every masked token is a highlighted gap."""
    text = Text()
    for number, token in zip(
        (i for i in ids if tokenizer.decode([i])), tokenizer.decode(ids), strict=True
    ):
        if number == MASK:
            text.append(GAP, style="bold yellow")
        else:
            text.append(token)
    return text


def fillings(
    tokenizer: SmilesTokenizer, asked: Sequence[int], answers: Mapping[str, Sequence[int]]
) -> Table:
    """Return the masked tokens themselves and each model's answers, wrong ones red."""
    table = plain_table(show_header=False)
    table.add_row(Text("truth", style="dim"), Text(" ".join(tokenizer.decode(asked))))
    for name, answer in answers.items():
        text = Text()
        for right, given in zip(asked, answer, strict=True):
            token = " ".join(tokenizer.decode([given])) or "?"
            text.append(f"{token} ", style="green" if right == given else "red")
        table.add_row(Text(name, style="dim"), text)
    return table


def parameter_table(reports: Mapping[str, ParameterReport]) -> Table:
    """Return the stored parameters of several models by kind, with the sizes they stand for."""
    table = plain_table()
    table.add_column("parameters")
    for name in reports:
        table.add_column(name, justify="right")
    for kind in KINDS:
        if any(report.by_kind.get(kind) for report in reports.values()):
            table.add_row(f"  {kind}", *(_number(r.by_kind.get(kind, 0)) for r in reports.values()))
    rows: dict[str, Callable[[ParameterReport], str]] = {
        "stored (unique)": lambda report: _number(report.unique),
        "  with more than one user": lambda report: _number(report.shared),
        "every use counted (total)": lambda report: _number(report.total),
        "dense twin": lambda report: _number(report.dense),
        "stored / dense twin": lambda report: f"{report.ratio:.3f}",
    }
    for name, value in rows.items():
        style = "bold" if name.startswith("stored") else ""
        table.add_row(name, *(value(report) for report in reports.values()), style=style)
    return table


def _number(value: int) -> str:
    return f"{value:,}" if value else "-"


def accuracy_table(scores: Mapping[str, Mapping[str, Score]], sizes: Mapping[str, int]) -> Table:
    """Return masked-token accuracies: a row for each part of the split, a column for each model."""
    table = plain_table()
    table.add_column("held out")
    table.add_column("reactions", justify="right")
    for name in scores:
        table.add_column(name, justify="right")
    for part, size in sizes.items():
        row = (f"{each[part].accuracy:.1%}" for each in scores.values())
        table.add_row(part.replace("-", " "), f"{size}", *row)
    total = (f"{total_score(each).accuracy:.1%}" for each in scores.values())
    table.add_row("all", f"{sum(sizes.values())}", *total, style="bold")
    return table


def total_score(scores: Mapping[str, Score]) -> Score:
    """Return the score over all parts."""
    return reduce(add, scores.values(), Score(0, 0))


def certificate_table(reports: Sequence[MatrixReport]) -> Table:
    """Return the relative error that is certified for each matrix beside the measured one."""
    table = plain_table()
    table.add_column("relative error")
    for name in ("rows x columns", "bonds", "certified", "measured"):
        table.add_column(name, justify="right")
    for report in reports:
        table.add_row(
            report.name,
            f"{report.rows} x {report.columns}",
            " ".join(map(str, report.bonds)),
            f"{report.certified:.1e}",
            f"{report.measured:.1e}",
        )
    return table
