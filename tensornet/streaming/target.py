"""Safetensors files written piece by piece: aside, synced, renamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tensornet import files
from tensornet.errors import FileAccessError, complaint
from tensornet.streaming.source import span

CHUNK = 1 << 24


class Piece(NamedTuple):
    """A tensor to be written: its description, and its bytes when they are asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    chunks: Callable[[], Iterable[bytes]]


def write_pieces(
    pieces: Iterable[Piece],
    metadata: Mapping[str, str],
    target: Path,
    folder: Path | None = None,
) -> None:
    """Write a safetensors file; it is either there as a whole or not at all.

    Until then its bytes are in ``folder``, on the same disk; beside the target without it.

    Raises
    ------
    FileAccessError
        If the operating system refuses, or a tensor has more or fewer bytes than described; an
        existing file is then unchanged.
    """
    listed = list(pieces)
    files.write_chunks(_bytes(listed, metadata), target, folder, "out")


def _bytes(pieces: list[Piece], metadata: Mapping[str, str]) -> Iterator[bytes]:
    yield _header(pieces, metadata)
    for piece in pieces:
        written = 0
        for chunk in piece.chunks():
            written += len(chunk)
            yield chunk
        if written != piece.n_bytes:
            expected = f"have {piece.n_bytes} bytes"
            raise FileAccessError(complaint(piece.name, expected, written))


def copied(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to stop, a few megabytes at a time."""
    while start < stop:
        end = min(start + CHUNK, stop)
        yield span(path, start, end)
        start = end


def _header(pieces: list[Piece], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for piece in pieces:
        header[piece.name] = {
            "dtype": piece.dtype,
            "shape": list(piece.shape),
            "data_offsets": [offset, offset + piece.n_bytes],
        }
        offset += piece.n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that numbers start at a multiple of eight
    return len(text).to_bytes(8, "little") + text
