"""The log of a run: lines of JSON, TensorBoard where it is installed, and the console."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train.aside import written_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LINES = "log.jsonl"
BOARD = "tensorboard"
_TASKS = ("masked", "order")
# What follows losses and accuracies on the line of a step.
_COLUMNS = (
    ("grad_norm", "gradient {:.2f}"),
    ("lr", "lr {:.2e}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("share_of_peak", "{:.2f} of peak"),
    ("memory_gib", "{:.1f} GiB"),
)


@dataclass
class Journal:
    """Where a run tells what happens.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    say : callable
        Called with each line for people; the console's print, or one that does nothing.
    writes : bool
        Whether this process writes; only the first one does.
    progress : callable, optional
        Called with the steps that are done and the steps of the run, after each step.
    """

    folder: Path
    say: Callable[[str], None]
    writes: bool = True
    progress: Callable[[int, int], None] | None = None
    _board: Any = field(default=None, init=False)

    def open(self, step: int) -> None:
        """Begin, or go on after some steps: later records of an interrupted run are taken out.

        Parameters
        ----------
        step : int
            Optimizer steps that are done.

        Raises
        ------
        OSError
            When the folder cannot be written.
        """
        if not self.writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / LINES
        if file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = "".join(f"{line}\n" for line in lines if _is_before(line, step))
            with written_aside(file) as aside:
                aside.write(kept.encode())
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # It takes out what is at this step and later, and the last record is at `step`.
            self._board = SummaryWriter(str(self.folder / BOARD), purge_step=step + 1)

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write a record.

        Parameters
        ----------
        kind : str
            'train', 'eval' or 'event'.
        step : int
            Optimizer steps that are done.
        values : mapping
            Numbers and words by name.

        Raises
        ------
        CheckpointError
            When the disk is full or refuses.
        """
        if not self.writes:
            return
        # JSON has no infinite numbers.
        plain = {name: value if _is_finite(value) else None for name, value in values.items()}
        line = json.dumps({"kind": kind, "step": step, **plain}, allow_nan=False) + "\n"
        try:
            with (self.folder / LINES).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise CheckpointError(
                f"the log of the run cannot be written to {self.folder}: {error}. Checkpoints are "
                "as they were; make room and start the run again."
            ) from error
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def event(self, step: int, text: str) -> None:
        """Tell people and keep a sentence.

        Parameters
        ----------
        step : int
            Optimizer steps that are done.
        text : str
            A sentence.
        """
        if self.writes:
            self.say(text)
            self.record("event", step, {"text": text})

    def moved(self, step: int, steps: int) -> None:
        """Tell how far the run is.

        Parameters
        ----------
        step, steps : int
            Steps that are done, and steps of the run.
        """
        if self.writes and self.progress is not None:
            self.progress(step, steps)

    def close(self) -> None:
        """Finish what is open."""
        if self._board is not None:
            self._board.close()


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _is_before(line: str, step: int) -> bool:
    """Tell whole records up to a step from later ones, and from lines that were cut off."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return (
        isinstance(record, dict) and isinstance(record.get("step"), int) and record["step"] <= step
    )


def train_line(step: int, steps: int, values: Mapping[str, Any]) -> str:
    """Return a record of training as a line for people.

    Parameters
    ----------
    step, steps : int
        Steps that are done, and steps of the run.
    values : mapping
        Numbers of the record.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> values = {"loss": 7.5, "masked_loss": 6.9, "order_loss": 0.6, "masked_accuracy": 0.1}
    >>> values |= {"order_accuracy": 0.5, "lr": 1e-3, "tokens_per_second": 1200.0, "left": 90.0}
    >>> train_line(10, 100, values)[:51]
    'step 10/100  loss 7.500 (tokens 6.900, order 0.600)'
    """
    tokens, order = (_shown(values, f"{task}_loss", "{:.3f}") for task in _TASKS)
    parts = [
        f"step {step}/{steps}",
        f"loss {values['loss']:.3f} (tokens {tokens}, order {order})",
        right_line(values),
    ]
    parts += [text.format(values[name]) for name, text in _COLUMNS if name in values]
    parts.append(f"{clock(values['left'])} left")
    if values.get("skipped"):
        parts.append(f"{values['skipped']} skipped, scale {values['loss_scale']:g}")
    return "  ".join(parts)


def right_line(values: Mapping[str, Any]) -> str:
    """Return the shares of right answers for people.

    Parameters
    ----------
    values : mapping
        Output of `means`, and perhaps more.

    Returns
    -------
    str
        Masked tokens first, then orders; a dash for a task that nothing was asked for.

    Examples
    --------
    >>> right_line({"masked_accuracy": 0.125})
    'right 12.5 %, -'
    """
    percent = {name: 100 * values[name] for name in values if name.endswith("_accuracy")}
    return f"right {', '.join(_shown(percent, f'{task}_accuracy', '{:.1f} %') for task in _TASKS)}"


def _shown(values: Mapping[str, Any], name: str, form: str) -> str:
    return form.format(values[name]) if name in values else "-"


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds.

    Parameters
    ----------
    seconds : float
        Time in seconds.

    Returns
    -------
    str
        Such as '1:02:03'.

    Examples
    --------
    >>> clock(3723)
    '1:02:03'
    """
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
