"""Safetensors files written piece by piece: aside, synced, renamed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tensornet.errors import FileAccessError, complaint

CHUNK = 1 << 24


class Piece(NamedTuple):
    """A tensor to be written: its description, and its bytes when they are asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    chunks: Callable[[], Iterable[bytes]]


def write_pieces(pieces: Iterable[Piece], metadata: Mapping[str, str], target: Path) -> None:
    """Write a safetensors file; it is either there as a whole or not at all.

    Raises
    ------
    FileAccessError
        If the operating system refuses; an existing file is then unchanged.
    """
    listed = list(pieces)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(_header(listed, metadata))
            for piece in listed:
                for chunk in piece.chunks():
                    file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        given = f"{target} ({error.strerror or error})"
        raise FileAccessError(complaint("out", "be a file that can be written", given)) from error
    finally:
        aside.unlink(missing_ok=True)


def copied(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to stop, a few megabytes at a time."""
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            chunk = file.read(min(CHUNK, stop - start))
            if not chunk:
                raise FileAccessError(complaint("path", f"reach byte {stop}", f"{path}: {start}"))
            start += len(chunk)
            yield chunk


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
