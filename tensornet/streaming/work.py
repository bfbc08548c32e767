"""A whole file decomposed, one matrix at a time; what is done is kept if it stops."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tensornet import files
from tensornet.errors import FileAccessError, FileFormatError, OptionError, complaint
from tensornet.streaming.matrix import treat
from tensornet.streaming.options import Options
from tensornet.streaming.parts import Parts
from tensornet.streaming.source import INDEX, Entry, Shard, Source, open_source
from tensornet.streaming.summary import Row, Summary, recorded
from tensornet.streaming.target import Piece, copied, write_pieces

Progress = Callable[[int, int, str], None]


def decompose_file(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Return what became of each tensor of a safetensors file, after writing its chains.

    One matrix is in memory at a time. Finished parts are kept in a folder named like ``out``
    with ``.parts`` until all are put together, and an interrupted run goes on from there when it
    is called again with the same source and options. Tensors that are not decomposed are copied
    bit for bit. The cores of ``name`` are called ``name.core_0`` and so on; the header says how
    they belong together, and :func:`reconstruct_file` reads it.

    Parameters
    ----------
    source : path
        A safetensors file, or the ``.index.json`` of several.
    out : path
        The file to write; for an index, the index to write, with its files beside it.
    options : Options
        Which matrices, and the limits.
    overwrite : bool
        Whether an existing ``out`` may be replaced and an interrupted run forgotten.
    progress : callable, optional
        Called with the number of tensors done, their total, and the name of the next one.

    Returns
    -------
    Summary
        One row for each tensor.

    Raises
    ------
    FileAccessError, FileFormatError
        If a file cannot be read or written, or is damaged.
    OptionError
        If ``out`` exists, or an interrupted run had other options.
    NonFiniteError, ToleranceError
        If a matrix holds NaN or infinity, or a tolerance cannot be kept; names the tensor.
    """
    found = open_source(source)
    target = checked_target(found, Path(source), out, overwrite=overwrite)
    parts = Parts(target.with_name(f"{target.name}.parts"))
    plan = {"source": found.fingerprint, "options": options.to_json()}
    parts.begin(plan, overwrite=overwrite)
    rows = dict(_rows(found, options, parts, progress))
    _check_names(rows, found)
    for shard, path in zip(found.shards, shard_targets(found, target), strict=True):
        own = [rows[name] for name in shard.entries]
        pieces = [piece for row in own for piece in _pieces(row, shard, parts)]
        write_pieces(pieces, {**shard.metadata, **recorded(own)}, path)
    write_index(found, target)
    parts.remove()
    return Summary(tuple(rows.values()))


def checked_target(
    source: Source, given: Path, out: str | os.PathLike[str], *, overwrite: bool
) -> Path:
    """Return where the result goes, or refuse.

    Raises
    ------
    OptionError
        If it exists, is the source itself, or an index goes to a single file or the reverse.
    FileAccessError
        If its folder does not exist.
    """
    target = files.writable_target(out)
    several = source.index is not None
    if target.name.endswith(INDEX) != several:
        kind = f"end in {INDEX}, as the source does" if several else f"not end in {INDEX}"
        raise OptionError(complaint("out", kind, target.name))
    taken = {shard.path.resolve() for shard in source.shards} | {given.resolve()}
    goals = {target, *shard_targets(source, target)}
    if goals & taken:
        raise OptionError(complaint("out", "be another file than the source", target))
    there = sorted(goal.name for goal in goals if goal.exists())
    if there and not overwrite:
        remedy = "Pass overwrite to replace it."
        raise OptionError(complaint("out", "not exist yet", ", ".join(there), remedy))
    return target


def shard_targets(source: Source, target: Path) -> list[Path]:
    """Return the file that each file of the source becomes."""
    if source.index is None:
        return [target]
    stem, n = target.name.removesuffix(INDEX).removesuffix(".safetensors"), len(source.shards)
    return [target.with_name(f"{stem}-{k:05d}-of-{n:05d}.safetensors") for k in range(1, n + 1)]


def write_index(source: Source, target: Path) -> None:
    """Write the index of several files, once they are all there."""
    if source.index is None:
        return
    weight_map: dict[str, str] = {}
    total = 0
    for path in shard_targets(source, target):
        for name, entry in open_source(path).entries.items():
            weight_map[name] = path.name
            total += entry.stop - entry.start
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    files.write(json.dumps(index, indent=1).encode(), target)


def _rows(
    source: Source, options: Options, parts: Parts, progress: Progress | None
) -> Iterator[tuple[str, Row]]:
    entries = source.entries
    for done, (name, entry) in enumerate(entries.items()):
        if progress is not None:
            progress(done, len(entries), name)
        yield name, parts.row(name) or _new_row(name, entry, options, parts)
    if progress is not None:
        progress(len(entries), len(entries), "")


def _new_row(name: str, entry: Entry, options: Options, parts: Parts) -> Row:
    row, pieces = treat(name, entry, options)
    parts.keep(row, pieces)
    return row


def _check_names(rows: dict[str, Row], source: Source) -> None:
    names = set(source.entries)
    for row in rows.values():
        clash = names.intersection(row.core_names)
        if clash:
            given = f"a tensor {sorted(clash)[0]!r} already"
            remedy = "Exclude it."
            raise FileFormatError(complaint("source", f"leave room for {row.name}", given, remedy))


def _pieces(row: Row, shard: Shard, parts: Parts) -> Iterator[Piece]:
    if not row.row_dims:
        yield _copy(row.name, shard.entries[row.name])
        return
    stored = open_source(parts.path(row.name)).entries
    missing = [name for name in row.core_names if name not in stored]
    if missing:
        raise FileAccessError(complaint("the parts", f"hold {missing[0]}", "a damaged folder"))
    for name in row.core_names:
        yield _copy(name, stored[name])


def _copy(name: str, entry: Entry) -> Piece:
    def chunks() -> Iterator[bytes]:
        return copied(entry.path, entry.start, entry.stop)

    return Piece(name, entry.dtype, entry.shape, entry.stop - entry.start, chunks)
