"""Lines of a run with a bar of its steps below them, where a terminal can draw one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class StepBar:
    """Takes what a run says and how far it is.

    Parameters
    ----------
    console : rich.console.Console
        Where to; only a terminal gets the bar.
    """

    console: Console
    _progress: Progress = field(init=False)
    _task: TaskID | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        columns = "steps", BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, console=self.console, transient=True)

    def say(self, text: str) -> None:
        """Print a line above the bar.

        Parameters
        ----------
        text : str
            As it is: words in brackets are no markup.
        """
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        # A pipe gets the line now, not with some thousands of others.
        self.console.file.flush()

    def moved(self, step: int, steps: int) -> None:
        """Draw how far the run is.

        Parameters
        ----------
        step, steps : int
            Steps that are done, and steps of the run.
        """
        if not self.console.is_terminal:
            return
        if self._task is None:
            # Begun by the first step: of several processes one alone draws.
            self._progress.start()
            self._task = self._progress.add_task("", total=steps, completed=step)
        self._progress.update(self._task, completed=step)

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.stop()
            self._task = None


@contextmanager
def step_bar(console: Console | None = None) -> Iterator[StepBar]:
    """Return a context with a bar that is taken away at its end, whatever comes.

    Parameters
    ----------
    console : rich.console.Console, optional
        The standard output by default.

    Yields
    ------
    StepBar
        Not drawn before the first step.
    """
    bar = StepBar(console or Console())
    try:
        yield bar
    finally:
        bar.close()
