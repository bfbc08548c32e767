"""The folder of finished parts, from which an interrupted run goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensornet import files
from tensornet.errors import FileAccessError, FileFormatError, OptionError, complaint
from tensornet.streaming.source import open_source
from tensornet.streaming.summary import Row
from tensornet.streaming.target import Piece, write_pieces

# Names of their own: nothing else in the folder is ever removed.
_PLAN = "tensornet-run.json"
_WHOLE = "tensornet-whole.json"
_ROW = "row"


@dataclass(frozen=True)
class Parts:
    """A work folder beside the target; one file for each matrix that was worked on.

    ``plan`` says what the parts are made of: the source, and the limits. Which tensors are
    selected is no part of it, so a run that stopped at a bad matrix goes on without it.
    """

    folder: Path
    plan: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        """Whether a run of the same plan had begun to put its parts together."""
        return (self.folder / _WHOLE).is_file() and self._earlier() == self.plan

    def begin(self, *, overwrite: bool) -> None:
        """Make the folder, or go on in one that belongs to the same plan.

        Raises
        ------
        OptionError
            If it belongs to another plan, and that may not be forgotten.
        FileAccessError
            If it cannot be made, or is somebody else's.
        """
        earlier = self._earlier()
        if earlier is not None and earlier != self.plan:
            if not overwrite:
                expected = "be those of the run that was interrupted"
                remedy = f"Pass overwrite=True to start anew, or remove {self.folder}."
                given = _difference(earlier, self.plan)
                raise OptionError(complaint("source and limits", expected, given, remedy))
            self.remove()
        try:
            self.folder.mkdir(exist_ok=True)
            others = earlier is None and any(p.suffix != ".tmp" for p in self.folder.iterdir())
        except OSError as error:
            given = f"{self.folder} ({error.strerror})"
            raise FileAccessError(complaint("out", "have a writable folder", given)) from error
        if others:
            given, remedy = f"{self.folder} with other files", "Rename it, or the result."
            raise FileAccessError(complaint("out", "have a free work folder", given, remedy))
        files.write(json.dumps(self.plan).encode(), self.folder / _PLAN)

    def row(self, name: str) -> Row | None:
        """Return what became of a tensor in an earlier run, or None."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            part = open_source(path)
            row = Row.from_json(json.loads(part.shards[0].metadata[_ROW]))
        except (FileFormatError, ValueError, KeyError):
            return None  # damaged: it is done again
        return row if row.name == name and tuple(part.entries) == row.core_names else None

    def keep(self, row: Row, pieces: list[Piece]) -> None:
        """Write what became of a tensor, with its cores if it has any."""
        write_pieces(pieces, {_ROW: json.dumps(row.to_json())}, self.path(row.name), self.folder)

    def path(self, name: str) -> Path:
        """Return the file of a tensor."""
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"

    def complete(self) -> None:
        """Note that all parts are there: from now on the result may be half written."""
        files.write(b"{}", self.folder / _WHOLE)

    def remove(self) -> None:
        """Remove what was written here, the plan last, and the folder if nothing else is in it."""
        own = [*self.folder.glob("*.safetensors"), *self.folder.glob(".*.tmp")]
        for path in (*own, self.folder / _WHOLE, self.folder / _PLAN):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody keeps a file there
            self.folder.rmdir()

    def _earlier(self) -> object:
        path = self.folder / _PLAN
        if not path.is_file():
            return None
        try:
            return json.loads(files.read(path).decode())
        except (ValueError, RecursionError):
            return "damaged"


def _difference(earlier: object, plan: Mapping[str, Any]) -> str:
    if not isinstance(earlier, dict):
        return "a damaged note of that run"
    changed = [
        f"{key} {plan[key]} instead of {earlier.get(key)}"
        for key in plan
        if key != "source" and earlier.get(key) != plan[key]
    ]
    if earlier.get("source") != plan["source"]:
        changed.insert(0, "another or a changed source")
    return ", ".join(changed)
