"""Gram matrices and squared norms, in double precision without a copy of the data in double."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name, n_elements, work_dtype
from tensornet.typing import Array

# Elements that are brought to double precision at a time: few enough to stay in a cache, and
# on a GPU enough to keep it busy.
_BLOCK = {"cpu": 2**18}
_LARGE_BLOCK = 2**25


def square_norm(a: Array, backend: Backend) -> float:
    """Return the squared Frobenius norm, summed in double precision."""
    flat = backend.tl.reshape(a, (-1,))
    work = work_dtype(dtype_name(a))
    total = 0.0
    for block in _blocks(n_elements(a), 1, a, backend):
        wide = backend.cast(flat[block], work)
        total += float(backend.numbers((wide @ backend.conj(wide)).real))
    return total


def square_distance(a: Array, b: Array, factor: float, backend: Backend) -> float:
    """Return |a / factor - b|^2, summed in double precision; ``factor`` is a power of two."""
    work = work_dtype(dtype_name(b))
    one, two = (backend.tl.reshape(c, (-1,)) for c in (a, b))
    total = 0.0
    for block in _blocks(n_elements(a), 1, a, backend):
        lost = divided(backend.cast(one[block], work), factor) - backend.cast(two[block], work)
        total += float(backend.numbers((lost @ backend.conj(lost)).real))
    return total


def divided(a: Array, power: float) -> Array:
    """Return an array divided by a power of two, however small that is.

    In two steps, because the inverse of a subnormal number overflows, and so does the division
    of complex numbers by one.
    """
    if power == 1.0:
        return a
    half = math.ldexp(1.0, math.frexp(power)[1] // 2)
    return a * (1.0 / half) * (half / power)


def row_weights(a: Array, backend: Backend) -> np.ndarray[Any, Any]:
    """Return the squared norm of each row of a matrix, on the host, summed in double precision."""
    m, n = (int(d) for d in a.shape)
    work = work_dtype(dtype_name(a))
    total = np.zeros(m)
    for block in _blocks(n, m, a, backend):
        wide = backend.cast(a[:, block], work)
        total += backend.numbers(_row_squares(wide, backend))
    return total


def _row_squares(wide: Array, backend: Backend) -> Array:
    # numpy 2 sums without an array of all squares, whose pages would take longer than the sums.
    if backend.name == "numpy" and hasattr(np, "vecdot"):
        return np.vecdot(wide, wide).real
    return backend.tl.sum((wide * backend.conj(wide)).real, axis=1)


def gram_matrix(a: Array, backend: Backend) -> Array:
    """Return a a^H of a wide matrix (m, n) in double precision, whatever its own precision.

    Narrower data are widened a few columns at a time.
    """
    work = work_dtype(dtype_name(a))
    if dtype_name(a) == work:
        return _with_itself(a, backend)
    m, n = (int(d) for d in a.shape)
    parts = (backend.cast(a[:, block], work) for block in _blocks(n, m, a, backend))
    total = None
    for part in parts:
        product = _with_itself(part, backend)
        total = product if total is None else total + product
    return total


def _with_itself(a: Array, backend: Backend) -> Array:
    if backend.name == "pytorch" and backend.place(a) == "cpu" and not a.requires_grad:
        # numpy sees that both factors are the same array, and does half of the work.
        host = backend.numbers(a)
        return backend.like(host @ host.T.conj(), a)
    return a @ backend.adjoint(a)


def projected(vectors: Array, a: Array, backend: Backend, *, tall: bool = False) -> Array:
    """Return vectors^H a in the precision of the vectors, for a wide matrix (m, n).

    ``tall`` says that ``a`` is the transposed view of a tall matrix; so is then what comes back.
    """
    adjoint = backend.adjoint(vectors)

    def product(part: Array) -> Array:
        if tall:
            return backend.matrix_transpose(part) @ backend.matrix_transpose(adjoint)
        return adjoint @ part

    work = dtype_name(vectors)
    if dtype_name(a) == work:
        found = product(a)
    else:
        m, n = (int(d) for d in a.shape)
        blocks = _blocks(n, m, a, backend)
        parts = [product(backend.cast(a[:, block], work)) for block in blocks]
        found = backend.tl.concatenate(parts, axis=0 if tall else 1)
    return backend.matrix_transpose(found) if tall else found


def sampled(a: Array) -> Array:
    """Return 3 m / 2 evenly spaced columns of a wide matrix (m, n), or all that there are.

    The step is odd: in a folded matrix even steps would always meet the same last sites.
    """
    m, n = (int(d) for d in a.shape)
    count = m + (m + 1) // 2
    step = max((n // count - 1) // 2 * 2 + 1, 1)
    return a[:, : count * step : step]


def _blocks(n: int, width: int, a: Array, backend: Backend) -> Iterator[slice]:
    size = max(_BLOCK.get(backend.place(a), _LARGE_BLOCK) // width, 1)
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
