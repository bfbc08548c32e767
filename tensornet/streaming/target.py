"""Safetensors files written piece by piece: aside, synced, renamed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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
    aside = (folder or target.parent) / f".{secrets.token_hex(8)}.tmp"
    try:
        with aside.open("xb") as file:
            file.write(_header(listed, metadata))
            for piece in listed:
                written = sum(file.write(chunk) for chunk in piece.chunks())
                if written != piece.n_bytes:
                    expected = f"have {piece.n_bytes} bytes"
                    raise FileAccessError(complaint(piece.name, expected, written))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except FileAccessError:  # of the source, whose bytes are copied
        raise
    except OSError as error:
        given = f"{target} ({error.strerror})"
        raise FileAccessError(complaint("out", "be a file that can be written", given)) from error
    finally:
        aside.unlink(missing_ok=True)


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
