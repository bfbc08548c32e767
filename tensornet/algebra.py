"""Sums, products and contractions of chains, on the cores alone and in torch's graph.

Cores are (left, site, right) unless said otherwise. Half precision is computed in float32.
Source: Oseledets 2011, section 4 (addition, multiplication, scalar products).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name, traced
from tensornet.contract.chain import fuse
from tensornet.errors import (
    ArrayTypeError,
    DTypeError,
    NonFiniteError,
    OptionError,
    RangeError,
    complaint,
)
from tensornet.layout import MatrixLayout
from tensornet.padding import mask_cores
from tensornet.storage import scaled
from tensornet.typing import Array, Cores

HALF = ("float16", "bfloat16")
_COMPLEX = {"float32": "complex64", "float64": "complex128"}


def add(a: Cores, b: Cores) -> Cores:
    """Return cores of the sum: block-diagonal, so that bonds add. Any number of site axes."""
    backend, n = backend_of(*a, *b), len(a)
    if n == 1:
        return stored((widened(a[0], backend) + widened(b[0], backend),), a[0], backend)
    tl, last = backend.tl, a[0].ndim - 1
    cores = [tl.concatenate([a[0], b[0]], axis=last)]
    for one, two in zip(a[1:-1], b[1:-1], strict=True):
        above = tl.concatenate([one, _zeros(one, two, backend)], axis=last)
        below = tl.concatenate([_zeros(two, one, backend), two], axis=last)
        cores.append(tl.concatenate([above, below], axis=0))
    return (*cores, tl.concatenate([a[-1], b[-1]], axis=0))


def hadamard(a: Cores, b: Cores) -> Cores:
    """Return cores of the entrywise product: bonds multiply. Any number of site axes."""
    backend = backend_of(*a, *b)
    cores = []
    for one, two in zip(a, b, strict=True):
        dims = tuple(int(d) for d in one.shape[1:-1])
        x, y = widened(_flat(one, backend), backend), widened(_flat(two, backend), backend)
        with np.errstate(over="ignore", invalid="ignore"):  # looked for by stored
            product = x[:, None, :, :, None] * y[None, :, :, None, :]
        left, right = x.shape[0] * y.shape[0], x.shape[2] * y.shape[2]
        cores.append(backend.tl.reshape(product, (int(left), *dims, int(right))))
    return stored(tuple(cores), a[0], backend)


def multiply(a: Cores, b: Cores) -> Cores:
    """Return the matrix product of cores (left, i, j, right) and (left, j, k, right).

    Bonds multiply.
    """
    backend = backend_of(*a, *b)
    tl, cores = backend.tl, []
    for one, two in zip(a, b, strict=True):
        left, i, j, right = (int(d) for d in one.shape)
        left2, _, k, right2 = (int(d) for d in two.shape)
        x = tl.reshape(tl.transpose(widened(one, backend), (0, 1, 3, 2)), (left * i * right, j))
        y = tl.reshape(tl.transpose(widened(two, backend), (1, 0, 2, 3)), (j, -1))
        with np.errstate(over="ignore", invalid="ignore"):  # looked for by stored
            product = tl.reshape(x @ y, (left, i, right, left2, k, right2))
        product = tl.transpose(product, (0, 3, 1, 4, 2, 5))
        cores.append(tl.reshape(product, (left * left2, i, k, right * right2)))
    return stored(tuple(cores), a[0], backend)


def masked(cores: Cores, layout: MatrixLayout, *, rows: bool = True, cols: bool = True) -> Cores:
    """Return cores (left, i, j, right) with the padding of rows or columns, or both, made zero.

    Bonds grow by up to 2 for each padded side; what is not padded stays as it is.
    """
    sides = ((rows, layout.rows, layout.row_dims), (cols, layout.cols, layout.col_dims))
    for axis, (wanted, size, dims) in enumerate(sides):
        if wanted and size != math.prod(dims):
            others = layout.col_dims if axis == 0 else layout.row_dims
            mask = [
                np.broadcast_to(
                    np.expand_dims(m, 2 - axis),
                    (m.shape[0], d, o, m.shape[2]) if axis == 0 else (m.shape[0], o, d, m.shape[2]),
                )
                for m, d, o in zip(mask_cores(size, dims), dims, others, strict=True)
            ]
            cores = hadamard(cores, constants(mask, cores[0]))
    return cores


def constants(values: Sequence[np.ndarray[Any, Any]], like: Array) -> Cores:
    """Return numpy arrays in the library, element type and on the device of ``like``."""
    backend = backend_of(like)
    return tuple(
        backend.cast(backend.like(np.ascontiguousarray(v), like), dtype_name(like)) for v in values
    )


def inner(a: Cores, b: Cores) -> Array:
    """Return the sum of conj(a) * b as a 0-d array; infinity beyond the range of numbers."""
    backend = backend_of(*a, *b)
    state, exponent = None, 0
    for one, two in zip(a, b, strict=True):
        x = backend.conj(accumulated(_flat(one, backend), backend))
        y = accumulated(_flat(two, backend), backend)
        state = backend.identity(1, y) if state is None else state
        site, right = (int(d) for d in y.shape[1:])
        step = backend.tl.reshape(state @ backend.tl.reshape(y, (-1, site * right)), (-1, right))
        columns = backend.tl.reshape(x, (-1, int(x.shape[2])))
        state, exponent = steady(backend.matrix_transpose(columns) @ step, exponent, backend)
    return _scalar(state, exponent, a[0], backend)


def total(cores: Cores) -> Array:
    """Return the sum of all entries as a 0-d array; infinity beyond the range of numbers."""
    backend = backend_of(*cores)
    state, exponent = None, 0
    for core in cores:
        wide = accumulated(_flat(core, backend), backend)
        state = backend.identity(1, wide) if state is None else state
        state, exponent = steady(state @ backend.tl.sum(wide, axis=1), exponent, backend)
    return _scalar(state, exponent, cores[0], backend)


def trace(cores: Cores, layout: MatrixLayout) -> Array:
    """Return the sum of the diagonal of a chain with equal row and column factors."""
    chain, size = diagonal_cores(cores), min(layout.shape)
    if size != math.prod(layout.row_dims):
        chain = hadamard(chain, constants(mask_cores(size, layout.row_dims), cores[0]))
    return total(chain)


def diagonal_cores(cores: Cores) -> Cores:
    """Return the chain (left, i, right) of the diagonal of a chain (left, i, i, right)."""
    backend = backend_of(*cores)
    indices = [positions(np.arange(int(core.shape[1])), core, backend) for core in cores]
    return tuple(core[:, index, index, :] for core, index in zip(cores, indices, strict=True))


def positions(values: np.ndarray[Any, Any], like: Array, backend: Backend) -> Array:
    """Return integers on the device of ``like``, in a width that its library indexes with."""
    return backend.like(values.astype(np.int32 if backend.name == "jax" else np.int64), like)


def number(argument: str, c: object, like: Array) -> Any:
    """Return a scalar as a Python number, or as an array where torch must differentiate it.

    NotImplemented if it is neither a number nor an array.

    Raises
    ------
    ArrayTypeError
        If it is an array of more than one number.
    NonFiniteError
        If it is NaN or infinite.
    DTypeError
        If it is complex and the network is in half precision.
    OptionError
        If it is a boolean.
    """
    shape = getattr(c, "shape", None)
    if shape is not None and tuple(shape) != ():
        remedy = "Entrywise products are m.hadamard(m2), matrix products m @ m2."
        given = f"{type(c).__name__} of shape {tuple(shape)}"
        raise ArrayTypeError(complaint(argument, "be one number", given, remedy))
    value = c.item() if hasattr(c, "item") else c
    if isinstance(value, bool):
        raise OptionError(complaint(argument, "be a number", repr(value)))
    if not isinstance(value, numbers.Complex):
        return NotImplemented
    is_complex = not isinstance(value, numbers.Real)
    plain: complex
    try:
        plain = float(value) if isinstance(value, numbers.Real) else complex(value)
    except OverflowError:
        plain = math.inf
    if not (math.isfinite(plain.real) and math.isfinite(plain.imag)):
        raise NonFiniteError(complaint(argument, "be finite", plain))
    if is_complex and dtype_name(like) in HALF:
        remedy = "Convert the network first: m.astype('float32')."
        given = f"a complex number with a {dtype_name(like)} network"
        raise DTypeError(complaint(argument, "be real in half precision", given, remedy))
    # A number in torch's graph stays there.
    return c if getattr(c, "requires_grad", False) and hasattr(like, "requires_grad") else plain


def scale(cores: Cores, c: Any, site: int, *, inverse: bool = False) -> Cores:
    """Return cores of the network times (or divided by) a number, which goes into core ``site``.

    ``c`` comes from :func:`number`. A complex one makes a real network complex; zero gives a
    zero network whose bonds are 1.
    """
    backend, dtype = backend_of(*cores), dtype_name(cores[0])
    is_array = hasattr(c, "dtype")
    if (is_array and c.dtype.is_complex) or isinstance(c, complex):
        dtype = _COMPLEX.get(dtype, dtype)
    cores = tuple(backend.copy(backend.cast(core, dtype)) for core in cores)
    if not is_array and c == 0:
        return tuple(backend.zeros((1, *core.shape[1:-1], 1), core) for core in cores)
    core = widened(cores[site], backend)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # looked for by stored
        for part in [c] if is_array else _parts(c):
            core = core / part if inverse else core * part
    (changed,) = stored((core,), cores[0], backend)
    return (*cores[:site], changed, *cores[site + 1 :])


def stored(cores: Cores, like: Array, backend: Backend) -> Cores:
    """Return cores in the element type of ``like``, each with memory of its own.

    Raises
    ------
    RangeError
        If a core left the range of the element type.
    """
    dtype = dtype_name(like)
    kept = tuple(backend.copy(backend.cast(core, dtype)) for core in cores)
    for k, core in enumerate(kept):
        if not traced(core) and not backend.all_finite(core):
            remedy = "Scale the networks down first, or use a wider element type."
            raise RangeError(
                complaint(f"core {k}", f"fit the range of {dtype}", "larger entries", remedy)
            )
    return kept


def steady(state: Array, exponent: int, backend: Backend) -> tuple[Array, int]:
    """Return a state near one and the binary exponent that was taken out of it."""
    if traced(state):
        return state, exponent
    size, near_one = scaled(state, backend)
    return near_one, exponent + math.frexp(size)[1] - 1


def scaled_back(value: Array, exponent: int) -> Array:
    """Return an array times a power of two, infinity beyond the range of numbers."""
    left = max(min(exponent, 4400), -4400)  # all beyond is infinity or zero
    with np.errstate(over="ignore", under="ignore"):
        while left:
            step = max(min(left, 100), -100)
            value, left = value * 2.0**step, left - step
    return value


def widened(a: Array, backend: Backend) -> Array:
    """Return an array of half precision in float32, others as they are."""
    return backend.cast(a, "float32") if dtype_name(a) in HALF else a


def accumulated(a: Array, backend: Backend) -> Array:
    """Return an array in the precision that its sums are computed in, within the graph.

    That is double precision, but for jax, which has it only where the user turned it on.
    """
    if backend.name == "jax":
        return widened(a, backend)
    return backend.cast(a, "complex128" if dtype_name(a).startswith("complex") else "float64")


def _parts(c: complex) -> tuple[complex, complex]:
    # Two factors within the range of a narrow type, even where their product is not; the first
    # is a power of two, so nothing is rounded twice.
    power = math.ldexp(1.0, math.frexp(abs(c))[1] // 2)
    return power, c / power


def _flat(core: Array, backend: Backend) -> Array:
    return fuse(core, backend) if core.ndim == 4 else core


def _zeros(rows_of: Array, cols_of: Array, backend: Backend) -> Array:
    shape = (*(int(d) for d in rows_of.shape[:-1]), int(cols_of.shape[-1]))
    return backend.zeros(shape, rows_of)


def _scalar(state: Array, exponent: int, like: Array, backend: Backend) -> Array:
    dtype = dtype_name(like)
    value = scaled_back(state[0, 0], exponent)
    with np.errstate(over="ignore", under="ignore"):
        return backend.cast(value, "float32" if dtype in HALF else dtype)[()]
