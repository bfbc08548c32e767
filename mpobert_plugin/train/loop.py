"""The loop of a run: steps, log, evaluations, checkpoints, and a clean end whatever comes."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import DivergenceError
from mpobert_plugin.train.data.batches import micro_batches
from mpobert_plugin.train.data.counter import mixed
from mpobert_plugin.train.evaluation import evaluate, means
from mpobert_plugin.train.guard import Health, advice, examine
from mpobert_plugin.train.interval import Interval
from mpobert_plugin.train.journal import right_line, train_line
from mpobert_plugin.train.late import Sent
from mpobert_plugin.train.norms import KindNorms
from mpobert_plugin.train.optimizers import Rates, set_rate
from mpobert_plugin.train.progress import Progress
from mpobert_plugin.train.state import read_state, write_state
from mpobert_plugin.train.tokens import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mpobert_plugin.train.checkpoint import Checkpoint, Checkpoints
    from mpobert_plugin.train.data.batches import Batch
    from mpobert_plugin.train.data.samples import Samples
    from mpobert_plugin.train.engine import StepResult
    from mpobert_plugin.train.journal import Journal
    from mpobert_plugin.train.settings import PretrainConfig
    from mpobert_plugin.train.setup import Parts
    from mpobert_plugin.train.signals import Wish

_MOST_ROLLBACKS = 3
_HOST = torch.device("cpu")


class _LeftError(Exception):
    """A step is left before its update."""


@dataclass(frozen=True)
class _Late:
    """A step whose result has not been read."""

    step: int
    rate: torch.Tensor
    result: StepResult


class Loop:
    """Runs the steps that are left.

    Parameters
    ----------
    parts : Parts
        What it works with.
    config : PretrainConfig
        Settings.
    checkpoints : Checkpoints
        Where they are kept.
    journal : Journal
        Where things are told.
    wish : Wish
        Whether somebody asked for an end.
    held_out : Samples, optional
        Of the held-out text.
    extra : dict
        What every checkpoint keeps besides: settings and checksums.
    """

    def __init__(
        self,
        parts: Parts,
        config: PretrainConfig,
        checkpoints: Checkpoints,
        journal: Journal,
        wish: Wish,
        held_out: Samples | None,
        extra: dict[str, Any],
    ) -> None:
        self.parts, self.config, self.checkpoints = parts, config, checkpoints
        self.journal, self.wish, self.held_out = journal, wish, held_out
        self.extra = extra
        self.progress = Progress()
        self.processes = parts.engine.processes
        self.rates = Rates(config.rates(), config.lr, self.processes.device)
        self.norms = KindNorms(parts.model, parts.engine.gradients)
        self._interval = Interval.begun(_HOST)
        # Results are read one step late, so that the device never waits for the host.
        self._late: deque[Sent[_Late]] = deque()
        self._ending = False
        self._left = False
        self._saved: int | None = None
        self._kept: dict[str, Any] | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take model, optimizer, scale and progress from a checkpoint.

        Parameters
        ----------
        checkpoint : Checkpoint
            A whole one, of this run.

        Raises
        ------
        CheckpointError
            When it belongs to another model.
        """
        parts, state = self.parts, checkpoint.state
        read_state(checkpoint.folder, parts.model, parts.engine.optimizer, parts.parameters)
        parts.engine.scale.load(state["scale"])
        if parts.engine.captured is not None:
            # The moments that were read are at other places.
            parts.engine.captured.forget()
        found = state["progress"]
        self.progress = Progress(**{**found, "health": Health(**found["health"])})
        self._saved = checkpoint.step
        self._kept = state.get("interval")

    def run(self) -> bool:
        """Make the steps that are left.

        Returns
        -------
        bool
            True at the end of the run, False when somebody asked to stop before.

        Raises
        ------
        DivergenceError
            When the loss is lost and the policy is to stop, or going back did not help.
        CheckpointError
            When a checkpoint cannot be written.
        """
        while self.progress.step < self.config.steps:
            again = self._pass()
            if not again:
                break
        finished = self.progress.step >= self.config.steps
        self.save()
        return finished

    def _pass(self) -> bool:
        """Make steps up to the end, a wish to stop, or a loss; True when to go on from before."""
        progress, every, steps = self.progress, self.config.save_every, self.config.steps
        self._interval, self._kept = Interval.begun(_HOST, self._kept), None
        found = self._batches()
        batches = self._draw(found)
        while batches is not None:
            self._step(batches)
            if self._left:
                lost = self._catch_up()
                return lost is not None and self._lose(lost)
            saving = bool(every) and progress.step % every == 0 and progress.step < steps
            # Drawn while the device works; a checkpoint does not depend on samples to come.
            ahead = not (saving or self.wish)
            batches = self._draw(found) if ahead else None
            lost = self._read(self._late.popleft().read()) if len(self._late) > 1 else None
            if lost is None and (self._is_due() or self._ending):
                lost = self._catch_up()
            if lost is not None:
                return self._lose(lost)
            self._evaluate()
            if saving:
                self.save()
            if self._ending:
                return False
            batches = batches if ahead else self._draw(found)
        return False

    def _draw(self, found: Iterator[list[Batch]]) -> list[Batch] | None:
        """Return the samples of the next step; None behind the last one."""
        start = time.monotonic()
        batches = next(found, None)
        # While the device has a step to make, nothing waits for samples.
        if not self._late or self._late[-1].has_come():
            self._interval.waited += time.monotonic() - start
        return batches

    def _step(self, batches: list[Batch]) -> None:
        """Make a step, or leave it in its middle, where nothing has changed yet."""
        engine, progress = self.parts.engine, self.progress
        rate = self.rates(progress.step, engine.scale.skipped)
        set_rate(engine.optimizer, rate)
        watch = self.norms if self._is_logged(progress.step + 1) else None
        try:
            result = engine.step(batches, self._begin, bool(self.wish), watch)
        except _LeftError:
            self._left = True
            return
        progress.step += 1
        self._late.append(Sent(_Late(progress.step, rate, result)))
        # Alone there is nobody to ask, and no step to wait for.
        self._ending = self.processes.world_size == 1 and bool(self.wish)

    def _begin(self, number: int) -> None:
        """Begin a micro-batch, unless somebody asked for an end: a large step takes long."""
        if self._is_asked(number):
            raise _LeftError
        self._reseed(number)

    def _is_asked(self, number: int) -> bool:
        if self.processes.world_size == 1:
            return bool(self.wish)
        # All processes read the same sum, and so leave the step at the same place.
        asked = self.parts.engine.asked
        return number == 1 and asked is not None and bool(asked.read())

    def _is_due(self) -> bool:
        """Tell whether something at this step needs its result: a save or an evaluation."""
        step = self.progress.step
        marks = (self.config.save_every, self.config.eval_every, self.config.log_every)
        return step == self.config.steps or any(mark and step % mark == 0 for mark in marks)

    def _is_logged(self, step: int) -> bool:
        return step % self.config.log_every == 0 or step == self.config.steps

    def _batches(self) -> Iterator[list[Batch]]:
        """Yield the micro-batches of each step; all of a step, for its loss needs their counts."""
        start = self.progress.step + self.progress.offset
        end = self.config.steps + self.progress.offset
        division = self.parts.division
        found = micro_batches(
            self.parts.samples,
            division,
            start,
            end,
            workers=self.config.workers,
            pin=self.processes.device.type == "cuda",
        )
        for _ in range(start, end):
            yield [next(found) for _ in range(division.accumulation)]

    def _reseed(self, number: int) -> None:
        """Make dropout a function of seed, step, process and micro-batch, so that it resumes."""
        key = self.config.seed
        for part in (self.progress.step + self.progress.offset, self.processes.rank, number):
            key = mixed(key ^ part)
        torch.manual_seed(key >> 1)

    def _read(self, late: _Late) -> str | None:
        """Take note of a step; a sentence when the run is lost."""
        result, config = late.result, self.config
        self._ending |= bool(result.flags)
        skipped = bool(result.skipped)
        loss = means(result.numbers, result.counts)["loss"]
        self._interval.add(result, loss)
        self.progress.health, lost = examine(
            self.progress.health,
            loss,
            skipped,
            config.guard_factor,
            config.guard_skips,
            self.parts.engine.scale.enabled,
        )
        self.journal.moved(late.step, config.steps)
        if self._is_logged(late.step):
            self._log(late)
        return lost

    def _catch_up(self) -> str | None:
        lost = None
        while self._late:
            lost = lost or self._read(self._late.popleft().read())
        return lost

    def _log(self, late: _Late) -> None:
        step, result, config = late.step, late.result, self.config
        values: dict[str, Any] = {
            **self._interval.losses(),
            "lr": float(late.rate),
            "grad_norm": float(result.norm),
            "loss_scale": float(result.scale),
            "skipped": int(self.parts.engine.scale.skipped),
        }
        values |= self._interval.speeds(
            self.parts.model, config, self.processes.device, self.processes.world_size
        )
        values["left"] = (config.steps - step) * values["seconds_per_step"]
        if result.norms is not None:
            values |= self.norms.named(result.norms)
        self.journal.record("train", step, values)
        self.journal.say(train_line(step, config.steps, values))
        self._interval = Interval.begun(_HOST)

    def _evaluate(self) -> None:
        progress, every = self.progress, self.config.eval_every
        last = progress.step == self.config.steps
        if self.held_out is None or not every or (progress.step % every and not last):
            return
        start = time.monotonic()
        found = evaluate(
            self.parts.engine, self.held_out, self.parts.division, self.config.eval_batches
        )
        self.journal.record("eval", progress.step, found)
        self.journal.say(
            f"held out after step {progress.step}: loss {found['loss']:.3f}, {right_line(found)}"
        )
        if found["loss"] < progress.best_loss:
            progress.best_loss, progress.best_step = found["loss"], progress.step
            # Saved now, so that the best one is there to be kept.
            if progress.step < self.config.steps:
                self.save()
        # The speed is that of training alone.
        self._interval.since += time.monotonic() - start

    def _lose(self, text: str) -> bool:
        """Stop or go back, as the settings say; True when the loop goes on."""
        failed = self.progress.step + self.progress.offset
        self._late.clear()
        back = self.checkpoints.newest() if self.config.guard == "rollback" else None
        text = f"{text} {advice(self.config, self._last(back))}"
        rollbacks = self.progress.health.rollbacks + 1
        if back is None or rollbacks > _MOST_ROLLBACKS:
            # Kept and not told: the error says it.
            self.journal.record("event", self.progress.step, {"text": text})
            before = f" The run has gone back {rollbacks - 1} times." if rollbacks > 1 else ""
            raise DivergenceError(f"step {self.progress.step}: {text}{before}")
        self.journal.event(self.progress.step, text)
        self.resume(back)
        # Other samples than those that led there.
        self.progress.offset = failed - self.progress.step
        self.progress.health = Health(rollbacks=rollbacks)
        self.journal.event(self.progress.step, f"Back at step {self.progress.step}.")
        return True

    def _last(self, back: Checkpoint | None) -> Path | None:
        """Return the last checkpoint; where the run does not go back, the one that it wrote."""
        if self.config.guard == "rollback":
            return None if back is None else back.folder
        return None if self._saved is None else self.checkpoints.folder_of(self._saved)

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        progress = self.progress
        if self._saved == progress.step:
            return
        self._saved = progress.step
        state = {
            **self.extra,
            "progress": asdict(progress),
            "scale": self.parts.engine.scale.state(),
            "interval": self._interval.state(),
        }
        if self.processes.first:
            self.checkpoints.save(progress.step, self._write, state, progress.best_step)
        self.processes.wait()

    def _write(self, folder: Path) -> None:
        parts = self.parts
        write_state(folder, parts.model, parts.engine.optimizer, parts.parameters)
        write_tokenizer(folder, parts.model, parts.samples)
