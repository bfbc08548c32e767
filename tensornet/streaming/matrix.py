"""One tensor of a file: left as it is, with the reason, or made a chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensornet.decompose import mpo
from tensornet.errors import NonFiniteError, ToleranceError
from tensornet.network import MPO
from tensornet.streaming.element_type import (
    CODES,
    check_kept,
    prepared,
    raw,
    room,
    rounded_error,
    rounds,
)
from tensornet.streaming.options import Options
from tensornet.streaming.source import Entry
from tensornet.streaming.summary import Row
from tensornet.streaming.target import Piece


def treat(
    name: str, entry: Entry, options: Options, bonds: tuple[int, ...] | None = None
) -> tuple[Row, list[Piece]]:
    """Return what became of a tensor, and the cores to write if it was decomposed.

    ``bonds`` are those that a budget for the whole file gives it, if there is one.

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
        network, error = _chain(entry, options, bonds)
    except (NonFiniteError, ToleranceError) as problem:
        remedy = "Exclude it to leave it as it is; what is done is kept."
        raise type(problem)(f"{name}: {problem} {remedy}") from problem
    if network is None:
        return left(name, entry, "its budget is below the smallest chain"), []
    if network.n_params >= entry.n_elements and not options.keep_larger:
        return left(name, entry, f"no smaller as a chain ({network.n_params:,})"), []
    row = _row(name, entry, network, error, _stored_in(entry, options))
    return row, [
        _piece(*each, row.dtype) for each in zip(row.core_names, network.cores, strict=True)
    ]


def unfit(name: str, entry: Entry, options: Options) -> str:
    """Return why a tensor is not even tried, or an empty text."""
    if not options.selects(name):
        return "not selected"
    if entry.no_matrix:
        return entry.no_matrix
    if min(entry.shape) < options.min_size:
        return f"a side below {options.min_size}"
    return ""


def left(name: str, entry: Entry, reason: str) -> Row:
    """Return the row of a tensor that is copied as it is."""
    return Row(name, entry.dtype, entry.shape, entry.n_elements, entry.n_elements, reason)


def _chain(
    entry: Entry, options: Options, bonds: tuple[int, ...] | None
) -> tuple[MPO | None, float]:
    """Return the network and its relative error; None where the budget is too small for any."""
    layout, dtype = options.layout(entry.shape), _stored_in(entry, options)
    budget = options.budget(entry.n_elements)
    if budget is not None and budget < sum(layout.site_dims):
        return None, 0.0
    matrix = prepared(entry.matrix(), dtype)
    rtol, rounded = options.rtol, rounds(matrix, dtype)
    network = mpo(
        matrix,
        layout,
        max_bond=options.max_bond,
        rtol=room(rtol, layout.n_sites, dtype) if rtol is not None and rounded else rtol,
        max_params=budget,
        bonds=bonds,
        # One core of a half precision chain cannot hold the norm of every matrix; all can.
        gauge="symmetric" if dtype in ("F16", "BF16") else "central",
    )
    if rounded:  # here, not in mpo, and what that costs is measured
        error = rounded_error(network, matrix, dtype)
        check_kept(error, options.rtol, dtype)
        return network, error
    certificate = network.certificate
    return network, 0.0 if certificate is None else certificate.relative_error


def _stored_in(entry: Entry, options: Options) -> str:
    return entry.dtype if options.dtype is None else CODES[options.dtype]


def _row(name: str, entry: Entry, network: MPO, error: float, dtype: str) -> Row:
    return Row(
        name=name,
        dtype=dtype,
        shape=entry.shape,
        dense=entry.n_elements,
        stored=network.n_params,
        relative_error=error,
        row_dims=network.row_dims,
        col_dims=network.col_dims,
        bonds=network.bond_dims,
    )


def _piece(name: str, core: Any, dtype: str) -> Piece:
    stored = raw(core, dtype)
    little = stored.astype(stored.dtype.newbyteorder("<"), copy=False)

    def chunks() -> Iterator[bytes]:
        yield little.tobytes()

    return Piece(name, dtype, tuple(int(d) for d in core.shape), little.nbytes, chunks)
