"""Runs the demo from the first step to the last and says whether all that it showed holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from mpobert_plugin.demo.conversion import convert, show_same_predictions, show_structure
from mpobert_plugin.demo.deepening import deepen, held_out_scores, save_and_reload, train_briefly
from mpobert_plugin.demo.evaluate import Score
from mpobert_plugin.demo.inspection import MatrixReport
from mpobert_plugin.demo.output import MARKER, OutputFolder
from mpobert_plugin.demo.picture import Curve, draw
from mpobert_plugin.demo.screen import Screen
from mpobert_plugin.demo.settings import Material, Settings, load_material
from mpobert_plugin.demo.source import PACKAGE
from mpobert_plugin.demo.table import accuracy_table, total_score
from mpobert_plugin.demo.threads import half_the_cores
from mpobert_plugin.demo.train import History

PICTURE = "spectra-and-loss.png"
Scores = Mapping[str, Mapping[str, Score]]  # model -> part of the split -> score


def run(settings: Settings, console: Console) -> list[str]:
    """Run the demo and return the claims that did not hold.

    Parameters
    ----------
    settings : Settings
        What to do and where to write.
    console : rich.console.Console
        Where to print.

    Returns
    -------
    list of str
        Empty when everything that was shown holds.

    Raises
    ------
    DemoError
        When a package is missing, or the output folder cannot be written; nothing is left there.
    """
    screen = Screen(console)
    with half_the_cores(), OutputFolder(settings.out) as output:
        material = _load(settings, screen)
        model = convert(material, screen)
        same = show_same_predictions(material, model, settings, screen)
        matrices = show_structure(material, model, screen)
        deep = deepen(material, screen)
        before = held_out_scores(deep, material, settings)
        history = train_briefly(deep, material, settings, screen)
        scores = {
            "ALBERT-12": {part: comparison.before for part, comparison in same.items()},
            "24 by copies": before,
            "24 trained": held_out_scores(deep, material, settings),
        }
        _show_accuracy(scores, material, history, settings, screen)
        save_and_reload(deep, material, output.path, settings, screen)
        screen.step("Draw the spectra and the loss")
        _write(output.path, matrices, history, scores, screen)
        folder = output.publish()
    screen.note(f"picture  {_short(folder / PICTURE)}")
    screen.note(f"model    {_short(folder / 'model')}")
    _verdict(screen)
    return screen.failed


def _load(settings: Settings, screen: Screen) -> Material:
    screen.step(f"Load the pre-trained ALBERT of the package {PACKAGE}")
    material = load_material(settings.stride)
    screen.note(
        f"{material.albert.config.num_hidden_layers} layers that use one set of weights; it reads "
        f"chemical reactions. {material.n_reactions} textbook reactions, {len(material.train)} of "
        "them for training."
    )
    return material


def _show_accuracy(
    scores: Scores, material: Material, history: History, settings: Settings, screen: Screen
) -> None:
    sizes = {part: len(rows) for part, rows in material.held_out.items()}
    screen.show(accuracy_table(scores, sizes))
    before, after = (total_score(scores[name]) for name in ("24 by copies", "24 trained"))
    text = f"held-out accuracy rose from {before.accuracy:.1%} to {after.accuracy:.1%}"
    if after.accuracy - before.accuracy < settings.rise and history.interrupted:
        screen.note(f"Too few steps to judge: {before.accuracy:.1%} to {after.accuracy:.1%}.")
        return
    screen.claim(
        after.accuracy - before.accuracy >= settings.rise,
        f"{text} (at least {100 * settings.rise:.0f} points asked for)",
    )


def _write(
    folder: Path,
    matrices: Sequence[MatrixReport],
    history: History,
    scores: Scores,
    screen: Screen,
) -> None:
    accuracy = {name: total_score(parts).accuracy for name, parts in scores.items()}
    curve = Curve(history.losses, accuracy["24 by copies"], accuracy["24 trained"])
    draw(folder / PICTURE, {matrix.name: matrix.spectrum for matrix in matrices}, curve)
    result = {
        "accuracy": accuracy,
        "losses": history.losses,
        "interrupted": history.interrupted,
        "claims": screen.claims,
    }
    (folder / MARKER).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _verdict(screen: Screen) -> None:
    if screen.failed:
        text = f"[bold red]{len(screen.failed)} of {len(screen.claims)} claims do not hold[/]"
    else:
        text = f"[bold green]All {len(screen.claims)} claims hold[/]"
    screen.console.print(f"\n{text} ({screen.seconds:.0f} s)", highlight=False)


def _short(path: Path) -> str:
    """Return the path from the working folder when it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
