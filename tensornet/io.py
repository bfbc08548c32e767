"""Networks as safetensors files: cores and all the metadata needed, written atomically."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, cast

from tensornet.backend import backend_of, is_complex, load_backend
from tensornet.certificate import Certificate
from tensornet.checks import choice
from tensornet.errors import ArrayTypeError, FileFormatError, complaint
from tensornet.layout import MatrixLayout
from tensornet.network import MPO, TensorTrain
from tensornet.typing import Array, Cores

FORMAT = "tensornet"
VERSION = 1
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
    FileFormatError
        If the folder does not exist or ``path`` is a folder.

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
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        given = f"{target}" + (", which is a folder" if target.is_dir() else "")
        raise FileFormatError(complaint("path", "be a file in an existing folder", given))
    metadata = {FORMAT: json.dumps(_metadata(network))}
    _write_aside(_serialize(network.cores, metadata), target)


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
    FileFormatError
        If the file is missing, damaged, or not written by tensornet.
    OptionError
        If the library is unknown.
    MissingLibraryError
        If the library is not installed.
    """
    target = Path(path)
    if not target.is_file():
        raise FileFormatError(complaint("path", "be an existing file", target))
    metadata = _read_metadata(target)
    wanted = choice("library", library or metadata["library"], _LIBRARIES)
    backend = load_backend("pytorch" if wanted == "torch" else "numpy")
    try:
        arrays = _read_arrays(target, wanted)
        cores = [arrays[f"core.{k}"] for k in range(int(metadata["n_sites"]))]
        if metadata["complex"]:
            cores = [backend.join_complex(core) for core in cores]
        return _restore(cores, metadata)
    except (KeyError, TypeError, ValueError) as error:
        remedy = "The file is damaged or from a newer version; save the network again."
        given = f"{target} ({error})"
        raise FileFormatError(complaint("path", "hold a whole network", given, remedy)) from error


def _metadata(network: MPO | TensorTrain) -> dict[str, Any]:
    record: dict[str, Any] = {
        "version": VERSION,
        "kind": type(network).__name__,
        "library": "torch" if backend_of(*network.cores).name == "pytorch" else "numpy",
        "n_sites": network.n_sites,
        "center": network.center,
        "complex": is_complex(network.cores[0]),
    }
    if isinstance(network, MPO):
        record["shape"] = list(network.shape)
    if network.certificate is not None:
        c = network.certificate
        record["certificate"] = [c.norm, list(c.discarded_share), c.storage_error]
    return record


def _restore(cores: list[Array], metadata: dict[str, Any]) -> MPO | TensorTrain:
    center, saved = metadata["center"], metadata.get("certificate")
    certificate = None
    if saved is not None:
        norm, shares, storage = saved
        spectra = (None,) * len(shares)
        certificate = Certificate(float(norm), tuple(shares), float(storage), spectra)
    kind = choice("kind", metadata["kind"], ("MPO", "TensorTrain"))
    if kind == "TensorTrain":
        return TensorTrain._from(TensorTrain(cores).cores, center, certificate)
    checked = MPO(cores, *metadata["shape"])
    layout = MatrixLayout(checked.row_dims, checked.col_dims, *metadata["shape"])
    return MPO._from(checked.cores, layout, center, certificate)


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


def _write_aside(data: bytes, target: Path) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _read_metadata(target: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(target, framework="numpy") as file:
            found = (file.metadata() or {}).get(FORMAT)
        metadata = None if found is None else json.loads(found)
    except (SafetensorError, OSError, ValueError) as error:
        given = f"{target} ({error})"
        raise FileFormatError(complaint("path", "be a safetensors file", given)) from error
    known = {"kind", "complex", "library", "n_sites", "center", "version"}
    if not isinstance(metadata, dict) or not known <= metadata.keys():
        remedy = "Plain weights are read with safetensors and decomposed with tn.mpo."
        raise FileFormatError(complaint("path", "be written by tensornet.save", target, remedy))
    return metadata


def _read_arrays(target: Path, library: str) -> dict[str, Array]:
    if library == "torch":
        from safetensors.torch import load_file as read_torch

        return dict(read_torch(target))
    from safetensors.numpy import load_file as read_numpy

    return dict(read_numpy(target))
