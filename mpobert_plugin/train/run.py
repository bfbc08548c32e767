"""Pre-train a model: from the first step, or from the last checkpoint of the run's folder."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import CheckpointError, ConfigError, DataError
from mpobert_plugin.train.aside import clear_leftovers, write_json
from mpobert_plugin.train.checkpoint import Checkpoints
from mpobert_plugin.train.data.samples import Samples
from mpobert_plugin.train.data.store import Corpus, open_corpus
from mpobert_plugin.train.data.worker_errors import told_by_workers
from mpobert_plugin.train.journal import Journal
from mpobert_plugin.train.lock import held
from mpobert_plugin.train.loop import Loop
from mpobert_plugin.train.place import device_of, folder_of
from mpobert_plugin.train.processes import joined
from mpobert_plugin.train.rebuilding import choose_rebuilding
from mpobert_plugin.train.run_folder import CHECKPOINTS, CONFIG, check_out
from mpobert_plugin.train.same_run import check_same_run, machine_of, what_is_inexact
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.settings_file import split_settings
from mpobert_plugin.train.setup import set_up
from mpobert_plugin.train.signals import end_on_signal
from mpobert_plugin.train.source import start_model

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.train.processes import Processes

_log = logging.getLogger("mpobert_plugin.train")
_ELSEWHERE = ("model", "data", "held_out", "out")


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Parameters
    ----------
    step : int
        Optimizer steps that are done.
    finished : bool
        False when a signal ended it before its last step.
    checkpoint : Path
        The last checkpoint, a folder that ``from_pretrained`` loads.
    signal : str
        Name of the signal, or an empty text.
    """

    step: int
    finished: bool
    checkpoint: Path
    signal: str


