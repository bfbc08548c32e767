"""What became of each tensor of a file, as values that print as a table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tensornet import files
from tensornet.errors import FileFormatError, complaint
from tensornet.streaming.source import FLOATS, Shard, Source, open_source

RECORD = files.CHAINS
VERSION = 1


def core_names(name: str, sites: int) -> tuple[str, ...]:
    """Return what the cores of a matrix are called.

    Examples
    --------
    >>> core_names("w", 2)
    ('w.core_0', 'w.core_1')
    """
    return tuple(f"{name}.core_{k}" for k in range(sites))


@dataclass(frozen=True)
class Row:
    """What became of one tensor.

    ``stored`` counts elements. ``reason`` says why a tensor was left as it was, as far as that is
    known: a file does not tell of a matrix that could have been a chain. It is empty for a chain,
    which has ``row_dims``, ``col_dims``, ``bonds`` and its relative error.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dense: int
    stored: int
    reason: str = ""
    relative_error: float = 0.0
    row_dims: tuple[int, ...] = ()
    col_dims: tuple[int, ...] = ()
    bonds: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the row ready for JSON."""
        return asdict(self)

    @property
    def core_names(self) -> tuple[str, ...]:
        """Names of the tensors that hold the cores; none for a tensor left as it was."""
        return core_names(self.name, len(self.row_dims))

    @property
    def core_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Shapes (left, i, j, right) of the cores."""
        ends = zip(self.bonds[:-1], self.row_dims, self.col_dims, self.bonds[1:], strict=True)
        return tuple(ends)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Row:
        """Return the row that :meth:`to_json` described.

        Raises
        ------
        FileFormatError
            If it is no such description.
        """
        try:
            lists = ("shape", "row_dims", "col_dims", "bonds")
            row = cls(**{**raw, **{name: tuple(int(d) for d in raw[name]) for name in lists}})
            sites = len(row.row_dims)
            fits = len(row.col_dims) == sites and len(row.bonds) == (sites + 1 if sites else 0)
            fits = fits and row._has_types()
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise FileFormatError(complaint("the record", "describe a matrix", raw)) from error
        if not fits:
            raise FileFormatError(complaint("the record", "describe a chain", str(raw)[:200]))
        return row

    def _has_types(self) -> bool:
        texts = (self.name, self.dtype, self.reason)
        counts = (self.dense, self.stored)
        return (
            all(isinstance(text, str) for text in texts)
            and all(type(n) is int and n >= 0 for n in counts)
            and isinstance(self.relative_error, int | float)
        )


@dataclass(frozen=True)
class Summary:
    """The rows of all tensors of a file; prints as a table."""

    rows: tuple[Row, ...]

    @property
    def dense(self) -> int:
        """Elements of the tensors that are represented."""
        return sum(row.dense for row in self.rows)

    @property
    def stored(self) -> int:
        """Elements stored."""
        return sum(row.stored for row in self.rows)

    @property
    def chains(self) -> tuple[Row, ...]:
        """The rows of decomposed matrices."""
        return tuple(row for row in self.rows if row.row_dims)

    def to_json(self) -> dict[str, Any]:
        """Return the summary ready for JSON."""
        rows = [row.to_json() for row in self.rows]
        return {"dense": self.dense, "stored": self.stored, "tensors": rows}

    def __str__(self) -> str:
        head = ("tensor", "shape", "bonds", "stored", "of dense", "error", "left as it was because")
        lines = [head, *(_cells(row) for row in self.rows)]
        if not any(row.reason for row in self.rows):
            lines = [line[:-1] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        ratio = self.stored / (self.dense or 1)
        total = f"{len(self.chains)} of {len(self.rows)} tensors are chains; stored {self.stored:,}"
        return "\n".join([*texts, f"{total} of {self.dense:,} elements ({ratio:.4f})"])


def inspect_file(path: str | os.PathLike[str]) -> Summary:
    """Return what a file made by :func:`decompose_file`, or any safetensors file, holds.

    Raises
    ------
    FileAccessError, FileFormatError
        If it cannot be read or contradicts itself.
    """
    source = open_source(path)
    rows = chains_of(source)
    cores = {core for row in rows.values() for core in row.core_names}
    listed = [
        Row(name, entry.dtype, entry.shape, entry.n_elements, entry.n_elements, entry.no_matrix)
        for name, entry in source.entries.items()
        if name not in cores
    ]
    return Summary((*rows.values(), *listed))


def chains_of(source: Source) -> dict[str, Row]:
    """Return the decomposed matrices of a source by name, checked against its tensors.

    Raises
    ------
    FileFormatError
        If a core is missing or another than the record says, or a matrix is there twice.
    """
    taken = source.entries
    rows: dict[str, Row] = {}
    for shard in source.shards:
        for row in _recorded(shard.metadata):
            _check_matrix(row)
            _check_cores(row, shard)
            if row.name in taken or row.name in rows:
                raise FileFormatError(complaint("path", f"hold {row.name!r} once", "two of it"))
            rows[row.name] = row
    return rows


def _check_matrix(row: Row) -> None:
    sizes = (math.prod(row.row_dims), math.prod(row.col_dims))
    small = len(row.shape) != 2 or min(*row.shape, *row.row_dims, *row.col_dims, *row.bonds, 1) < 1
    if not row.row_dims or small or row.shape[0] > sizes[0] or row.shape[1] > sizes[1]:
        given = f"shape {row.shape} of sites {row.row_dims} and {row.col_dims}"
        raise FileFormatError(complaint("the record", f"tell of a matrix {row.name!r}", given))


def _check_cores(row: Row, shard: Shard) -> None:
    for name, shape in zip(row.core_names, row.core_shapes, strict=True):
        entry = shard.entries.get(name)
        if entry is None or entry.shape != shape or entry.dtype != row.dtype:
            given = "none" if entry is None else f"{entry.dtype} of shape {entry.shape}"
            expected = f"hold {name!r}, {row.dtype} of shape {shape}"
            raise FileFormatError(complaint("path", expected, given))
    if row.dtype not in FLOATS:
        expected = f"have real numbers for {row.name!r}"
        raise FileFormatError(complaint("path", expected, row.dtype))


def _recorded(metadata: Mapping[str, str]) -> list[Row]:
    if RECORD not in metadata:
        return []
    try:
        record = json.loads(metadata[RECORD])
        version, raw = record["version"], list(record["matrices"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(complaint("the record", "be JSON of its form", "other")) from error
    if version != VERSION:
        remedy = "Read it with the version of tensornet that wrote it."
        raise FileFormatError(complaint("the record", f"have version {VERSION}", version, remedy))
    return [Row.from_json(entry) for entry in raw]


def recorded(rows: Iterable[Row]) -> dict[str, str]:
    """Return the metadata that tells of decomposed matrices."""
    chains = [row.to_json() for row in rows if row.row_dims]
    return {RECORD: json.dumps({"version": VERSION, "matrices": chains})}


def _cells(row: Row) -> tuple[str, ...]:
    shape = "x".join(str(d) for d in row.shape) or "scalar"
    bonds = " ".join(str(b) for b in row.bonds[1:-1])
    error = f"{row.relative_error:.3g}" if row.row_dims else ""
    share = f"{row.stored / (row.dense or 1):.3f}"
    return row.name, shape, bonds, f"{row.stored:,}", share, error, row.reason
