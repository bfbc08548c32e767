"""What the demo shows: numbered steps, claims that are checked, tables and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

INDENT = 3


class Screen:
    """Prints the demo's course and remembers which of its claims failed.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.claims: dict[str, bool] = {}
        self._steps = 0
        self._start = perf_counter()
        unicode = console.encoding.lower().startswith("utf")
        self._marks = ("✓", "✗") if unicode else ("ok:", "FAILED:")

    @property
    def failed(self) -> list[str]:
        """The claims that did not hold."""
        return [text for text, holds in self.claims.items() if not holds]

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return perf_counter() - self._start

    def step(self, text: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        self.console.print(f"\n[bold cyan]{self._steps}[/]  [bold]{text}[/]", highlight=False)

    def note(self, text: str) -> None:
        """Print a line that belongs to the step."""
        self.show(f"[dim]{text}[/]")

    def show(self, what: RenderableType) -> None:
        """Print a text or table, indented."""
        if isinstance(what, str):
            self.console.print(Padding.indent(what, INDENT), highlight=False)
        else:
            self.console.print(Padding.indent(what, INDENT))

    def claim(self, holds: bool, text: str) -> None:
        """Print a claim with its outcome and remember it."""
        self.claims[text] = holds
        colour, mark = ("green", self._marks[0]) if holds else ("bold red", self._marks[1])
        self.show(f"[{colour}]{mark} {text}[/]")

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[int, float], None]]:
        """Yield a callback (steps made, loss) that moves a bar, or prints lines into a pipe."""
        if not self.console.is_terminal:
            every = max(1, steps // 6)
            yield lambda step, loss: self._line(step, steps, loss, every)
            return
        columns = (
            TextColumn(" " * (INDENT - 1)),
            BarColumn(40),
            MofNCompleteColumn(),
            TextColumn("steps, loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("training", total=steps, loss=float("nan"))
            yield lambda step, loss: progress.update(task, completed=step, loss=loss)

    def _line(self, step: int, steps: int, loss: float, every: int) -> None:
        if step % every == 0 or step == steps:
            self.show(f"step {step} of {steps}, loss {loss:.3f}")
