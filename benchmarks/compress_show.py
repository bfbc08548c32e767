"""Tables and curves of what `compress.py` has measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {
    "rxnfp": "rxnfp (BERT, 12 layers): masked-token accuracy",
    "rxnmapper": "rxnmapper (ALBERT, 12 layers, one set of weights): masked-token accuracy",
    "minilm": "MiniLM (BERT, 6 layers): Spearman correlation on STS-B dev",
}


def read(files: Sequence[str]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for file in files:
        for row in json.loads(Path(file).read_text()):
            rows[row["model"], row["key"]] = row
    return list(rows.values())


def table(files: Sequence[str]) -> str:
    """Return a Markdown table for each model: stored parameters and scores."""
    rows = read(files)
    parts = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        whole = next((row for row in own if row["method"] == "original"), None)
        lines = [
            f"### {NAMES.get(name, name)}",
            "",
            "| method | setting | calibrated | parameters | of the original | score |",
            "|---|---|---|---:|---:|---:|",
        ]
        for row in own:
            used = "yes" if row["calibrated"] else "no"
            start = f"| {row['method']} | {row['setting']} | {used} |"
            if "refused" in row:
                lines.append(f"{start} refused | - | - |")
                continue
            share = row["parameters"] / whole["parameters"] if whole else float("nan")
            lines.append(f"{start} {row['parameters']:,} | {share:.3f} | {row['score']:.4f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# Methods that are drawn, and their colours; calibrated ones are dashed.
COLOURS = {
    "SVD per matrix": "tab:blue",
    "SVD by budget": "tab:cyan",
    "MPO by bond": "tab:red",
    "MPO by budget": "tab:orange",
    "one W + LoRA": "tab:green",
    "joint sharing": "tab:grey",
    "joint sharing + adapters": "tab:purple",
}


def plot(files: Sequence[str], picture: str) -> None:
    """Draw scores against stored parameters, a panel for each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in read(files) if "refused" not in row]
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(5 * len(names), 4.6), squeeze=False)
    shown: dict[str, Any] = {}
    for name, panel in zip(names, panels[0], strict=True):
        own = [row for row in rows if row["model"] == name]
        for method, colour in COLOURS.items():
            for used in (False, True):
                points = sorted(
                    (row["parameters"] / 1e6, row["score"])
                    for row in own
                    if row["method"] == method and row["calibrated"] == used
                )
                if not points:
                    continue
                label = f"{method}, calibrated" if used else method
                # Groups and ranks both grow: their points are on no line.
                dots, line = ("^" if used else "v", "none"), ("o", "--" if used else "-")
                marker, style = dots if method.startswith("joint") else line
                x, y = zip(*points, strict=True)
                (shown[label],) = panel.plot(
                    x, y, color=colour, marker=marker, ls=style, ms=4, label=label
                )
        for row in own:
            if row["method"] == "original":
                panel.axhline(row["score"], color="black", lw=0.6, ls=":")
                panel.axvline(row["parameters"] / 1e6, color="black", lw=0.6, ls=":")
        title, _, score = NAMES.get(name, name).partition(": ")
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("stored parameters, millions")
        panel.set_ylabel(score or "score")
    figure.legend(shown.values(), shown.keys(), fontsize=8, ncols=5, loc="lower center")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(picture, dpi=120)
