"""Files: written aside, synced and renamed; read whole; sealed with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensornet.errors import FileAccessError, FileFormatError, OptionError, complaint

RECORD = "tensornet"
CHECKSUM = "sha256"
# The record of a file of weights in which some are chains.
CHAINS = "tensornet.matrices"


def named(argument: str, value: object) -> Path:
    """Return what names a file as a path.

    Raises
    ------
    OptionError
        If it is anything else.
    """
    if not isinstance(value, str | os.PathLike):
        raise OptionError(complaint(argument, "name a file", f"an object {type(value).__name__}"))
    return Path(value)


def writable_target(path: str | os.PathLike[str]) -> Path:
    """Return where a file will be written: through symbolic links, into an existing folder.

    Raises
    ------
    FileAccessError
        If the folder does not exist, or something other than a file is there already.
    """
    name = named("path", path)
    try:
        target = name.resolve()
        if target.exists() and not target.is_file():
            given = f"{target}, which is {'a folder' if target.is_dir() else 'no file'}"
            raise FileAccessError(complaint("path", "be a file or free", given))
        if not target.parent.is_dir():
            raise FileAccessError(complaint("path", "be in an existing folder", target))
    except (OSError, ValueError) as error:
        raise _refused("path", "be a file that can be written", path, error) from error
    return target


def write(data: bytes, target: Path) -> None:
    """Write a file so that it is either there as a whole or not at all.

    Raises
    ------
    FileAccessError
        If the operating system refuses; an existing file is then unchanged.
    """
    write_chunks([data], target)


def write_chunks(
    chunks: Iterable[bytes], target: Path, folder: Path | None = None, argument: str = "path"
) -> None:
    """Write a file piece by piece; it is either there as a whole or not at all.

    Until then its bytes are in ``folder``, on the same disk; beside the target without it.
    ``argument`` is what messages call the target.

    Raises
    ------
    FileAccessError
        If the operating system refuses; an existing file is then unchanged. What ``chunks``
        raises ends the writing in the same way.
    """
    aside = (folder or target.parent) / f".{secrets.token_hex(8)}.tmp"
    try:
        with aside.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            aside.chmod(stat.S_IMODE(target.stat().st_mode))
        aside.replace(target)
    except OSError as error:
        raise _refused(argument, "be a file that can be written", target, error) from error
    finally:
        aside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file.

    Raises
    ------
    FileAccessError
        If there is no such file or it cannot be read.
    """
    target = named("path", path)
    try:
        if not target.is_file():
            raise FileAccessError(complaint("path", "be an existing file", target))
        return target.read_bytes()
    except (OSError, ValueError) as error:
        raise _refused("path", "be a file that can be read", path, error) from error


def read_header(path: str | os.PathLike[str]) -> bytes:
    """Return the first bytes of a safetensors file: the length of its header, and the header.

    Raises
    ------
    FileAccessError
        If there is no such file or it cannot be read.
    FileFormatError
        If the file is shorter than its header claims to be.
    """
    target = named("path", path)
    try:
        if not target.is_file():
            raise FileAccessError(complaint("path", "be an existing file", target))
        with target.open("rb") as file:
            length = file.read(8)
            size = int.from_bytes(length, "little")
            header = file.read(size) if size <= target.stat().st_size else b""
    except (OSError, ValueError) as error:
        raise _refused("path", "be a file that can be read", path, error) from error
    if len(header) < size or not size:
        raise _no_safetensors()
    return length + header


def _refused(argument: str, expected: str, path: object, error: Exception) -> Exception:
    if isinstance(error, FileAccessError):
        return error
    reason = getattr(error, "strerror", None) or error
    return FileAccessError(complaint(argument, expected, f"{path} ({reason})"))


def digest(blob: bytes) -> str:
    """Return the checksum of a safetensors file: of its record, its tensors and their names."""
    header, data = parts(blob)
    metadata = header.pop("__metadata__", {})
    sealed = json.dumps([header, metadata.get(RECORD)], sort_keys=True).encode()
    return hashlib.sha256(sealed + data).hexdigest()


def parts(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a safetensors file.

    Raises
    ------
    FileFormatError
        If the header is not JSON of the right form.
    """
    try:
        end = 8 + int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8:end].decode()) if len(blob) >= end > 8 else None
    except (ValueError, RecursionError) as error:
        raise _no_safetensors() from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise _no_safetensors()
    return header, blob[end:]


def _no_safetensors() -> FileFormatError:
    return FileFormatError(complaint("path", "be a safetensors file", "one without its header"))


def checked_record(blob: bytes) -> dict[str, Any]:
    """Return the record in a file's header, once its checksum has been verified.

    Raises
    ------
    FileFormatError
        If there is none, or the file was changed or damaged after it was written.
    """
    header = parts(blob)[0]
    record = record_in(header)
    if digest(blob) != header["__metadata__"][CHECKSUM]:
        remedy = "Save the network again."
        raise FileFormatError(complaint("path", "be undamaged", "another checksum", remedy))
    return record


def record_in(header: dict[str, Any]) -> dict[str, Any]:
    """Return the record in a header; nothing is verified.

    Raises
    ------
    FileFormatError
        If there is none.
    """
    metadata = header.get("__metadata__", {})
    if RECORD not in metadata or CHECKSUM not in metadata:
        remedy = "Plain weights are read with safetensors and decomposed with tn.mpo."
        if CHAINS in metadata:
            remedy = "tensornet.streaming.load_chain(path, name) reads one of its chains."
        given = "a file without its record"
        raise FileFormatError(complaint("path", "be written by tensornet.save", given, remedy))
    try:
        record = json.loads(metadata[RECORD])
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_safetensors() from error
    if not isinstance(record, dict):
        raise _no_safetensors()
    return record
