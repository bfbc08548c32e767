"""What the comparison found, as Markdown tables and pictures of the curves.

$ python -m benchmarks.comparison.show OUT --recipe NAME --markdown part.md --picture curves.png
$ python -m benchmarks.comparison.show OUT --log RUN/log.jsonl --picture deep.png
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison.models import MODELS
from benchmarks.comparison.tasks import RESULT, TRIAL_SEED, known
from benchmarks.comparison.worker import records

MARKS = ("<!-- tables of the comparison -->", "<!-- end of the tables -->")
SCORES = ("masked_loss", "masked_accuracy", "order_accuracy")


def results(out: Path, stage: str, recipe: str | None = None) -> list[dict[str, Any]]:
    """Return what finished runs of a stage found, in the order of their names."""
    found = [json.loads(file.read_text()) for file in sorted(out.glob(f"*/{RESULT}"))]
    return [
        row for row in found if row["stage"] == stage and recipe in (None, row["recipe"])
    ]  # fmt: skip


def of_model(rows: Iterable[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """Return the runs of a model that kept their loss."""
    return [row for row in rows if row["model"] == model and "held_out" in row]


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Return mean and sample deviation; the mean alone of a single value."""
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def lines(head: Sequence[str], body: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table whose first columns are words and the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def main_table(out: Path, recipe: str) -> str:
    """Return scores on held-out text by model, over the seeds that are done."""
    rows, speeds = results(out, "main", recipe), results(out, "speed", recipe)
    head = (
        "model", "parameters", "rate", "runs", "held-out loss of masked tokens",
        "their accuracy", "order accuracy", "tokens/s, alone",
    )  # fmt: skip
    body = []
    for model, kind in MODELS.items():
        own = of_model(rows, model)
        if own:
            alone = [row["tokens_per_second"] for row in of_model(speeds, model)]
            scores = [spread([row["held_out"][name] for row in own]) for name in SCORES]
            told = f"{alone[0]:,.0f}" if alone else "-"
            first = (kind.text, f"{own[0]['parameters']:,}", f"{own[0]['lr']:.2g}", str(len(own)))
            body.append((*first, *scores, told))
    return lines(head, body)


def paired_table(out: Path, recipe: str, base: str = "mpo5") -> str:
    """Return differences to a model seed by seed, on the same data and held-out masks."""
    rows = results(out, "main", recipe)
    known = {row["seed"]: row["held_out"] for row in of_model(rows, base)}
    body = []
    for model, kind in MODELS.items():
        own = [row for row in of_model(rows, model) if row["seed"] in known]
        if own and model != base:
            gaps = [
                spread([row["held_out"][name] - known[row["seed"]][name] for row in own])
                for name in SCORES
            ]
            body.append((kind.text, str(len(own)), *gaps))
    head = (f"minus {MODELS[base].text}", "runs", "loss", "accuracy", "order accuracy")
    return lines(head, body)


def trials_table(out: Path, stage: str, recipe: str | None = None) -> str:
    """Return the held-out loss of every trial of a stage: recipes, or learning rates."""
    body = []
    for row in results(out, stage, recipe):
        score = row.get("held_out")
        told = f"{score['masked_loss']:.4f}" if score else "lost"
        body.append((row["recipe"], row["model"], f"{row['lr']:.2g}", str(row["steps"]), told))
    return lines(("recipe", "model", "rate", "steps", "held-out loss of masked tokens"), body, 2)


def markdown(out: Path, recipe: str) -> str:
    """Return all tables of a recipe, each under a heading."""
    rows = results(out, "main", recipe)
    first = rows[0] if rows else {"steps": 0, "tokens": 0, "device": "-", "side_by_side": 0}
    said = (
        f"{first['steps']:,} steps, {first['tokens'] / 1e6:,.1f} million tokens a run, "
        f"{first['side_by_side']} runs at a time on one {first['device']}."
    )
    parts = ["### Held-out scores", said, main_table(out, recipe), "Differences, seed by seed:"]
    parts += [paired_table(out, recipe)]
    parts += [
        f"### Trials of learning rates (seed {TRIAL_SEED})",
        trials_table(out, "tune", recipe),
    ]
    parts += [f"### Trials of recipes (seed {TRIAL_SEED})", trials_table(out, "probe")]
    return "\n\n".join(parts) + "\n"


def put(text: str, file: Path) -> None:
    """Write the tables between their marks in a file, whose other text stays; or behind it."""
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    start, found, rest = before.partition(MARKS[0])
    behind = rest.partition(MARKS[1])[2] if found else "\n"
    whole = f"{start.rstrip()}\n\n" if start.strip() else ""
    file.write_text(f"{whole}{MARKS[0]}\n\n{text}\n{MARKS[1]}{behind}", encoding="utf-8")


def curves(out: Path, recipe: str, picture: Path, stage: str = "main") -> None:
    """Draw the held-out loss of masked tokens over the steps: mean and range over the seeds."""
    plt, figure, axes = _axes()
    rows = results(out, stage, recipe)
    for model, kind in MODELS.items():
        runs = [_curve(row) for row in of_model(rows, model)]
        runs = [run for run in runs if run]
        if not runs:
            continue
        steps = sorted(set.intersection(*(set(run) for run in runs)))
        columns = [[run[step] for run in runs] for step in steps]
        style = "-" if kind.matched else "--"
        (line,) = axes.plot(steps, [statistics.fmean(c) for c in columns], style, label=kind.text)
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, lw=0)
    axes.set_ylabel("held-out loss of masked tokens")
    axes.legend(fontsize=7)
    figure.savefig(picture)
    plt.close(figure)


def _curve(row: dict[str, Any]) -> dict[int, float]:
    return {int(step): loss for step, loss in row.get("curve", {}).items()}


def log_curve(log: Path, picture: Path) -> None:
    """Draw the training loss of one run, in its parts."""
    plt, figure, axes = _axes()
    found = records(log.parent, "train")
    for name in ("masked_loss", "order_loss"):
        steps = [record["step"] for record in found]
        axes.plot(steps, [record[name] for record in found], label=name.replace("_", " "))
    axes.set_ylabel("training loss")
    axes.legend()
    figure.savefig(picture)
    plt.close(figure)


def _axes() -> tuple[Any, Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    axes.set_xlabel("optimizer steps")
    return plt, figure, axes


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", default="best", help="tables and curves of this one")
    parser.add_argument("--stage", default="main", help="stage of the curves")
    parser.add_argument(
        "--markdown", type=Path, help="file for the tables, between marks; else they are printed"
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--log", type=Path, help="draw this log of one run instead")
    given = parser.parse_args(words)
    if given.log:
        log_curve(given.log, given.picture)
        return
    recipe = known(given.recipe, given.out)
    if given.picture:
        curves(given.out, recipe, given.picture, given.stage)
    text = markdown(given.out, recipe)
    if given.markdown:
        put(text, given.markdown)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
