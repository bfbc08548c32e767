"""Checkpoints of a run: whole or absent, with checksums, the best and the last few kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train.aside import sha256_of, sync_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEAL = "checkpoint.json"
FORMAT, VERSION = "mpobert-checkpoint", 1
_NAME = re.compile(r"step-(\d{9})")
_ASIDE = ".writing-"


class _OtherVersionError(CheckpointError):
    """A checkpoint that another version of this library wrote."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole.

    Parameters
    ----------
    folder : Path
        Where it lies.
    step : int
        Optimizer steps that were done.
    state : dict
        Numbers and words that were kept with it.
    """

    folder: Path
    step: int
    state: dict[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run in one folder.

    Parameters
    ----------
    root : Path
        The folder; made by the first `save`.
    keep : int
        How many of the last ones are kept; the best one is kept besides.
    tell : callable
        Called with a sentence about each checkpoint that cannot be used.
    """

    root: Path
    keep: int
    tell: Callable[[str], None]

    def folder_of(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step, whether it is there or not.

        Parameters
        ----------
        step : int
            Optimizer steps that are done.

        Returns
        -------
        Path
            Inside the root.

        Examples
        --------
        >>> from pathlib import Path
        >>> print(Checkpoints(Path("run"), 2, print).folder_of(20).as_posix())
        run/step-000000020
        """
        return self.root / f"step-{step:09d}"

    def save(
        self, step: int, write: Callable[[Path], None], state: dict[str, Any], best: int | None
    ) -> Checkpoint:
        """Return a new checkpoint, once every byte of it is on the disk.

        Until then it has another name, under which no run looks for it. Older ones are deleted
        after that, so that one is there at every moment.

        Parameters
        ----------
        step : int
            Optimizer steps that are done.
        write : callable
            Writes the files of the checkpoint into the folder that it is given.
        state : dict
            What JSON can hold, to be given back by `newest`.
        best : int or None
            Step of the best checkpoint so far, which is kept.

        Returns
        -------
        Checkpoint
            The new one.

        Raises
        ------
        CheckpointError
            When the disk is full or refuses; all older checkpoints are as they were.
        """
        target, aside = self.folder_of(step), self.root / f"{_ASIDE}{step:09d}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            write(aside)
            _seal(aside, step, state)
            if target.exists():
                # Not deleted before the new one is there.
                target.replace(self.root / f"{_ASIDE}old-{step:09d}")
            aside.replace(target)
            sync_folder(self.root)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {self.root}: {error}. "
                "Earlier checkpoints are as they were; make room and start the run again."
            ) from error
        self._forget(step, best)
        return Checkpoint(target, step, state)

    def newest(self) -> Checkpoint | None:
        """Return the last checkpoint that is whole; those that are not are told of and passed.

        Returns
        -------
        Checkpoint or None
            None when there is none.

        Raises
        ------
        CheckpointError
            When the last one was written by another version.
        """
        for step, folder in self._found():
            try:
                found = read_checkpoint(folder)
            except _OtherVersionError:
                # Nothing is damaged, and to begin anew would be the end of it.
                raise
            except CheckpointError as error:
                self.tell(f"Checkpoint of step {step} is passed over: {error}")
                continue
            if found.step == step:
                return found
            self.tell(f"{folder} is passed over: it was renamed, and is of step {found.step}.")
        return None

    def _found(self) -> Iterator[tuple[int, Path]]:
        """Yield the folders of checkpoints, last first."""
        if not self.root.is_dir():
            return
        named = [(_NAME.fullmatch(path.name), path) for path in self.root.iterdir()]
        found = [(int(match.group(1)), path) for match, path in named if match]
        yield from sorted(found, reverse=True)

    def _forget(self, last: int, best: int | None) -> None:
        steps = list(self._found())
        # Those of later steps were passed over as damaged, and count for nothing until the run has
        # come so far.
        reached = [(step, folder) for step, folder in steps if step <= last]
        for step, folder in reached[self.keep :]:
            if step != best:
                # Renamed first: what is half deleted must not look like a checkpoint.
                doomed = folder.with_name(f"{_ASIDE}{step:09d}")
                with suppress(OSError):  # it only takes room
                    folder.replace(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        for path in self.root.glob(f"{_ASIDE}*"):
            shutil.rmtree(path, ignore_errors=True)


def _seal(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Sync every file and write their sizes and checksums, which makes the folder a checkpoint."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    record = {"format": FORMAT, "version": VERSION, "step": step, "state": state, "files": files}
    write_json(folder / SEAL, {**record, "sha256": _sum(record)})


def _sum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return a checkpoint after comparing every file with its checksum.

    Parameters
    ----------
    folder : Path
        Folder of one checkpoint.

    Returns
    -------
    Checkpoint
        A whole one.

    Raises
    ------
    CheckpointError
        When a file is missing, truncated or changed; it is named.
    """
    seal = folder / SEAL
    if not seal.is_file():
        raise CheckpointError(f"{folder} must have a {SEAL}, got a folder without it.")
    try:
        record = json.loads(seal.read_text(encoding="utf-8"))
        whole = record.pop("sha256") == _sum(record)
        known = record["format"] == FORMAT and record["version"] == VERSION
        step, state, files = int(record["step"]), dict(record["state"]), dict(record["files"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        raise CheckpointError(f"{seal} is damaged: {error!r}.") from error
    if not whole:
        raise CheckpointError(f"{seal} was changed after it was written.")
    if not known:
        raise _OtherVersionError(
            f"{seal} must be of the format {FORMAT!r}, version {VERSION}, got "
            f"{record['format']!r}, version {record['version']!r}. Go on with the version of "
            "mpobert_plugin that wrote it, or give out= another folder."
        )
    for name, entry in files.items():
        try:
            _check(folder, name, entry)
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}.") from error
    return Checkpoint(folder, step, state)


def _check(folder: Path, name: str, entry: Any) -> None:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute() or not isinstance(entry, dict):
        raise CheckpointError(f"{folder / SEAL} names a file outside its folder: {name!r}.")
    if not path.is_file():
        raise CheckpointError(f"{path} is missing.")
    size = path.stat().st_size
    if size != entry.get("bytes"):
        raise CheckpointError(f"{path} must have {entry.get('bytes')} bytes, got {size}.")
    if sha256_of(path) != entry.get("sha256"):
        raise CheckpointError(f"{path} has another checksum than when it was written.")
