"""Plain matrices again from a file of chains, one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensornet.errors import FileFormatError, OptionError, complaint
from tensornet.network import MPO
from tensornet.streaming.shared_budget import Progress
from tensornet.streaming.source import Entry, Shard, names_near, narrowed, open_source
from tensornet.streaming.summary import RECORD, Row, Summary, chains_of
from tensornet.streaming.target import Piece, copied, write_pieces
from tensornet.streaming.work import checked_target, shard_targets, write_index


def reconstruct_file(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Return the matrices that a file of chains stood for, after writing them as plain tensors.

    Parameters
    ----------
    source : path
        A file or index made by :func:`decompose_file`.
    out : path
        The file or index to write.
    overwrite : bool
        Whether an existing ``out`` may be replaced.
    progress : callable, optional
        Called with the number of matrices done, their total, and the name of the next one.

    Raises
    ------
    FileAccessError, FileFormatError
        If a file cannot be read or written, or holds no chains.
    OptionError
        If ``out`` exists.
    """
    found = open_source(source)
    chains = chains_of(found)
    if not chains:
        remedy = "It is plain already."
        raise FileFormatError(complaint("source", "hold chains", "none", remedy))
    target = checked_target(found, Path(source), out, overwrite=overwrite)
    counted = _counted(len(chains), progress)
    for shard, path in zip(found.shards, shard_targets(found, target), strict=True):
        metadata = {key: text for key, text in shard.metadata.items() if key != RECORD}
        write_pieces(list(_plain(shard, chains, counted)), metadata, path)
    write_index(found, target)
    return Summary(tuple(chains.values()))


def load_chain(source: str | os.PathLike[str], name: str) -> MPO:
    """Return one matrix of a file of chains as a network; bfloat16 as float32.

    Parameters
    ----------
    source : path
        A file or index made by :func:`decompose_file`.
    name : str
        Name of the matrix.

    Raises
    ------
    FileAccessError, FileFormatError
        If a file cannot be read or contradicts itself.
    OptionError
        If it holds no chain of that name.
    """
    found = open_source(source)
    chains = chains_of(found)
    if name not in chains:
        remedy = names_near(name, chains)
        raise OptionError(complaint("name", "be that of a chain in the file", repr(name), remedy))
    return _network(chains[name], found.entries)


def _network(row: Row, entries: Mapping[str, Entry]) -> MPO:
    rows, cols = row.shape
    return MPO([entries[name].matrix() for name in row.core_names], rows, cols)


def _counted(total: int, progress: Progress | None) -> Any:
    state = {"done": 0}

    def note(name: str) -> None:
        if progress is not None:
            progress(state["done"], total, name)
        state["done"] += 1

    return note


def _plain(shard: Shard, chains: dict[str, Row], note: Any) -> Iterator[Piece]:
    firsts = {row.core_names[0]: row for row in chains.values()}
    cores = {name for row in chains.values() for name in row.core_names}
    for name, entry in shard.entries.items():
        if name in firsts:
            yield _matrix(firsts[name], shard, note)
        elif name not in cores:
            size = entry.stop - entry.start
            yield Piece(name, entry.dtype, entry.shape, size, _copier(entry))


def _copier(entry: Any) -> Any:
    return lambda: copied(entry.path, entry.start, entry.stop)


def _matrix(row: Row, shard: Shard, note: Any) -> Piece:
    rows, cols = row.shape

    def chunks() -> Iterator[bytes]:
        note(row.name)
        matrix = _network(row, shard.entries).to_matrix()
        yield (narrowed(matrix) if row.dtype == "BF16" else np.ascontiguousarray(matrix)).tobytes()

    width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}[row.dtype]
    return Piece(row.name, row.dtype, (rows, cols), rows * cols * width, chunks)
