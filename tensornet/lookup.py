"""Rows, single entries and diagonals of a chain, without forming the matrix."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
from tensornet.backend import backend_of, dtype_name, library_of, load_backend, traced
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

    Two sweeps meet at the bond where that costs least. Row numbers that begin (or end) with the
    same digits share their work, and so do all that have the same digit at a site. torch
    differentiates through it.
    """
    backend = backend_of(*cores)
    wide = tuple(widened(core, backend) for core in cores)
    mirrored = tuple(backend.tl.transpose(core, (3, 1, 2, 0)) for core in wide[::-1])
    unique, places = np.unique(ids.ravel(), return_inverse=True)
    digits, n = site_indices(unique, layout.row_dims), len(cores)
    k = _meeting(wide, len(unique))
    left = _swept(wide[:k], digits[:k], wide[0], len(unique))
    right = _swept(mirrored[: n - k], digits[::-1][: n - k], wide[0], len(unique), mirror=True)
    rows = left.gathered(places.ravel()) @ backend.matrix_transpose(right.gathered(places.ravel()))
    flat = backend.tl.reshape(rows, (ids.size, math.prod(layout.col_dims)))[:, : layout.cols]
    flat = scaled_back(flat, left.exponent + right.exponent)
    with np.errstate(over="ignore", under="ignore"):
        return backend.tl.reshape(
            backend.cast(flat, dtype_name(cores[0])), (*ids.shape, layout.cols)
        )


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
        wide = tuple(widened(core, backend) for core in cores)
        found = backend.cast(contract_tensor(diagonal_cores(wide)), dtype_name(cores[0]))
        return backend.tl.reshape(found, (-1,))[:size]
    along = np.arange(size, dtype=np.int64)
    return matrix_entries(cores, layout, along, along)


def summed(a: Array) -> Array:
    """Return the sum of a vector as a 0-d array, accumulated in at least single precision."""
    backend = backend_of(a)
    return backend.tl.sum(widened(a, backend) if dtype_name(a) in HALF else a)


class _Swept(NamedTuple):
    """States (beginnings, columns, bond), the exponent taken out, and each number's beginning."""

    state: Array
    exponent: int
    beginning: Integers

    def gathered(self, places: Integers) -> Array:
        """Return the states of numbers, one after the other."""
        backend = backend_of(self.state)
        return self.state[positions(self.beginning[places], self.state, backend)]


def _swept(
    cores: Cores, digits: list[Integers], like: Array, count: int, *, mirror: bool = False
) -> _Swept:
    """Return the states of ``count`` numbers after some sites, computed once for equal digits.

    ``mirror`` says that the sites come in reversed order: new columns go before the others.
    """
    backend = backend_of(like)
    state = backend.tl.reshape(backend.identity(1, like), (1, 1, 1))
    exponent, beginning = 0, np.zeros(count, np.int64)
    for core, digit in zip(cores, digits, strict=True):
        i = int(core.shape[1])
        longer, beginning = np.unique(beginning * i + digit, return_inverse=True)
        state = _extended(state, core, longer // i, longer % i, mirror=mirror)
        state, exponent = steady(state, exponent, backend) if count else (state, 0)
    return _Swept(state, exponent, beginning.ravel())


def _extended(
    state: Array, core: Array, parents: Integers, digit: Integers, *, mirror: bool
) -> Array:
    """Return the states of beginnings that are one digit longer."""
    backend = backend_of(core)
    left, _, j, right = (int(d) for d in core.shape)
    done = int(state.shape[1])
    parts, order = [], []
    for d in np.unique(digit):
        chosen = np.flatnonzero(digit == d)
        above = backend.tl.reshape(state[positions(parents[chosen], state, backend)], (-1, left))
        factor = backend.tl.reshape(core[:, int(d)], (left, j * right))
        part = backend.tl.reshape(above @ factor, (len(chosen), done, j, right))
        part = backend.tl.transpose(part, (0, 2, 1, 3)) if mirror else part
        parts.append(backend.tl.reshape(part, (len(chosen), done * j, right)))
        order.append(chosen)
    if not parts:
        return backend.zeros((0, done * j, right), core)
    joined = backend.tl.concatenate(parts, axis=0)
    return joined[positions(np.argsort(np.concatenate(order)), joined, backend)]


def _meeting(cores: Cores, count: int) -> int:
    """Return how many sites the sweep from the left takes, for the fewest multiply-adds."""
    shapes = [tuple(int(d) for d in core.shape) for core in cores]
    forward = _costs(shapes, count)
    backward = _costs([shape[::-1] for shape in shapes[::-1]], count, rows=2)[::-1]
    cols = math.prod(shape[2] for shape in shapes)
    bonds = [*(shape[0] for shape in shapes), 1]
    totals = [a + b + count * cols * r for a, b, r in zip(forward, backward, bonds, strict=True)]
    return totals.index(min(totals))


def _costs(shapes: list[tuple[int, ...]], count: int, rows: int = 1) -> list[int]:
    costs, known, done = [0], 1, 1
    for shape in shapes:
        known = min(count, known * shape[rows])
        done *= shape[3 - rows]
        costs.append(costs[-1] + known * done * shape[0] * shape[3])
    return costs
