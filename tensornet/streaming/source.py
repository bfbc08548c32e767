"""A safetensors file, or several with an index, read tensor by tensor."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tensornet import files
from tensornet.errors import FileAccessError, FileFormatError, complaint

INDEX = ".index.json"
# Bytes per element. Types beyond these are copied as they are, as long as their size is known.
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
SIZES |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
FLOATS = ("F64", "F32", "F16", "BF16")
_FIRST = 5  # names that a message lists
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True)
class Entry:
    """Where a tensor stands: its file, element type, shape, and bytes from start to stop."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def no_matrix(self) -> str:
        """Why this is not a matrix of real numbers; empty where it is one."""
        if len(self.shape) != 2:
            return f"{len(self.shape)}-dimensional"
        return "" if self.dtype in FLOATS else f"element type {self.dtype}"

    def matrix(self) -> np.ndarray[Any, Any]:
        """Return the numbers in numpy's type; bfloat16, which it lacks, as float32."""
        data = span(self.path, self.start, self.stop)
        raw = np.frombuffer(data, np.dtype(_NUMPY[self.dtype])).reshape(self.shape)
        return widened(raw) if self.dtype == "BF16" else raw


@dataclass(frozen=True)
class Shard:
    """One file: its tensors in the order of their bytes, and its metadata."""

    path: Path
    entries: dict[str, Entry]
    metadata: dict[str, str]
    fingerprint: str


@dataclass(frozen=True)
class Source:
    """All files of a model; ``index`` is the file that lists them, if there are several."""

    shards: tuple[Shard, ...]
    index: Path | None

    @property
    def entries(self) -> dict[str, Entry]:
        """All tensors by name."""
        return {name: entry for shard in self.shards for name, entry in shard.entries.items()}

    @property
    def fingerprint(self) -> str:
        """Checksum of the sizes, headers and times of change of all files."""
        return hashlib.sha256("".join(s.fingerprint for s in self.shards).encode()).hexdigest()


def names_near(name: str, names: Collection[str]) -> str:
    """Return a sentence with the names that are most like one that is not there, or the first.

    Examples
    --------
    >>> names_near("wieght", ["weight", "bias"]), names_near("c", ["weight", "bias"])
    ('Close: weight.', 'Names there: weight, bias.')
    """
    close = get_close_matches(name, names, n=3, cutoff=0.3)
    if close or not names:
        return f"Close: {', '.join(close)}." if close else "There is none."
    first = list(names)[:_FIRST]
    more = f" and {len(names) - _FIRST} more" if len(names) > _FIRST else ""
    return f"Names there: {', '.join(first)}{more}."


def span(path: Path, start: int, stop: int) -> bytes:
    """Return the bytes of a file from start to stop.

    Raises
    ------
    FileAccessError
        If it cannot be read any more, or became shorter.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
    except OSError as error:
        given = f"{path} ({error.strerror})"
        raise FileAccessError(complaint("path", "be a file that can be read", given)) from error
    if len(data) != stop - start:
        given = f"{path}, which ends at byte {start + len(data)}"
        raise FileAccessError(complaint("path", f"reach byte {stop}", given))
    return data


def open_source(path: str | os.PathLike[str]) -> Source:
    """Return the tensors of a safetensors file or of an index of such files; no numbers are read.

    Raises
    ------
    FileAccessError
        If a file is missing.
    FileFormatError
        If a header does not describe the file, or an index names a file elsewhere, a tensor
        that is not there, or one that stands in two files.
    """
    where = files.named("source", path)
    if not where.name.endswith(INDEX):
        return Source((_shard(where),), None)
    listed = _listed(where)
    shards = tuple(_shard(where.parent / name) for name in sorted(set(listed.values())))
    found: dict[str, str] = {}
    for shard in shards:
        for name in shard.entries:
            if name in found:
                given = f"{name!r} in {found[name]} and {shard.path.name}"
                raise FileFormatError(complaint("path", "hold each tensor once", given))
            found[name] = shard.path.name
    wrong = sorted(name for name in listed if found.get(name) != listed[name])
    if wrong:
        given = f"{len(wrong)} elsewhere or missing, the first {wrong[0]!r}"
        raise FileFormatError(complaint("the index", "say where each tensor is", given))
    return Source(shards, where)


def _listed(where: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(files.read(where).decode())["weight_map"]
        listed = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = "be an index with a weight_map of names and files"
        raise FileFormatError(complaint("path", expected, where)) from error
    for file in listed.values():
        if PurePosixPath(file).name != file or file in ("", ".", "..") or "\\" in file:
            expected = "name files in its own folder"
            raise FileFormatError(complaint("the index", expected, repr(file)))
    if not listed:
        raise FileFormatError(complaint("the index", "list at least one tensor", "none"))
    return listed


def _shard(path: Path) -> Shard:
    head = files.read_header(path)
    header, _ = files.parts(head)
    metadata = header.pop("__metadata__", {})
    try:
        status = path.stat()
    except OSError as error:
        raise FileAccessError(complaint("path", "be an existing file", path)) from error
    entries = {name: _entry(name, raw, path, len(head)) for name, raw in header.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_bytes(ordered, len(head), status.st_size)
    seal = hashlib.sha256(head + f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
    return Shard(path, ordered, {str(k): str(v) for k, v in metadata.items()}, seal)


def _entry(name: str, raw: Any, path: Path, offset: int) -> Entry:
    try:
        dtype, shape = str(raw["dtype"]), tuple(int(d) for d in raw["shape"])
        start, stop = (int(o) for o in raw["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        expected = f"describe the tensor {name!r}"
        raise FileFormatError(complaint("path", expected, str(raw)[:80])) from error
    if dtype in SIZES and stop - start != SIZES[dtype] * math.prod(shape):
        given = f"{stop - start} bytes for {dtype} of shape {shape}"
        raise FileFormatError(complaint("path", f"hold the whole tensor {name!r}", given))
    return Entry(path, dtype, shape, offset + start, offset + stop)


def _check_bytes(entries: dict[str, Entry], start: int, size: int) -> None:
    """Refuse tensors that overlap, leave gaps, or reach beyond the end of the file."""
    for name, entry in entries.items():
        if min(entry.shape, default=0) < 0 or entry.start != start or entry.stop < start:
            given = f"{name!r} at byte {entry.start} where {start} was due"
            raise FileFormatError(complaint("path", "hold its tensors one after another", given))
        start = entry.stop
    if start != size:
        given = f"{size} bytes where its header accounts for {start}"
        raise FileFormatError(complaint("path", "be a whole safetensors file", given))


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bfloat16 numbers, given as their bits, in float32; exact.

    Examples
    --------
    >>> widened(np.array([0x3FC0], np.uint16)).tolist()
    [1.5]
    """
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits of finite float32 numbers rounded to bfloat16, ties to even.

    Examples
    --------
    >>> widened(narrowed(np.array([1.5, 1.00390625], np.float32))).tolist()
    [1.5, 1.0]
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
