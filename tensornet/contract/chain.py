"""Contraction of a chain of cores to a tensor or matrix.

Everything here is plain products and reshapes, so torch differentiates through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name, traced
from tensornet.checks import describe
from tensornet.errors import BondError, DTypeError, RangeError, ShapeError, complaint
from tensornet.layout import MAX_SITES, MatrixLayout
from tensornet.typing import Array, Cores

_HALF = ("float16", "bfloat16")
_MOST_DIGITS = 308.0  # of float64


def contract_tensor(cores: Sequence[Array]) -> Array:
    """Return the tensor (p1, ..., pn) of a chain of cores (left, site, right).

    Neighbouring cores are joined in the order with the fewest multiply-adds. Half precision is
    contracted in float32 and rounded once at the end. torch differentiates through it.

    Parameters
    ----------
    cores : sequence of Array
        Core k has shape (left, p_k, right); neighbours agree, the outer bonds are 1.

    Returns
    -------
    Array, shape (p_1, ..., p_n)
        In the cores' library and element type; never a view of a core.

    Raises
    ------
    ShapeError, BondError, DTypeError, ArrayTypeError
        If the cores form no chain, or there are more than 64.
    RangeError
        If the result does not fit half precision, where no gradient is recorded.

    Examples
    --------
    >>> import numpy as np
    >>> contract_tensor([np.ones((1, 2, 3)), np.ones((3, 2, 1))]).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    backend = _checked(cores, 3)
    wide = tuple(_widen(core, backend) for core in cores)
    sites = tuple(int(c.shape[1]) for c in wide)
    if len(sites) > 2 * MAX_SITES:
        expected = f"have at most {2 * MAX_SITES} sites where the tensor is formed"
        raise ShapeError(complaint("cores", expected, len(sites)))
    if len(wide) == 1:
        return backend.copy(backend.tl.reshape(cores[0], sites))
    bonds = (*(int(c.shape[0]) for c in wide), 1)
    joined = _join(wide, join_order(sites, bonds).split, 0, len(wide), backend)
    return rounded("the tensor", backend.tl.reshape(joined, sites), cores, backend)


def contract_matrix(cores: Sequence[Array], layout: MatrixLayout) -> Array:
    """Return the matrix of a chain of cores in a layout; torch differentiates through it.

    Parameters
    ----------
    cores : sequence of Array
        Core k has shape (left, i_k, j_k, right); neighbours agree, the outer bonds are 1.
    layout : MatrixLayout
        Its factors are those of the cores; its true shape is what comes back.

    Returns
    -------
    Array, shape (rows, cols)
        In the cores' library and element type; padding is cut off.

    Raises
    ------
    ShapeError, BondError, DTypeError, ArrayTypeError
        If the cores form no chain, do not fit the layout, or there are more than 32.
    RangeError
        If the result does not fit half precision, where no gradient is recorded.

    Examples
    --------
    >>> import numpy as np
    >>> cores = [np.ones((1, 1, 2, 1)), np.full((1, 3, 1, 1), 2.0)]
    >>> contract_matrix(cores, MatrixLayout((1, 3), (2, 1))).tolist()
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    """
    backend = _checked(cores, 4)
    if not isinstance(layout, MatrixLayout):
        raise ShapeError(complaint("layout", "be a MatrixLayout", type(layout).__name__))
    layout.check_formable()
    dims = tuple((int(core.shape[1]), int(core.shape[2])) for core in cores)
    expected = tuple(zip(layout.row_dims, layout.col_dims, strict=True))
    if dims != expected:
        raise ShapeError(complaint("cores", f"have the layout's (i, j) {expected}", dims))
    wide = tuple(_widen(core, backend) for core in cores)
    matrix = join_matrix(wide, layout, backend)
    if len(wide) == 1 and wide[0] is cores[0]:
        return backend.copy(matrix)
    return rounded("the matrix", matrix, cores, backend)


def rounded(what: str, wide: Array, cores: Sequence[Array], backend: Backend) -> Array:
    """Return what was computed from cores in their element type.

    Infinity in it is looked for in half precision, whose range matrices of good cores leave at
    times: not where jax traces, nor in torch's graph, where a loss scale relies on it.

    Raises
    ------
    RangeError
        If finite cores in half precision have a result that does not fit; says how large it is.
    """
    dtype = dtype_name(cores[0])
    found = backend.cast(wide, dtype)
    if dtype not in _HALF or traced(found) or getattr(found, "requires_grad", False):
        return found
    if backend.all_finite(found) or not all(backend.all_finite(core) for core in cores):
        return found
    largest = float(np.abs(backend.numbers(wide)).max())
    given, remedy = f"entries up to {largest:.4g}", "or scale it down."
    wider = "float32"
    if not np.isfinite(largest):
        given, wider = f"entries beyond {dtype_name(wide)} too", "float64"
    if wider == "float32" or _fits_double(cores, backend):
        remedy = f"Widen it first, as by astype('{wider}'), {remedy}"
    else:
        remedy = "Scale it down."
    raise RangeError(complaint(what, f"fit the range of {dtype}", given, remedy))


def _fits_double(cores: Sequence[Array], backend: Backend) -> bool:
    """Return whether no entry of what the cores represent can leave the range of float64."""
    # The product of the norms bounds every entry, and those of all parts.
    norms = [np.linalg.norm(backend.numbers(backend.cast(core, "float64"))) for core in cores]
    return float(np.sum(np.log10([max(float(norm), 1.0) for norm in norms]))) < _MOST_DIGITS


