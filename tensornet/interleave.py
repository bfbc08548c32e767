"""Rows and columns interleaved site by site, and back, with as few and as long copies as can be.

The entries that share all factors but the last column's lie side by side before and after: a
numpy array is moved in runs of them, which is several times as fast as one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name
from tensornet.typing import Array


def fold(matrix: Array, row_dims: tuple[int, ...], col_dims: tuple[int, ...]) -> Array:
    """Return a matrix as the tensor (i1*j1, ..., in*jn), padded with zeros to that size.

    On the host, always in memory of its own.

    Parameters
    ----------
    matrix : Array, shape (rows, cols)
        Not larger than the products of the factors.
    row_dims, col_dims : tuple of int
        Factors of rows and columns, most significant first.
    """
    if isinstance(matrix, np.ndarray):
        return _fold_host(matrix, row_dims, col_dims)
    backend, n = backend_of(matrix), len(row_dims)
    if _readable(matrix, backend):
        return backend.like(_fold_host(backend.numbers(matrix), row_dims, col_dims), matrix)
    tl = backend.tl
    for axis, size in enumerate((math.prod(row_dims), math.prod(col_dims))):
        extra = list(matrix.shape)
        extra[axis] = size - int(matrix.shape[axis])
        if extra[axis]:
            zeros = backend.zeros(tuple(extra), matrix)
            matrix = tl.concatenate([matrix, zeros], axis=axis)
    moved = tl.transpose(tl.reshape(matrix, (*row_dims, *col_dims)), _pairs(n))
    return tl.reshape(moved, _sites(row_dims, col_dims))


def fold_into(
    out: np.ndarray[Any, Any],
    matrix: np.ndarray[Any, Any],
    row_dims: tuple[int, ...],
    col_dims: tuple[int, ...],
) -> None:
    """Write a contiguous matrix of full size, as the tensor that :func:`fold` makes, to ``out``."""
    pairs, cut = _pairs(len(row_dims)), (*row_dims, *col_dims[:-1], 1)
    there = _in_runs(out.reshape(-1, col_dims[-1])).reshape([cut[axis] for axis in pairs])
    there[...] = _in_runs(matrix.reshape(-1, col_dims[-1])).reshape(cut).transpose(pairs)


def unfold(tensor: Array, row_dims: tuple[int, ...], col_dims: tuple[int, ...]) -> Array:
    """Return a tensor (i1*j1, ..., in*jn) as the matrix, with its padding."""
    n = len(row_dims)
    size = (math.prod(row_dims), math.prod(col_dims))
    split = [d for pair in zip(row_dims, col_dims, strict=True) for d in pair]
    axes = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    if isinstance(tensor, np.ndarray) and tensor.flags.c_contiguous:
        runs = _in_runs(tensor.reshape(-1, split[-1])).reshape([*split[:-1], 1])
        return np.ascontiguousarray(runs.transpose(axes)).view(tensor.dtype).reshape(size)
    tl = backend_of(tensor).tl
    return tl.reshape(tl.transpose(tl.reshape(tensor, split), axes), size)


def fold_stack(
    matrices: Array, row_dims: tuple[int, ...], col_dims: tuple[int, ...], backend: Backend
) -> Array:
    """Return matrices (batch, rows, cols) as tensors (batch, i1*j1, ..., in*jn), zero-padded."""
    n, tl = len(row_dims), backend.tl
    for axis, full in enumerate((math.prod(row_dims), math.prod(col_dims)), 1):
        size = [int(d) for d in matrices.shape]
        if full > size[axis]:
            size[axis] = full - size[axis]
            matrices = tl.concatenate([matrices, backend.zeros(tuple(size), matrices)], axis=axis)
    pairs = [1 + axis for k in range(n) for axis in (k, n + k)]
    parts = tl.reshape(matrices, (-1, *row_dims, *col_dims))
    return tl.reshape(tl.transpose(parts, (0, *pairs)), (-1, *_sites(row_dims, col_dims)))


def unfold_stack(
    tensors: Array, row_dims: tuple[int, ...], col_dims: tuple[int, ...], backend: Backend
) -> Array:
    """Return tensors (batch, ...) of as many elements as matrices, with their padding."""
    n, tl = len(row_dims), backend.tl
    split = [d for pair in zip(row_dims, col_dims, strict=True) for d in pair]
    axes = (0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2))
    turned = tl.transpose(tl.reshape(tensors, (-1, *split)), axes)
    return tl.reshape(turned, (-1, math.prod(row_dims), math.prod(col_dims)))


def _readable(matrix: Array, backend: Backend) -> bool:
    """Return whether numpy can read the memory of a torch tensor, and no gradient is lost."""
    plain = backend.name == "pytorch" and not matrix.requires_grad
    return plain and backend.place(matrix) == "cpu" and dtype_name(matrix) != "bfloat16"


def _fold_host(
    matrix: np.ndarray[Any, Any], row_dims: tuple[int, ...], col_dims: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    rows, cols = matrix.shape
    if (rows, cols) == (math.prod(row_dims), math.prod(col_dims)):
        tensor = _interleaved(matrix, row_dims, col_dims).reshape(_sites(row_dims, col_dims))
        return tensor.copy() if np.may_share_memory(tensor, matrix) else tensor
    # Slab by slab: a padded copy of the whole would double the memory.
    out = np.zeros((row_dims[0], math.prod(row_dims[1:]) * math.prod(col_dims)), matrix.dtype)
    height = math.prod(row_dims[1:])
    slab = np.zeros((height, math.prod(col_dims)), matrix.dtype)
    for k in range(-(-rows // height)):
        part = matrix[k * height : (k + 1) * height]
        slab[: len(part), :cols] = part
        slab[len(part) :] = 0
        out[k] = _interleaved(slab, (1, *row_dims[1:]), col_dims).reshape(-1)
    return out.reshape(_sites(row_dims, col_dims))


def _interleaved(
    matrix: np.ndarray[Any, Any], row_dims: tuple[int, ...], col_dims: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    pairs = _pairs(len(row_dims))
    if not matrix.flags.c_contiguous:
        return matrix.reshape(*row_dims, *col_dims).transpose(pairs)
    runs = _in_runs(matrix.reshape(-1, col_dims[-1])).reshape(*row_dims, *col_dims[:-1], 1)
    return np.ascontiguousarray(runs.transpose(pairs)).view(matrix.dtype)


def _in_runs(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return each row of a contiguous matrix as one opaque item."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))


def _pairs(n: int) -> list[int]:
    return [axis for k in range(n) for axis in (k, n + k)]


def _sites(row_dims: tuple[int, ...], col_dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i * j for i, j in zip(row_dims, col_dims, strict=True))
