"""The tensors of a safetensors file as arrays over its bytes, read whole or mapped into memory."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np

from tensornet import files
from tensornet.errors import FileFormatError, complaint

# The numbers of numpy that hold each type; bfloat16 has none and comes as its bits.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "C64": "<c8"}


class TensorFile(NamedTuple):
    """What a file written by tensornet holds: its record, and raw arrays by name."""

    record: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


def read(path: str | os.PathLike[str]) -> TensorFile:
    """Return the content of a file, its checksum verified; the arrays are read-only.

    Raises
    ------
    FileAccessError, FileFormatError
        If it cannot be read, is damaged, or was not written by tensornet.
    """
    blob = files.read(path)
    record = files.checked_record(blob)
    header, data = files.parts(blob)
    return TensorFile(record, _arrays(header, np.frombuffer(data, np.uint8)))


def mapped(path: str | os.PathLike[str]) -> TensorFile:
    """Return the content of a file without reading its numbers: they come when they are used.

    The checksum covers every number, so it is not verified. Arrays are private copies of the
    pages that are written to: the file never changes.

    Raises
    ------
    FileAccessError, FileFormatError
        If it cannot be read, its sizes are inconsistent, or it was not written by tensornet.
    """
    head = files.read_header(path)
    header, _ = files.parts(head)
    record = files.record_in(header)
    try:
        data = np.memmap(path, np.uint8, mode="c", offset=len(head))
    except ValueError as error:
        raise FileFormatError(complaint("path", "hold numbers", f"none ({error})")) from error
    return TensorFile(record, _arrays(header, np.asarray(data)))


def _arrays(header: dict[str, Any], data: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _array(name, entry, data) for name, entry in tensors.items()}


def _array(name: str, entry: Any, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        dtype, shape = np.dtype(_TYPES[entry["dtype"]]), [int(d) for d in entry["shape"]]
        start, stop = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        expected = f"describe a tensor {name!r} of a known type"
        raise FileFormatError(complaint("path", expected, str(entry)[:80])) from error
    whole = stop - start == dtype.itemsize * math.prod(shape)
    if not (whole and min(shape, default=1) > 0 and 0 <= start < stop <= len(data)):
        given = f"bytes {start} to {stop} of {len(data)} for shape {shape}"
        raise FileFormatError(complaint("path", f"hold a whole tensor {name!r}", given))
    return data[start:stop].view(dtype).reshape(shape)


def complex_of(pairs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return pairs (real, imaginary) in the last axis as complex numbers, without a copy.

    Raises
    ------
    FileFormatError
        If the array does not end in pairs of floating-point numbers.

    Examples
    --------
    >>> complex_of(np.array([[1.0, 2.0]])).tolist()
    [(1+2j)]
    """
    if pairs.shape[-1:] != (2,) or pairs.dtype.kind != "f" or pairs.itemsize < 4:
        given = f"{pairs.dtype} of shape {pairs.shape}"
        raise FileFormatError(complaint("path", "hold pairs of a complex number", given))
    return pairs.view(f"<c{2 * pairs.itemsize}")[..., 0]
