"""The range of numbers for stacks: scales and norms of many tensors, and cores stored narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, is_complex, work_dtype
from tensornet.errors import RangeError, complaint
from tensornet.typing import Array, Cores

Numbers = np.ndarray[Any, Any]


class NearOne(NamedTuple):
    """Tensors divided by powers of four so that their entries are near 1.

    ``weights`` are the squared norms of the divided tensors.
    """

    tensors: Array
    scales: Numbers
    weights: Numbers


def squared_norms(stack: Array, backend: Backend) -> Numbers:
    """Return the squared Frobenius norm of every array of a stack, on the host."""
    real = backend.tl.abs(stack) if is_complex(stack) else stack
    flat = backend.tl.reshape(real, (int(stack.shape[0]), -1))
    return np.asarray(backend.numbers(backend.tl.sum(flat * flat, axis=1)), dtype=float)


def near_one(stack: Array, backend: Backend) -> NearOne:
    """Return a stack in double precision with every array scaled as :func:`storage.scaled` does."""
    batch = int(stack.shape[0])
    flat = backend.tl.reshape(backend.tl.abs(stack), (batch, -1))
    largest = backend.numbers(backend.tl.max(flat, axis=1))
    scales = np.array([_power_of_four(float(x)) for x in largest])
    if (scales != 1.0).any():
        stack = divided(stack, scales, backend)
    return NearOne(stack, scales, squared_norms(stack, backend))


def divided(stack: Array, powers: Numbers, backend: Backend) -> Array:
    """Return every array of a stack divided by its power of two, however small that is."""
    # In two steps, because the inverse of a subnormal number overflows.
    halves = np.array([math.ldexp(1.0, math.frexp(p)[1] // 2) for p in powers])
    axes = (-1, *(1,) * (stack.ndim - 1))
    for factor in (1.0 / halves, halves / powers):
        stack = stack * backend.like(factor.reshape(axes), stack)
    return stack


def _power_of_four(largest: float) -> float:
    if largest == 0.0:
        return 1.0
    return math.ldexp(1.0, 2 * ((math.frexp(largest)[1] - 1) // 2))


def narrowed_stack(
    cores: Cores, dtype: str, backend: Backend, factors: Sequence[Numbers | None]
) -> tuple[Cores, Numbers]:
    """Return cores (batch, left, site, right) in an element type, and the storage errors.

    Each core is multiplied by its factors, one per matrix, where there are any; otherwise as
    :func:`tensornet.storage.narrowed`, with one error per matrix.

    Raises
    ------
    RangeError
        If a core has entries beyond the range of the element type.
    """
    stored, squares = [], np.zeros(int(cores[0].shape[0]))
    for k, (core, factor) in enumerate(zip(cores, factors, strict=True)):
        full = core if factor is None else core * backend.like(factor[:, None, None, None], core)
        with np.errstate(over="ignore"):  # looked for in the next line
            small = backend.cast(full, dtype)
        if not backend.all_finite(small):
            remedy = "Another gauge spreads the norm differently; else use a wider element type."
            raise RangeError(
                complaint(f"core {k}", f"fit the range of {dtype}", "larger entries", remedy)
            )
        if dtype != work_dtype(dtype):
            back = backend.cast(small, work_dtype(dtype))
            back = back if factor is None else divided(back, factor, backend)
            weights = squared_norms(core, backend)
            squares += squared_norms(back - core, backend) / np.where(weights > 0, weights, 1.0)
        stored.append(backend.own(small))
    return tuple(stored), np.sqrt(squares)


def filled_up(cores: Cores, bonds: tuple[int, ...], center: int | None, backend: Backend) -> Cores:
    """Return cores (left, site, right) of the same network with n + 1 larger bonds.

    Isometric cores, those left and right of ``center``, get further orthonormal vectors, which
    meet zeros in the center; without a center everything new is zero.
    """
    if (*(int(core.shape[0]) for core in cores), 1) == bonds:
        return cores
    wide = []
    for k, core in enumerate(cores):
        left, site, right = (int(d) for d in core.shape)
        host = backend.numbers(backend.cast(core, work_dtype(dtype_name(core))))
        new = np.zeros((bonds[k], site, bonds[k + 1]), dtype=host.dtype)
        new[:left, :, :right] = host
        if center is not None and k < center:
            new = _with_columns(new.reshape(-1, bonds[k + 1]), right).reshape(new.shape)
        elif center is not None and k > center:
            flat = new.reshape(bonds[k], -1).conj().T
            new = _with_columns(flat, left).conj().T.reshape(new.shape)
        wide.append(backend.own(backend.cast(backend.like(new, core), dtype_name(core))))
    return tuple(wide)


def _with_columns(a: Numbers, known: int) -> Numbers:
    """Return a matrix whose columns after the first ``known``, orthonormal ones are so too."""
    missing = a.shape[1] - known
    if missing == 0:
        return a
    kept = a[:, :known]
    # Any vectors do: what is left of random ones beside the known ones, projected twice because
    # once leaves rounding errors in their direction.
    new = np.random.default_rng(0).normal(size=(len(a), missing)).astype(a.dtype)
    for _ in range(2):
        new = np.linalg.qr(new - kept @ (kept.conj().T @ new))[0]
    return np.concatenate([kept, new], axis=1)
