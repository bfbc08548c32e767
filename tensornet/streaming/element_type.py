"""The element type in which cores are stored, and what rounding to it costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensornet.checks import storage_error
from tensornet.errors import RangeError, ToleranceError, complaint
from tensornet.network import MPO
from tensornet.streaming.source import SIZES, narrowed, widened

# What users call the element types, and what a safetensors file calls them.
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NAMES = {code: name for name, code in CODES.items()}
_HOST = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_BLOCK = 1 << 18


def prepared(matrix: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return a matrix in the type it is decomposed in: its own, or that of wider cores."""
    if dtype == "BF16":
        return matrix.astype(np.float32) if matrix.dtype.itemsize == 2 else matrix
    return matrix.astype(_HOST[dtype]) if SIZES[dtype] > matrix.dtype.itemsize else matrix


def rounds(matrix: np.ndarray[Any, Any], dtype: str) -> bool:
    """Return whether cores of a prepared matrix are rounded when they are stored."""
    return dtype == "BF16" or SIZES[dtype] < matrix.dtype.itemsize


def raw(core: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return the numbers of a core as a file stores them; bfloat16 as its bits."""
    if dtype == "BF16":
        return narrowed(core)
    with np.errstate(over="ignore"):  # looked for by whoever rounds
        return np.ascontiguousarray(core, dtype=_HOST[dtype])


def read(stored: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return stored numbers in a type that numpy computes in."""
    if dtype == "BF16":
        return widened(stored)
    return stored.astype(np.float32) if dtype == "F16" else stored


def rounded_error(network: MPO, matrix: np.ndarray[Any, Any], dtype: str) -> float:
    """Return the relative error of a network once its cores are stored in a narrower type.

    Raises
    ------
    RangeError
        If a core has entries beyond the range of the type.
    """
    layout = network.layout
    cores = [read(raw(core, dtype), dtype) for core in network.cores]
    if not all(np.isfinite(core).all() for core in cores):
        given, remedy = "larger entries", "Store them in a wider type."
        raise RangeError(complaint("the cores", f"fit the range of {_NAMES[dtype]}", given, remedy))
    found = MPO(cores, layout.rows, layout.cols).to_matrix()
    squared = norm = 0.0
    step = max(_BLOCK // matrix.shape[1], 1)
    for start in range(0, matrix.shape[0], step):  # summed in float64 a few rows at a time
        block = matrix[start : start + step].astype(np.float64)
        norm += float(np.vdot(block, block))
        block -= found[start : start + step]
        squared += float(np.vdot(block, block))
    return math.sqrt(squared / norm) if norm else 0.0


def room(rtol: float, sites: int, dtype: str) -> float:
    """Return the tolerance that is left once cores are rounded.

    Raises
    ------
    ToleranceError
        If the rounding needs too much of it.
    """
    cost = 1.2 * storage_error(_NAMES[dtype], sites)
    if rtol <= 2 * cost:
        remedy = f"Cores in {_NAMES[dtype]} come no closer."
        raise ToleranceError(complaint("rtol", f"be above {2 * cost:.2g}", rtol, remedy))
    return rtol - cost


def check_kept(error: float, rtol: float | None, dtype: str) -> None:
    """Raise ToleranceError unless the stored cores keep the tolerance, if there is one."""
    if rtol is not None and error > rtol:
        given = f"{rtol}, with {error:.3g} after rounding to {_NAMES[dtype]}"
        raise ToleranceError(complaint("rtol", "be kept by the stored cores", given))
