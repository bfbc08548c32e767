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


def plot(files: Sequence[str], picture: str) -> None:
    """Draw scores against stored parameters, a panel for each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in read(files) if "refused" not in row]
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(6 * len(names), 5), squeeze=False)
    for name, panel in zip(names, panels[0], strict=True):
        own = [row for row in rows if row["model"] == name and row["setting"] != "-"]
        for method, used in dict.fromkeys((row["method"], row["calibrated"]) for row in own):
            points = sorted(
                (row["parameters"], row["score"])
                for row in own
                if (row["method"], row["calibrated"]) == (method, used)
            )
            label = f"{method}, calibrated" if used else method
            style = "o" if method.startswith("joint") else "o-"
            x, y = zip(*points, strict=True)
            panel.plot(x, y, style, ms=4, ls="--" if used and style == "o-" else None, label=label)
        for row in rows:
            if row["model"] == name and row["method"] == "original":
                panel.axhline(row["score"], color="grey", lw=0.8)
                panel.axvline(row["parameters"], color="grey", lw=0.8)
        panel.set_title(NAMES.get(name, name), fontsize=9)
        panel.set_xlabel("stored parameters")
        panel.set_ylabel("score")
    panels[0][-1].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(picture)