def join_cores(cores: Cores, backend: Backend) -> Array:
    """Return a part of a chain, cores (left, i, j, right), joined: (left, i, j, ..., right).

    Nothing is checked; the outer bonds may be of any size.
    """
    if len(cores) == 1:
        return cores[0]
    sites = tuple(int(c.shape[1]) * int(c.shape[2]) for c in cores)
    bonds = (*(int(c.shape[0]) for c in cores), int(cores[-1].shape[3]))
    joined = _join(cores, join_order(sites, bonds).split, 0, len(cores), backend)
    pairs = (int(d) for core in cores for d in core.shape[1:3])
    return joined.reshape((bonds[0], *pairs, bonds[-1]))


def join_matrix(cores: Cores, layout: MatrixLayout, backend: Backend) -> Array:
    """Return the matrix of cores that are known to fit a layout; it may be a view of a core.

    The digits of rows and columns are sorted in the two halves that are multiplied last: what
    is left to transpose are then blocks as long as the columns of the right half.
    """
    rows, cols = layout.row_dims, layout.col_dims
    sites, bonds = layout.site_dims, (*(int(c.shape[0]) for c in cores), 1)
    n = len(cores)
    if n == 1:
        full = cores[0].reshape((rows[0], cols[0]))
    else:
        middle = join_order(sites, bonds).split[0, n]
        left, right = (_sorted(half, backend) for half in (cores[:middle], cores[middle:]))
        blocks = [
            math.prod(d) for d in (rows[:middle], cols[:middle], rows[middle:], cols[middle:])
        ]
        bond = bonds[middle]
        tensor = (left.reshape((-1, bond)) @ right.reshape((bond, -1))).reshape(tuple(blocks))
        full = backend.tl.transpose(tensor, (0, 2, 1, 3)).reshape(layout.padded_shape)
    return full[: layout.rows, : layout.cols] if layout.padded else full


def _sorted(cores: Cores, backend: Backend) -> Array:
    """Return a part of a chain, joined, as (left, i..., j..., right)."""
    joined = join_cores(cores, backend)
    end, axes = joined.ndim - 1, range(joined.ndim)
    return backend.tl.transpose(joined, (0, *axes[1:end:2], *axes[2:end:2], end))


def _checked(cores: object, n_dims: int) -> Backend:
    """Return the backend of cores that form a chain; values are not looked at."""
    if not isinstance(cores, Sequence) or isinstance(cores, str) or not cores:
        raise ShapeError(complaint("cores", "be a sequence of at least one array", describe(cores)))
    backend = backend_of(*cores, argument="cores")
    kinds = sorted({dtype_name(core) for core in cores})
    if len(kinds) > 1:
        raise DTypeError(complaint("cores", "have one element type", " and ".join(kinds)))
    for k, core in enumerate(cores):
        if core.ndim != n_dims:
            given = f"shape {tuple(core.shape)}"
            raise ShapeError(complaint(f"cores[{k}]", f"have {n_dims} dimensions", given))
    bonds = [1, *(int(core.shape[-1]) for core in cores)]
    lefts = [*(int(core.shape[0]) for core in cores), 1]
    if bonds != lefts:
        given = f"left bonds {lefts[:-1]} and right bonds {bonds[1:]}"
        raise BondError(complaint("cores", "agree in their bonds, with 1 at the ends", given))
    return backend


class JoinOrder(NamedTuple):
    """Multiply-adds of the best order, and for each segment (start, stop) where it is split."""

    multiply_adds: int
    split: dict[tuple[int, int], int]


@lru_cache(maxsize=1024)
def join_order(sites: tuple[int, ...], bonds: tuple[int, ...]) -> JoinOrder:
    """Return the order of joining neighbours that costs the fewest multiply-adds.

    Dynamic programming over segments, as for the product of a chain of matrices.

    Examples
    --------
    >>> join_order((2, 2, 2), (1, 2, 2, 1)).multiply_adds
    32
    """
    n = len(sites)
    cost = {(k, k + 1): 0 for k in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(2, n + 1):
        for start in range(n - length + 1):
            stop = start + length
            ends = bonds[start] * math.prod(sites[start:stop]) * bonds[stop]
            options = [
                (cost[start, k] + cost[k, stop] + ends * bonds[k], k)
                for k in range(start + 1, stop)
            ]
            cost[start, stop], split[start, stop] = min(options)
    return JoinOrder(cost[0, n], split)


def fuse(core: Array, backend: Backend) -> Array:
    """Return a core (left, i, j, right) as (left, i * j, right)."""
    left, i, j, right = (int(d) for d in core.shape)
    return backend.tl.reshape(core, (left, i * j, right))


def _join(
    cores: Cores, split: dict[tuple[int, int], int], start: int, stop: int, backend: Backend
) -> Array:
    if stop - start == 1:
        return cores[start]
    middle = split[start, stop]
    left = _join(cores, split, start, middle, backend)
    right = _join(cores, split, middle, stop, backend)
    ends = (int(left.shape[0]), -1, int(right.shape[-1]))
    bond = int(right.shape[0])
    product = left.reshape((-1, bond)) @ right.reshape((bond, -1))
    return product.reshape(ends)


def _widen(a: Array, backend: Backend) -> Array:
    return backend.cast(a, "float32") if dtype_name(a) in _HALF else a
