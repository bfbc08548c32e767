"""Rows, single entries and diagonals of a chain, without forming the matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensornet.algebra import (
    HALF,
    accumulated,
    diagonal_cores,
    positions,
    scaled_back,
    steady,
    widened,
)
from tensornet.backend import Backend, backend_of, dtype_name, library_of, load_backend, traced
from tensornet.contract.chain import contract_tensor
from tensornet.errors import ArrayTypeError, DTypeError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.typing import Array, Cores

Integers = np.ndarray[Any, Any]
# Elements of gathered core slices that are held at a time.
_CHUNK = 2**22


def indices(argument: str, given: object, size: int) -> Integers:
    """Return integers of any shape on the host, all of them at least 0 and below ``size``.

    Raises
    ------
    DTypeError
        If they are no integers.
    ArrayTypeError
        If jax is tracing them: they must have values.
    ShapeError
        If one is out of range; it is named.
    """
    if traced(given):
        remedy = "Look up outside of the traced function."
        raise ArrayTypeError(complaint(argument, "have values", "an array that is traced", remedy))
    if hasattr(given, "dtype") and not isinstance(given, np.generic):
        library = library_of(given, argument)
        found = np.asarray(load_backend(library).tl.to_numpy(given))
    else:
        found = np.asarray(given)
    found = found.astype(np.int64) if found.size == 0 and isinstance(given, list) else found
    if found.dtype.kind not in "iu":
        remedy = "A slice of the matrix: m.to_matrix()[...]."
        text = f"{found.dtype}" if found.dtype != object else type(given).__name__
        raise DTypeError(complaint(argument, "be integers", text, remedy))
    wrong = found[(found < 0) | (found >= size)] if found.size else found
    if wrong.size:
        raise ShapeError(complaint(argument, f"be 0 to {size - 1}", int(wrong.flat[0])))
    return found.astype(np.int64)


def together(argument: str, places: list[Integers]) -> list[Integers]:
    """Return index arrays broadcast to one shape; a ShapeError says where they do not fit."""
    try:
        return list(np.broadcast_arrays(*places))
    except ValueError:
        given = " and ".join(str(place.shape) for place in places)
        expected = "have indices that broadcast together"
        raise ShapeError(complaint(argument, expected, given)) from None


def rows_of(cores: Cores, layout: MatrixLayout, ids: Integers) -> Array:
    """Return the rows with the given numbers, shape (*ids.shape, cols).

    Sweeps over the sites; row numbers that begin with the same digits share their work, and so
    do all that have the same digit at a site. torch differentiates through it.
    """
    backend = backend_of(*cores)
    unique, places = np.unique(ids.ravel(), return_inverse=True)
    wide, exponent = tuple(widened(core, backend) for core in cores), 0
    state = backend.tl.reshape(backend.identity(1, wide[0]), (1, 1, 1))
    rest, prefixes = math.prod(layout.row_dims), np.zeros(1, np.int64)
    for core, dim in zip(wide, layout.row_dims, strict=True):
        rest //= dim
        longer = np.unique(unique // rest)
        parents = np.searchsorted(prefixes, longer // dim)
        state, prefixes = _extended(state, core, parents, longer % dim, backend), longer
        state, exponent = steady(state, exponent, backend) if ids.size else (state, 0)
    flat = backend.tl.reshape(
        scaled_back(state, exponent), (len(unique), math.prod(layout.col_dims))
    )
    found = flat[positions(places.ravel(), flat, backend)][:, : layout.cols]
    with np.errstate(over="ignore", under="ignore"):
        found = backend.cast(found, dtype_name(cores[0]))
    return backend.tl.reshape(found, (*ids.shape, layout.cols))


def entries_of(cores: Cores, places: list[Integers]) -> Array:
    """Return entries of a chain (left, site, right): ``places`` has an index array per site."""
    backend = backend_of(*cores)
    shape, n = places[0].shape, places[0].size
    wide = [backend.tl.transpose(accumulated(core, backend), (1, 0, 2)) for core in cores]
    largest = max(int(core.shape[1]) * int(core.shape[2]) for core in wide)
    step = max(_CHUNK // largest, 1)
    parts = []
    for start in range(0, max(n, 1), step):
        state, exponent = None, 0
        for core, place in zip(wide, places, strict=True):
            chosen = core[positions(place.ravel()[start : start + step], core, backend)]
            state = chosen if state is None else state @ chosen
            state, exponent = steady(state, exponent, backend) if n else (state, 0)
        parts.append(scaled_back(state, exponent))
    found = parts[0] if len(parts) == 1 else backend.tl.concatenate(parts, axis=0)
    with np.errstate(over="ignore", under="ignore"):
        result = backend.tl.reshape(backend.cast(found, dtype_name(cores[0])), shape)
    return result[()] if shape == () else result


def site_indices(numbers: Integers, dims: tuple[int, ...]) -> list[Integers]:
    """Return the digits of numbers, an array for each site."""
    found = []
    for d in reversed(dims):
        found.append(numbers % d)
        numbers = numbers // d
    return found[::-1]


def matrix_entries(cores: Cores, layout: MatrixLayout, i: Integers, j: Integers) -> Array:
    """Return the entries at rows ``i`` and columns ``j``, arrays of one shape."""
    backend = backend_of(*cores)
    rows, cols = site_indices(i, layout.row_dims), site_indices(j, layout.col_dims)
    sites = [a * d + b for a, b, d in zip(rows, cols, layout.col_dims, strict=True)]
    flat = tuple(
        backend.tl.reshape(core, (int(core.shape[0]), -1, int(core.shape[3]))) for core in cores
    )
    return entries_of(flat, sites)


def diagonal_of(cores: Cores, layout: MatrixLayout) -> Array:
    """Return the diagonal, length min(rows, cols)."""
    size = min(layout.shape)
    if layout.row_dims == layout.col_dims:
        backend = backend_of(*cores)
        return backend.tl.reshape(contract_tensor(diagonal_cores(cores)), (-1,))[:size]
    along = np.arange(size, dtype=np.int64)
    return matrix_entries(cores, layout, along, along)


def summed(a: Array) -> Array:
    """Return the sum of a vector as a 0-d array, accumulated in at least single precision."""
    backend = backend_of(a)
    return backend.tl.sum(widened(a, backend) if dtype_name(a) in HALF else a)


def _extended(
    state: Array, core: Array, parents: Integers, digit: Integers, backend: Backend
) -> Array:
    """Return the states (prefixes, columns so far, bond) of prefixes that are one digit longer."""
    left, _, j, right = (int(d) for d in core.shape)
    done = int(state.shape[1])
    parts, order = [], []
    for d in np.unique(digit):
        chosen = np.flatnonzero(digit == d)
        above = backend.tl.reshape(state[positions(parents[chosen], state, backend)], (-1, left))
        factor = backend.tl.reshape(core[:, int(d)], (left, j * right))
        parts.append(backend.tl.reshape(above @ factor, (len(chosen), done * j, right)))
        order.append(chosen)
    if not parts:
        return backend.zeros((0, done * j, right), core)
    joined = backend.tl.concatenate(parts, axis=0)
    return joined[positions(np.argsort(np.concatenate(order)), joined, backend)]
