"""The folder of finished parts, from which an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensornet import files
from tensornet.errors import FileAccessError, FileFormatError, OptionError, complaint
from tensornet.streaming.source import open_source
from tensornet.streaming.summary import Row
from tensornet.streaming.target import Piece, write_pieces

_PLAN = "plan.json"
_ROW = "row"


@dataclass(frozen=True)
class Parts:
    """A work folder beside the target; one file for each tensor that is done."""

    folder: Path

    def begin(self, plan: dict[str, Any], *, overwrite: bool) -> None:
        """Make the folder, or go on in one that belongs to the same plan.

        Raises
        ------
        OptionError
            If it belongs to another source or other options.
        FileAccessError
            If it cannot be made.
        """
        if overwrite:
            self.remove()
        note = self.folder / _PLAN
        if note.is_file() and _loaded(note) != plan:
            expected = "be those of the run that was interrupted"
            remedy = f"Pass overwrite to start anew, or remove {self.folder}."
            raise OptionError(complaint("source and options", expected, "others", remedy))
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            given = f"{self.folder} ({error.strerror})"
            raise FileAccessError(complaint("out", "have a writable folder", given)) from error
        files.write(json.dumps(plan).encode(), note)

    def row(self, name: str) -> Row | None:
        """Return what became of a tensor in an earlier run, or None."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            metadata = open_source(path).shards[0].metadata
            row = Row.from_json(json.loads(metadata[_ROW]))
        except (FileFormatError, ValueError, KeyError):
            return None  # damaged: it is done again
        return row if row.name == name else None

    def keep(self, row: Row, pieces: list[Piece]) -> None:
        """Write what became of a tensor, with its cores if it has any."""
        write_pieces(pieces, {_ROW: json.dumps(row.to_json())}, self.path(row.name))

    def path(self, name: str) -> Path:
        """Return the file of a tensor."""
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"

    def remove(self) -> None:
        """Remove the folder with all it holds."""
        if (self.folder / _PLAN).is_file():
            shutil.rmtree(self.folder)


def _loaded(path: Path) -> object:
    try:
        return json.loads(files.read(path).decode())
    except (ValueError, RecursionError):
        return None
