"""Networks as safetensors files: cores, what belongs to them, and a checksum over both."""

from __future__ import annotations

import json
import os
from typing import Any, cast

from tensornet import files
from tensornet.backend import backend_of, is_complex, load_backend
from tensornet.checks import choice
from tensornet.errors import (
    ArrayTypeError,
    FileFormatError,
    OptionError,
    TensorNetError,
    complaint,
)
from tensornet.network import MPO, TensorTrain
from tensornet.record import check_record, network_from, record_of
from tensornet.typing import Array, Cores

_LIBRARIES = ("numpy", "torch")


def save(network: MPO | TensorTrain, path: str | os.PathLike[str]) -> None:
    """Write a network to a safetensors file.

    The file appears only when it is complete: it is written beside its place, synced, and
    renamed. The certificate's numbers are kept, its spectra are not.

    Parameters
    ----------
    network : MPO or TensorTrain
        What to save.
    path : path-like
        The file; an existing one is replaced.

    Raises
    ------
    ArrayTypeError
        If ``network`` is no network.
    FileAccessError
        If the folder does not exist, ``path`` is no file, or writing fails.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(MPO([np.ones((1, 2, 2, 1))]), folder + "/m.safetensors")
    ...     load(folder + "/m.safetensors").shape
    (2, 2)
    """
    if not isinstance(cast(object, network), MPO | TensorTrain):
        given = type(network).__name__
        raise ArrayTypeError(complaint("network", "be an MPO or a TensorTrain", given))
    target = files.writable_target(path)
    metadata = {files.RECORD: json.dumps(record_of(network))}
    draft = _serialize(network.cores, metadata)
    metadata[files.CHECKSUM] = files.digest(draft)
    files.write(_serialize(network.cores, metadata), target)


def load(path: str | os.PathLike[str], library: str | None = None) -> MPO | TensorTrain:
    """Return the network in a file written by :func:`save`.

    Parameters
    ----------
    path : path-like
        The file.
    library : {"numpy", "torch"}, optional
        Which arrays to make (torch ones on the CPU); by default the library it was saved from.

    Returns
    -------
    MPO or TensorTrain
        With cores, center, true size and certificate as saved.

    Raises
    ------
    FileAccessError
        If the file is missing or cannot be read.
    FileFormatError
        If it is damaged, from another version, or not written by tensornet.
    OptionError
        If the library is unknown, or has no such element type.
    MissingLibraryError
        If the library is not installed.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(MPO([np.eye(3)[None, :, :, None]]), folder + "/m.safetensors")
    ...     load(folder + "/m.safetensors", library="numpy").n_params
    9
    """
    blob = files.read(path)
    record = files.checked_record(blob)
    check_record(record)
    wanted = choice("library", record["library"] if library is None else library, _LIBRARIES)
    if wanted == "numpy" and record["dtype"] == "bfloat16":
        remedy = "Load it with library='torch'."
        raise OptionError(complaint("library", "have bfloat16 numbers", repr(wanted), remedy))
    backend = load_backend("pytorch" if wanted == "torch" else "numpy")
    arrays = _arrays(blob, wanted)
    names = [f"core.{k}" for k in range(record["n_sites"])]
    if sorted(arrays) != sorted(names):
        given = f"{len(arrays)} tensors"
        raise FileFormatError(complaint("path", f"hold {len(names)} cores", given))
    try:
        cores = [arrays[name] for name in names]
        if record["complex"]:
            cores = [backend.join_complex(core) for core in cores]
        return network_from(cores, record)
    except (IndexError, RuntimeError, TensorNetError) as error:
        given = f"{os.fspath(path)} ({error})"
        raise FileFormatError(complaint("path", "hold a whole network", given)) from error


def _serialize(cores: Cores, metadata: dict[str, str]) -> bytes:
    backend = backend_of(*cores)
    owned = (backend.own(core) for core in cores)
    # The format has no complex128: complex cores are stored with a last axis (real, imaginary).
    arrays = {
        f"core.{k}": backend.split_complex(core) if is_complex(core) else core
        for k, core in enumerate(owned)
    }
    if backend.name == "numpy":
        from safetensors.numpy import save as numpy_bytes

        return bytes(numpy_bytes(arrays, metadata))
    from safetensors.torch import save as torch_bytes

    return bytes(torch_bytes({name: a.cpu() for name, a in arrays.items()}, metadata))


def _arrays(blob: bytes, library: str) -> dict[str, Array]:
    from safetensors import SafetensorError

    read: Any
    if library == "torch":
        from safetensors.torch import load as read
    else:
        from safetensors.numpy import load as read
    try:
        return dict(read(blob))
    except SafetensorError as error:
        raise FileFormatError(complaint("path", "be a safetensors file", error)) from error
