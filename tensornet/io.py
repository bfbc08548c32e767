"""Networks as safetensors files: cores, what belongs to them, and a checksum over both."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensornet import files, tensorfile
from tensornet.backend import backend_of, is_complex, load_backend, working
from tensornet.checks import choice, describe
from tensornet.errors import (
    ArrayTypeError,
    FileFormatError,
    OptionError,
    ShapeError,
    TensorNetError,
    complaint,
    counted,
)
from tensornet.network import MPO, TensorTrain
from tensornet.record import core_names, described, dtypes, restored_from
from tensornet.record_checks import LIBRARIES, check_record
from tensornet.stack import MPOBatch
from tensornet.typing import Array

_BACKENDS = {"numpy": "numpy", "torch": "pytorch", "jax": "jax"}


def save(
    network: MPO | TensorTrain | MPOBatch | Sequence[MPO | TensorTrain],
    path: str | os.PathLike[str],
) -> None:
    """Write a network, a batch or several networks to a safetensors file.

    The file appears only when it is complete: it is written beside its place, synced, and
    renamed. A core that several networks share is stored once. A certificate's numbers are
    kept, its spectra are not. Other programs read the cores as the tensors "core.0", "core.1",
    ...; complex ones have a last axis (real, imaginary).

    Parameters
    ----------
    network : MPO, TensorTrain, MPOBatch, SharedMPO or sequence of MPO and TensorTrain
        What to save; several networks are all of one library. Of a :class:`SharedMPO` its
        networks are saved, and a tuple of them is loaded.
    path : path-like
        The file; an existing one is replaced.

    Raises
    ------
    ArrayTypeError
        If ``network`` is nothing of these, or of several libraries.
    ShapeError
        If the sequence is empty.
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
    target = files.writable_target(path)
    record, cores = described(_savable(getattr(network, "mpos", network)))
    metadata = {files.RECORD: json.dumps(record)}
    metadata[files.CHECKSUM] = files.digest(_serialize(cores, metadata))
    files.write(_serialize(cores, metadata), target)


def load(
    path: str | os.PathLike[str], library: str | None = None, *, mmap: bool = False
) -> MPO | TensorTrain | MPOBatch | tuple[MPO | TensorTrain, ...]:
    """Return what a file written by :func:`save` holds.

    Parameters
    ----------
    path : path-like
        The file.
    library : {"numpy", "torch", "jax"}, optional
        Which arrays to make (on the CPU, or jax's default device); by default the library it
        was saved from.
    mmap : bool
        Whether to map the file into memory instead of reading it: pages are read when their
        numbers are used, and torch tensors may be changed without changing the file. The
        checksum and the finiteness of the numbers, for which all would have to be read, are
        then not verified. The file must stay unchanged meanwhile. jax makes its own copy.

    Returns
    -------
    MPO, TensorTrain, MPOBatch or tuple of MPO and TensorTrain
        With cores, center, true size and certificate as saved; cores that were shared are.

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
    file = tensorfile.mapped(path) if mmap else tensorfile.read(path)
    record = file.record
    check_record(record)
    wanted = choice("library", record["library"] if library is None else library, LIBRARIES)
    if wanted == "numpy" and "bfloat16" in dtypes(record):
        remedy = "Load it with library='torch' or 'jax'."
        raise OptionError(complaint("library", "have bfloat16 numbers", repr(wanted), remedy))
    names = core_names(record)
    if sorted(file.arrays) != sorted(names):
        given = counted(len(file.arrays), "tensor")
        raise FileFormatError(complaint("path", f"hold {counted(len(names), 'core')}", given))
    owned = wanted == "torch" and not mmap  # torch shares memory, and its tensors can change
    try:
        cores = {
            name: _core(file.arrays[name], wanted, owned=owned, pairs=pairs)
            for name, pairs in names.items()
        }
        return restored_from(cores, record, values=not mmap)
    except (IndexError, RuntimeError, TensorNetError) as error:
        if isinstance(error, ImportError):
            raise
        given = f"{os.fspath(path)} ({error})"
        raise FileFormatError(complaint("path", "hold a whole network", given)) from error


def _core(values: np.ndarray[Any, Any], library: str, *, owned: bool, pairs: bool) -> Array:
    half = values.dtype == np.uint16
    plain = tensorfile.complex_of(values) if pairs else values
    backend = load_backend(_BACKENDS[library])
    return backend.made(plain.copy() if owned else plain, "bfloat16" if half else "")


def _savable(network: Any) -> Any:
    if isinstance(network, MPO | TensorTrain | MPOBatch):
        return network
    expected = "be an MPO, a TensorTrain, an MPOBatch, or a sequence of MPO and TensorTrain"
    several = isinstance(network, Sequence) and not isinstance(network, str)
    wrong = [n for n in network if not isinstance(n, MPO | TensorTrain)] if several else [network]
    if wrong:
        raise ArrayTypeError(complaint("network", expected, describe(wrong[0])))
    if not network:
        raise ShapeError(complaint("network", "hold at least one network", "an empty sequence"))
    return network


def _serialize(cores: dict[str, Array], metadata: dict[str, str]) -> bytes:
    arrays, library = {}, "numpy"
    for name, core in cores.items():
        backend, owned = working(core, backend_of(core))
        owned = backend.own(owned)
        # The format has no complex128: complex cores have a last axis (real, imaginary).
        arrays[name] = backend.split_complex(owned) if is_complex(owned) else owned
        library = backend.name
    if library == "numpy":
        from safetensors.numpy import save as numpy_bytes

        return bytes(numpy_bytes(arrays, metadata))
    from safetensors.torch import save as torch_bytes

    return bytes(torch_bytes({name: a.cpu() for name, a in arrays.items()}, metadata))