def pretrain(
    model: PreTrainedModel,
    data: Corpus | str | os.PathLike[str],
    config: PretrainConfig | None = None,
    out: str | os.PathLike[str] = "mpobert-run",
    *,
    held_out: Corpus | str | os.PathLike[str] | None = None,
    resume: bool = True,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = _log.info,
    progress: Callable[[int, int], None] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> RunResult:
    """Return how the run ended, after training the model in place.

    Started by ``torchrun``, its processes share the work; the updates are the same for any number
    of them, up to the order of sums. When ``out`` has a checkpoint of this run, it goes on from
    there, bit for bit on a CPU.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted, with a head for masked tokens; changed in place.
    data : Corpus or path
        A prepared corpus.
    config : PretrainConfig, optional
        Settings.
    out : path
        Folder of the run: settings, log and checkpoints.
    held_out : Corpus or path, optional
        Text to evaluate on, prepared with the same tokenizer.
    resume : bool
        Whether to go on with a run that is there; False refuses a folder that has one.
    device : torch.device or str, optional
        Where to compute; the process's own GPU, or the CPU, by default.
    say : callable
        Called with lines for people; they go to the log of the library by default.
    progress : callable, optional
        Called after each step with the steps that are done and those of the run, such as what
        draws a bar; in the first process alone.
    origin : mapping, optional
        What was started, as the command names it: kept with the settings in ``config.json``.

    Returns
    -------
    RunResult
        Step, whether it is the last one, and the last checkpoint.

    Raises
    ------
    ConfigError
        When model, text and settings do not fit together.
    DataError
        When the text cannot be used.
    CheckpointError
        When the folder has another run or other things, or cannot be written.
    DivergenceError
        When the loss is lost.
    """
    config = config or PretrainConfig()
    if not isinstance(config, PretrainConfig):
        raise ConfigError(f"config must be a PretrainConfig, got {type(config).__name__}.")
    folder = folder_of(out)
    check_out(folder)
    with (
        joined(device_of(device)) as processes,
        end_on_signal() as wish,
        _numbers(config),
        ExitStack() as stack,
    ):
        quiet = say if processes.first else _nothing
        journal = Journal(folder, quiet, processes.first, progress)
        checkpoints = Checkpoints(folder / CHECKPOINTS, config.keep, quiet)
        corpus = _opened(data)
        extra = {
            "config": config.to_dict(),
            "corpus": corpus.checksum,
            "machine": machine_of(processes),
        }
        _check_folder(checkpoints, resume)
        parts = set_up(model, corpus, config, processes)
        samples = None if held_out is None else _held_out(held_out, corpus, config)
        loop = Loop(parts, config, checkpoints, journal, wish, samples, extra)
        if processes.first:
            stack.enter_context(_alone(folder))
        notes = parts.notes + _go_on(loop, checkpoints, processes, extra)
        _begin(folder, journal, loop, {**config.to_dict(), **(origin or {})}, notes)
        try:
            with told_by_workers():
                finished = loop.run()
        finally:
            journal.close()
        step = loop.progress.step
        return RunResult(step, finished, checkpoints.folder_of(step), wish.name)


def settings_of(path: Path | None, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `pretrain` that a file and words ask for.

    Parameters
    ----------
    path : Path, optional
        A YAML file of settings, with ``model``, ``data``, and perhaps ``held_out`` and ``out``.
    words : sequence of str
        Such as ``lr=1e-3``, which override the file's.

    Returns
    -------
    dict
        Model, data, config, out, held_out, and the origin: what was named.

    Raises
    ------
    ConfigError
        When a setting is unknown or impossible, or model or data is missing.
    DataError
        When the text cannot be used.
    CheckpointError
        When the folder for the run holds other things.
    """
    config, found = split_settings(path, words, _ELSEWHERE)
    for name in ("model", "data"):
        if found.get(name) is None:
            raise ConfigError(
                f"{name} must be given, in the file or as {name}=..., got nothing. A model is a "
                "preset such as mpobert-12 or a folder; data is what `mpobert prepare` wrote."
            )
    out = str(found.get("out", "mpobert-run"))
    # Before text is opened and a model made, which take their time.
    check_out(Path(out))
    corpus = open_corpus(str(found["data"]))
    return {
        "model": start_model(found["model"], corpus, config.length, config.seed),
        "data": corpus,
        "config": config,
        "out": out,
        "held_out": None if found.get("held_out") is None else str(found["held_out"]),
        "origin": {name: found[name] for name in _ELSEWHERE if name in found},
    }


def _nothing(_text: str) -> None:
    """Tell nobody: another process does."""


def _opened(data: Corpus | str | os.PathLike[str], name: str = "data") -> Corpus:
    if isinstance(data, Corpus):
        return data
    try:
        return open_corpus(data)
    except DataError as error:
        # Two texts are given by two names.
        raise DataError(str(error).replace("data must be", f"{name} must be", 1)) from error


def _held_out(
    data: Corpus | str | os.PathLike[str], corpus: Corpus, config: PretrainConfig
) -> Samples:
    found = _opened(data, "held_out")
    if found.vocab_size != corpus.vocab_size or found.special != corpus.special:
        raise ConfigError(
            f"held_out must be prepared with the tokenizer of the text ({corpus.vocab_size} "
            f"tokens), got another one ({found.vocab_size}). Prepare it with "
            f"--tokenizer {corpus.folder}."
        )
    return Samples(found, config.recipe())


def _check_folder(checkpoints: Checkpoints, resume: bool) -> None:
    if not resume and checkpoints.root.is_dir() and any(checkpoints.root.iterdir()):
        raise CheckpointError(
            f"out must be a folder without a run, got {checkpoints.root.parent}. Give another "
            "name, or resume=True to go on."
        )


def _go_on(
    loop: Loop, checkpoints: Checkpoints, processes: Processes, extra: dict[str, Any]
) -> tuple[str, ...]:
    """Resume from the checkpoint that the first process finds; the others must see it too.

    What is to be told of it comes back.
    """
    newest = checkpoints.newest()
    step = torch.tensor(-1 if newest is None else newest.step, device=processes.device)
    own = int(step)
    processes.copy([step])
    if processes.any(int(step) != own):
        raise CheckpointError(
            f"every process must see the checkpoints in {checkpoints.root}: the first one has step "
            f"{int(step)} as the last, this one {own}. Put out= on a disk that all of them share."
        )
    if newest is None:
        return _rebuilding(loop, None)
    check_same_run(newest, extra, loop.parts.model)
    loop.resume(newest)
    return what_is_inexact(newest, extra) + _rebuilding(loop, newest.state.get("rebuilding"))


def _rebuilding(loop: Loop, kept: dict[str, Any] | None) -> tuple[str, ...]:
    config, say = loop.config, loop.journal.say
    found = choose_rebuilding(loop.parts, config.reconstruction, kept, config.steps, say)
    if found is None:
        return ()
    loop.extra["rebuilding"] = found.kept()
    return (found.told(),) if found.told() else ()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(folder, CheckpointError))
            clear_leftovers(folder)
        except OSError as error:
            raise CheckpointError(f"out must be a folder that can be written: {error}.") from error
        yield


def _begin(
    folder: Path, journal: Journal, loop: Loop, settings: dict[str, Any], notes: tuple[str, ...]
) -> None:
    step = loop.progress.step
    try:
        journal.open(step)
        if journal.writes:
            write_json(folder / CONFIG, settings)
    except OSError as error:
        raise CheckpointError(f"out must be a folder that can be written: {error}.") from error
    for note in notes:
        journal.event(step, note)
    if step:
        journal.event(step, _told(step, loop))


def _told(step: int, loop: Loop) -> str:
    steps = loop.config.steps
    if step < steps:
        return f"The run goes on after step {step} of {steps}."
    return (
        f"The run has made all of its {steps} steps. More steps are another run, for the learning "
        f"rate follows their number: give out= another folder, and "
        f"model={loop.checkpoints.folder_of(step)} to begin with its weights."
    )


@contextmanager
def _numbers(config: PretrainConfig) -> Iterator[None]:
    """Let float32 products use tensor cores in 'tf32', and only there."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
