"""The range of numbers: norms, scales near one, and cores stored in a narrow element type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name, work_dtype, working
from tensornet.errors import RangeError, complaint
from tensornet.gram import divided, square_distance, square_norm
from tensornet.typing import Array, Cores

_CARRIERS = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "complex64": "complex64",
}
# Squared norms for which no sum of squares leaves the range of single precision, and no square
# that matters falls below it.
_SQUARES = (2.0**-40, 2.0**80)


def in_double(cores: Cores) -> tuple[Backend, Cores]:
    """Return where double precision is computed, and the cores there, detached from any graph."""
    backend = backend_of(*cores)
    work = work_dtype(dtype_name(cores[0]))
    plain = (c.detach() if backend.name == "pytorch" else c for c in cores)
    there = [working(c, backend) for c in plain]
    return there[0][0], tuple(where.cast(c, work) for where, c in there)


def weight(a: Array, backend: Backend) -> float:
    """Return the squared Frobenius norm."""
    return square_norm(a, backend)


def scaled(a: Array, backend: Backend) -> tuple[float, Array]:
    """Return a power of four and the array divided by it, so that its entries are near 1.

    This keeps squares of very large or small data inside the range of numbers; a power of
    four, and its square root, multiply without rounding.
    """
    largest = float(backend.numbers(backend.tl.max(backend.tl.abs(a))))
    if largest == 0.0:
        return 1.0, a
    scale = math.ldexp(1.0, 2 * ((math.frexp(largest)[1] - 1) // 2))
    return scale, divided(a, scale)


def carried(a: Array, backend: Backend) -> tuple[float, Array, float]:
    """Return a power of four, the array divided by it, and the squared norm of the quotient.

    The quotient is in the precision to work in: data of half and single precision stay in
    single precision, and are divided only where their squares could leave its range.
    """
    dtype = dtype_name(a)
    if dtype not in _CARRIERS:
        scale, near_one = scaled(backend.cast(a, work_dtype(dtype)), backend)
        return scale, near_one, square_norm(near_one, backend)
    a = backend.cast(a, _CARRIERS[dtype])
    total = square_norm(a, backend)
    if total == 0.0 or _SQUARES[0] < total < _SQUARES[1]:
        return 1.0, a, total
    scale, near_one = scaled(a, backend)
    return scale, near_one, total / scale / scale


def narrowed(
    cores: Cores,
    dtype: str,
    backend: Backend,
    factors: Sequence[float] = (),
    *,
    fresh: bool = False,
) -> tuple[Cores, float]:
    """Return the cores in an element type, each owning its memory, and the storage error.

    Each core is multiplied by its factor, if factors are given. The error is relative and an
    estimate: core by core the relative rounding error, added in squares. It holds in every
    gauge because rounding errs by the same share of every entry. ``fresh`` cores share no
    memory with anything that others hold: they need no copy.

    Raises
    ------
    RangeError
        If a core has entries beyond the range of the element type.
    """
    stored, squares = [], 0.0
    for k, (given, factor) in enumerate(zip(cores, factors or (1.0,) * len(cores), strict=True)):
        if factor == 1.0 and dtype_name(given) == dtype:
            stored.append(given if fresh and _plain(given) else backend.own(given))
            continue
        core = backend.cast(given, work_dtype(dtype))
        with np.errstate(over="ignore"):  # looked for in the next line
            small = backend.cast(core if factor == 1.0 else core * factor, dtype)
        if not backend.all_finite(small):
            remedy = "Another gauge spreads the norm differently; else use a wider element type."
            raise RangeError(
                complaint(f"core {k}", f"fit the range of {dtype}", "larger entries", remedy)
            )
        lost = square_distance(small, core, factor, backend)
        squares += lost / (weight(core, backend) or 1.0)
        # Another type or a factor made new memory: nobody else holds it.
        stored.append(small if _plain(small) else backend.own(small))
    return tuple(stored), math.sqrt(squares)


def _plain(a: Array) -> bool:
    """Tell whether an array is in one piece and has no history, so that it can be kept as it is."""
    if isinstance(a, np.ndarray):
        return a.flags.c_contiguous and type(a) is np.ndarray
    return backend_of(a).name == "pytorch" and a.is_contiguous() and not a.requires_grad
