"""What was measured, where and by which command: rows that a JSON file keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.aside import write_json

FORMAT, VERSION = "mpobert-bench", 1
# What tells rows apart; a later measurement of the same thing takes the place of the earlier.
KEYS = ("section", "model", "case", "device", "world_size")
# Written into every record, so that it can be read without anything else.
NUMBERS = {
    "ms": "milliseconds of a call; median of the rounds",
    "tokens_per_second": "samples of a call times the length of a sample, over its time",
    "speed": "time of the first contender over this one's, in the same round; median",
    "speed_low, speed_high": "smallest and largest of the rounds",
    "tflops": "model operations per second of one device: for a sample 6 * (length * (layers * "
    "(4 * hidden^2 + 2 * hidden * inner) + layers * 2 * length * hidden + projection of the "
    "embedding) + positions of the head * size of the head); the same for rebuilt and for plain "
    "matrices, rebuilding them is not counted",
    "share_of_peak": "tflops over the card's peak for dense products of 16-bit numbers",
    "memory_gib": "most memory that tensors took at any moment of a step",
    "above_gib": "the same, less what was there before the step",
    "stays_gib": "parameters, gradients and moments",
    "share_of_step": "time of an update over that of a step of 4096 samples on one device",
}


@dataclass
class Record:
    """Rows of measurements.

    Parameters
    ----------
    rows : list of dict
        Each with section, model, case, device, world_size, command, versions, settings, seconds,
        and ``values`` (numbers of each contender by its name), ``error`` or ``skipped``.

    Examples
    --------
    >>> record = Record()
    >>> row = dict.fromkeys(KEYS, "x") | {"values": {"mpo": {"ms": 1.0}}}
    >>> record.add(row), record.add({**row, "values": {}})
    (None, None)
    >>> len(record.rows)
    1
    """

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, in the place of an earlier one of the same thing.

        A failure does not take the place of a measurement.

        Parameters
        ----------
        row : mapping
            With the keys of ``KEYS``.
        """
        key = [row[name] for name in KEYS]
        same = [other for other in self.rows if [other[name] for name in KEYS] == key]
        if "values" not in row and any("values" in other for other in same):
            return
        self.rows = [other for other in self.rows if other not in same]
        self.rows.append(dict(row))

    def write(self, path: Path) -> None:
        """Write all rows as JSON, as a whole or not at all.

        Parameters
        ----------
        path : Path
            Name of the file.

        Raises
        ------
        OSError
            When it cannot be written.
        """
        head = {"format": FORMAT, "version": VERSION, "numbers": NUMBERS}
        write_json(path, {**head, "rows": self.rows})

    @classmethod
    def read(cls, path: Path) -> Record:
        """Return the rows of a file.

        Parameters
        ----------
        path : Path
            What `write` wrote.

        Returns
        -------
        Record
            A new object.

        Raises
        ------
        ConfigError
            When it is no such file.
        """
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} must be a record of measurements, got: {error}.") from error
        known = isinstance(found, dict) and found.get("format") == FORMAT
        if not known or found.get("version") != VERSION or not _are_rows(found.get("rows")):
            raise ConfigError(
                f"{path} must be a record of format {FORMAT!r}, version {VERSION}, got another. "
                "Give --out another folder."
            )
        return cls(found["rows"])


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, dict) and all(name in row for name in KEYS) for row in rows
    )


def fastest(rows: Sequence[Mapping[str, Any]], model: str, contender: str) -> float | None:
    """Return the most tokens per second that a contender reached in any row.

    Parameters
    ----------
    rows : sequence of mapping
        Of records.
    model : str
        Preset.
    contender : str
        Name in the values.

    Returns
    -------
    float or None
        None when there is none.

    Examples
    --------
    >>> rows = [{"model": "m", "values": {"mpo": {"tokens_per_second": 2.0}}}, {"model": "m"}]
    >>> fastest(rows, "m", "mpo"), fastest(rows, "m", "plain")
    (2.0, None)
    """
    rates = [
        row.get("values", {}).get(contender, {}).get("tokens_per_second")
        for row in rows
        if row["model"] == model
    ]
    return max((rate for rate in rates if rate is not None), default=None)
