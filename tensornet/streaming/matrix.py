"""One tensor of a file: left as it is, with the reason, or made a chain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensornet.checks import storage_error
from tensornet.decompose import mpo
from tensornet.errors import NonFiniteError, OptionError, ToleranceError, complaint
from tensornet.layout import MatrixLayout, matrix_layout
from tensornet.network import MPO
from tensornet.streaming.options import Options
from tensornet.streaming.source import FLOATS, Entry, narrowed, widened
from tensornet.streaming.summary import Row
from tensornet.streaming.target import Piece

_BLOCK = 1 << 18


def treat(name: str, entry: Entry, options: Options) -> tuple[Row, list[Piece]]:
    """Return what became of a tensor, and the cores to write if it was decomposed.

    Raises
    ------
    NonFiniteError
        If a selected matrix holds NaN or infinity; names the tensor.
    ToleranceError
        If ``rtol`` cannot be kept; names the tensor.
    """
    reason = unfit(name, entry, options)
    if reason:
        return left(name, entry, reason), []
    try:
        network, error = _chain(entry, options)
    except (NonFiniteError, ToleranceError) as problem:
        remedy = "Exclude it to leave it as it is; what is done is kept."
        raise type(problem)(f"{name}: {problem} {remedy}") from problem
    if network is None:
        return left(name, entry, "its budget is below the smallest chain"), []
    if network.n_params >= entry.n_elements and not options.keep_larger:
        return left(name, entry, f"no smaller as a chain ({network.n_params:,})"), []
    row = _row(name, entry, network, error)
    return row, [
        _piece(*each, entry.dtype) for each in zip(row.core_names, network.cores, strict=True)
    ]


def unfit(name: str, entry: Entry, options: Options) -> str:
    """Return why a tensor is not even tried, or an empty text."""
    if not options.selects(name):
        return "not selected"
    if len(entry.shape) != 2:
        return f"{len(entry.shape)}-dimensional"
    if entry.dtype not in FLOATS:
        return f"element type {entry.dtype}"
    if min(entry.shape) < options.min_size:
        return f"a side below {options.min_size}"
    return ""


def left(name: str, entry: Entry, reason: str) -> Row:
    """Return the row of a tensor that is copied as it is."""
    return Row(name, entry.dtype, entry.shape, entry.n_elements, entry.n_elements, reason)


def _chain(entry: Entry, options: Options) -> tuple[MPO | None, float]:
    """Return the network and its relative error; None where the budget is too small for any."""
    matrix = entry.matrix()
    budget = options.budget(entry.n_elements)
    if budget is not None and budget < _smallest(mpo_layout(entry, options)):
        return None, 0.0
    rtol = options.rtol
    if rtol is not None and entry.dtype == "BF16":
        rtol = _room(rtol, options.sites)
    network = mpo(
        matrix,
        options.sites,
        max_bond=options.max_bond,
        rtol=rtol,
        max_params=budget,
        # One core of a half precision chain cannot hold the norm of every matrix; all can.
        gauge="symmetric" if entry.dtype in ("F16", "BF16") else "central",
    )
    if entry.dtype != "BF16":
        certificate = network.certificate
        return network, 0.0 if certificate is None else certificate.relative_error
    # numpy has no bfloat16: the cores are rounded here, and what that costs is measured.
    layout = network.layout
    rounded = MPO([widened(narrowed(core)) for core in network.cores], layout.rows, layout.cols)
    error = _distance(rounded.to_matrix(), matrix)
    if options.rtol is not None and error > options.rtol:
        given = f"{options.rtol}, with {error:.3g} after rounding to bfloat16"
        raise ToleranceError(complaint("rtol", "be kept by the stored cores", given))
    return rounded, error


def _distance(found: Any, matrix: np.ndarray[Any, Any]) -> float:
    """Return |found - matrix| / |matrix|, summed in float64 a few rows at a time."""
    squared = norm = 0.0
    step = max(_BLOCK // matrix.shape[1], 1)
    for start in range(0, matrix.shape[0], step):
        block = matrix[start : start + step].astype(np.float64)
        norm += float(np.vdot(block, block))
        block -= found[start : start + step]
        squared += float(np.vdot(block, block))
    return math.sqrt(squared / norm) if norm else 0.0


def mpo_layout(entry: Entry, options: Options) -> MatrixLayout:
    """Return the layout of a matrix in balanced sites."""
    return matrix_layout(entry.shape[0], entry.shape[1], options.sites)


def _smallest(layout: MatrixLayout) -> int:
    return sum(layout.site_dims)


def _room(rtol: float, sites: int) -> float:
    cost = 1.2 * storage_error("bfloat16", sites)
    if rtol <= 2 * cost:
        remedy = "Cores in bfloat16 come no closer."
        raise ToleranceError(complaint("rtol", f"be above {2 * cost:.2g}", rtol, remedy))
    return rtol - cost


def _row(name: str, entry: Entry, network: MPO, error: float) -> Row:
    return Row(
        name=name,
        dtype=entry.dtype,
        shape=entry.shape,
        dense=entry.n_elements,
        stored=network.n_params,
        relative_error=error,
        row_dims=network.row_dims,
        col_dims=network.col_dims,
        bonds=network.bond_dims,
    )


def _piece(name: str, core: Any, dtype: str) -> Piece:
    raw = narrowed(core) if dtype == "BF16" else np.ascontiguousarray(core)
    if dtype != "BF16" and raw.dtype.itemsize != {"F64": 8, "F32": 4, "F16": 2}[dtype]:
        raise OptionError(complaint("the cores", f"be {dtype}", raw.dtype))
    little = raw.astype(raw.dtype.newbyteorder("<"), copy=False)

    def chunks() -> Iterator[bytes]:
        yield little.tobytes()

    return Piece(name, dtype, tuple(int(d) for d in core.shape), little.nbytes, chunks)
