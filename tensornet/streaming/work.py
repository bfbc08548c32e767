"""A whole file decomposed, one matrix at a time; what is done is kept if it stops."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from tensornet import files
from tensornet.errors import (
    FileAccessError,
    FileFormatError,
    OptionError,
    TensorNetError,
    complaint,
)
from tensornet.streaming.matrix import left, treat, unfit
from tensornet.streaming.options import Options
from tensornet.streaming.parts import Parts
from tensornet.streaming.shared_budget import Bonds, Progress, shared_bonds
from tensornet.streaming.source import INDEX, Entry, Shard, Source, open_source
from tensornet.streaming.summary import (
    VERSION,
    Row,
    Summary,
    chains_of,
    core_names,
    recorded,
)
from tensornet.streaming.target import Piece, copied, write_pieces


def decompose_file(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Return what became of each tensor of a safetensors file, after writing its chains.

    One matrix is in memory at a time. With ``max_params`` every matrix is read twice: for its
    spectra, from which all bonds are chosen together, and to be decomposed.

    Finished parts are kept in a folder named like ``out`` with ``.parts`` until all are put
    together, and an interrupted run goes on from there when it is called again with the same
    source and limits; other tensors may be selected, but not with ``max_params``. Tensors that
    are not decomposed are copied bit for bit, chains of an earlier call among them. The cores of
    ``name`` are called ``name.core_0`` and so on; the header says how they belong together, and
    :func:`reconstruct_file` reads it.

    Parameters
    ----------
    source : path
        A safetensors file, or the ``.index.json`` of several.
    out : path
        The file to write; for an index, the index to write, with its files beside it.
    options : Options
        Which matrices, and the limits.
    overwrite : bool
        Whether an existing ``out`` may be replaced, and an interrupted run with another source
        or other limits forgotten.
    progress : callable, optional
        Called with the number of tensors done, their total, and the name of the next one.

    Returns
    -------
    Summary
        One row for each tensor.

    Raises
    ------
    FileAccessError, FileFormatError
        If a file cannot be read or written, is damaged, or has no room for the names of cores.
    OptionError
        If ``out`` exists, a pattern matches no tensor, or an interrupted run had other limits.
    NonFiniteError, ToleranceError
        If a matrix holds NaN or infinity, or a tolerance cannot be kept; names the tensor.
    """
    found = open_source(source)
    earlier = chains_of(found)
    check_patterns(found, options)
    check_shapes(found, options)
    _check_names(found, options)
    out = files.writable_target(out)
    plan = {"version": VERSION, "source": found.fingerprint, **options.limits()}
    parts = Parts(out.with_name(f"{out.name}.parts"), plan)
    # What stands there already may be the half of a result that was being put together.
    target = checked_target(found, Path(source), out, overwrite=overwrite or parts.whole)
    anew = not parts.folder.exists()
    parts.begin(overwrite=overwrite)
    try:
        bonds = _bonds(found, options, progress)
    except TensorNetError:
        if anew:  # nothing is done yet: another budget is welcome
            parts.remove()
        raise
    rows = dict(_rows(found, options, parts, progress, bonds))
    parts.complete()
    for shard, path in zip(found.shards, shard_targets(found, target), strict=True):
        own = [rows[name] for name in shard.entries]
        known = [row for row in earlier.values() if row.core_names[0] in shard.entries]
        pieces = [piece for row in own for piece in _pieces(row, shard, parts)]
        metadata = {**shard.metadata, **recorded([*known, *own])}
        write_pieces(pieces, metadata, path, parts.folder)
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
        remedy = "Pass overwrite=True to replace it."
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
    source: Source, options: Options, parts: Parts, progress: Progress | None, bonds: Bonds | None
) -> Iterator[tuple[str, Row]]:
    entries = source.entries
    for done, (name, entry) in enumerate(entries.items()):
        if progress is not None:
            progress(done, len(entries), name)
        reason = unfit(name, entry, options)
        own = None if bonds is None else bonds.get(name)
        if bonds is not None and own is None and not reason:
            reason = "the budget serves better elsewhere"
        if reason:
            yield name, left(name, entry, reason)
        else:
            yield name, parts.row(name) or _new_row(name, entry, options, parts, own)
    if progress is not None:
        progress(len(entries), len(entries), "")


def _bonds(source: Source, options: Options, progress: Progress | None) -> Bonds | None:
    if options.max_params is None:
        return None
    entries = source.entries
    fit = [name for name, entry in entries.items() if not unfit(name, entry, options)]
    return shared_bonds(entries, fit, options, progress)


def _new_row(
    name: str, entry: Entry, options: Options, parts: Parts, bonds: tuple[int, ...] | None
) -> Row:
    row, pieces = treat(name, entry, options, bonds)
    parts.keep(row, pieces)
    return row


def check_patterns(source: Source, options: Options) -> None:
    """Refuse a pattern that matches no tensor: it is misspelt, and what it means is not done.

    Raises
    ------
    OptionError
        If there is one; says which names are close.
    """
    names = list(source.entries)
    given = [*(("include", p) for p in options.include), *(("exclude", p) for p in options.exclude)]
    for argument, pattern in given:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            close = get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.3) or names[:3]
            remedy = f"Names there: {', '.join(close)}." if close else "It holds none."
            expected = "match at least one tensor of the source"
            raise OptionError(complaint(argument, expected, repr(pattern), remedy))


def check_shapes(source: Source, options: Options) -> None:
    """Refuse a shape that is for no selected matrix: it is misspelt.

    Raises
    ------
    OptionError
        If there is one; says which sizes there are.
    """
    sizes = {e.shape for name, e in source.entries.items() if not unfit(name, e, options)}
    for rows, cols in options.shapes:
        size = (math.prod(rows), math.prod(cols))
        if size not in sizes:
            there = ", ".join("x".join(map(str, one)) for one in sorted(sizes)[:4]) or "none"
            expected = "multiply to the size of a selected matrix"
            given = f"{size[0]}x{size[1]}"
            raise OptionError(complaint("shapes", expected, given, f"Sizes there: {there}."))


def _check_names(source: Source, options: Options) -> None:
    entries = source.entries
    for name, entry in entries.items():
        if unfit(name, entry, options):
            continue
        clash = [
            core
            for core in core_names(name, options.layout(entry.shape).n_sites)
            if core in entries
        ]
        if clash:
            given, remedy = f"a tensor {clash[0]!r} already", "Exclude it."
            raise FileFormatError(complaint("source", f"leave room for {name}", given, remedy))


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
