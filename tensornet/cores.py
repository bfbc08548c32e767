"""Cores as users give and get them: validated, owned, split, transposed, measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tensornet.backend import backend_of, dtype_name, work_dtype
from tensornet.checks import alike, array, describe, same_kind
from tensornet.contract.chain import contract_matrix
from tensornet.errors import BondError, DTypeError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.storage import in_double, scaled, weight
from tensornet.typing import Array, Cores

# Elements of a matrix that are compared at a time.
_BLOCK = 2**20


def validate(cores: object, n_dims: int) -> Cores:
    """Return cores as a tuple after checking that they form a chain; numpy ones are copied."""
    inspect(cores, n_dims)
    return seal(tuple(_own_numpy(core) for core in cores))  # type: ignore[attr-defined]


def inspect(cores: object, n_dims: int) -> None:
    """Raise unless cores form a chain of finite numbers."""
    if isinstance(cores, str) or not isinstance(cores, Sequence) or not cores:
        raise ShapeError(complaint("cores", "be a sequence of at least one array", describe(cores)))
    for k, core in enumerate(cores):
        array(f"cores[{k}]", core, n_dims)
        same_kind(f"cores[{k}]", core, cores[0], backend_of(core))
        if dtype_name(core) != dtype_name(cores[0]):
            expected = f"have the first core's element type {dtype_name(cores[0])}"
            raise DTypeError(complaint(f"cores[{k}]", expected, dtype_name(core)))
    check_bonds(cores)


def _own_numpy(core: Array) -> Array:
    return np.array(core, order="C", copy=True) if isinstance(core, np.ndarray) else core


def check_bonds(cores: Sequence[Array]) -> None:
    """Raise BondError unless neighbouring bonds agree and the outer ones are 1."""
    for name, bond in (("first", cores[0].shape[0]), ("last", cores[-1].shape[-1])):
        if int(bond) != 1:
            raise BondError(complaint("cores", f"have 1 as {name} bond", int(bond)))
    for k in range(len(cores) - 1):
        left, right = int(cores[k].shape[-1]), int(cores[k + 1].shape[0])
        if left != right:
            given = f"{left} and {right} between cores {k} and {k + 1}"
            raise BondError(complaint("cores", "agree in the bond between neighbours", given))


def seal(cores: Cores) -> Cores:
    """Return the cores; numpy ones are made read-only, with the memory they are views of."""
    for core in cores:
        array = core
        while isinstance(array, np.ndarray):
            array.flags.writeable = False
            array = array.base
    return cores


def split(cores: Cores, layout: MatrixLayout) -> Cores:
    """Return cores (left, i * j, right) as (left, i, j, right)."""
    tl = backend_of(*cores).tl
    return tuple(
        tl.reshape(core, (int(core.shape[0]), i, j, int(core.shape[2])))
        for core, i, j in zip(cores, layout.row_dims, layout.col_dims, strict=True)
    )


def transpose(cores: Cores) -> Cores:
    """Return views (left, j, i, right) of cores (left, i, j, right)."""
    backend = backend_of(*cores)
    return tuple(backend.tl.transpose(core, (0, 2, 1, 3)) for core in cores)


def copies(cores: Cores) -> Cores:
    """Return contiguous copies of cores; gradients reach the originals through them."""
    backend = backend_of(*cores)
    return tuple(backend.copy(core) for core in cores)


def conjugate(cores: Cores) -> Cores:
    """Return the complex conjugates of the cores."""
    backend = backend_of(*cores)
    return tuple(backend.resolve(backend.conj(core)) for core in cores)


def operand(name: str, x: object, core: Array, size: int, axis: int) -> Array:
    """Return ``x`` if it is a vector or matrix of the network's kind and the right size.

    Its values are not looked at: NaN comes out where NaN went in, as in any matrix product.
    """
    a: Array = np.asarray(x) if isinstance(x, np.matrix) else x
    if not alike(a, core):
        same_kind(name, a, core, backend_of(a, argument=name))
        if dtype_name(a) != dtype_name(core):
            expected = f"have an operand of the network's element type {dtype_name(core)}"
            remedy = f"Convert the operand, or the network: .astype({dtype_name(a)!r})."
            raise DTypeError(complaint(name, expected, dtype_name(a), remedy))
    if a.ndim not in (1, 2) or int(a.shape[axis]) != size:
        where = "first" if axis == 0 else "last"
        expected = f"have a vector or matrix whose {where} dimension is {size}"
        raise ShapeError(complaint(name, expected, f"shape {tuple(a.shape)}"))
    return a


def contract_wide(cores: Cores, layout: MatrixLayout) -> Array:
    """Return the matrix of cores (left, i, j, right) in double precision, without a graph."""
    return contract_matrix(in_double(cores)[1], layout)


def frobenius(a: Array) -> float:
    """Return the Frobenius norm of an array in double precision."""
    backend = backend_of(a)
    scale, near_one = scaled(a, backend)
    return scale * math.sqrt(weight(near_one, backend))


def relative_distance(a: Array, b: Array) -> float:
    """Return the Frobenius norm of ``a - b`` relative to that of ``b``; 0 where b is zero."""
    norm = frobenius(b)
    return frobenius(a - b) / norm if norm > 0.0 else 0.0


def distance_to(cores: Cores, layout: MatrixLayout, matrix: Array) -> float:
    """Return the Frobenius norm of cores minus their matrix, relative to that of the matrix.

    In double precision, one block of rows for each value of the first row digits, as many of
    them as make a block small beside a large matrix.
    """
    backend = backend_of(matrix)
    wide, dims = in_double(cores)[1], layout.row_dims
    lead = 1
    while lead < len(dims) and math.prod(dims[lead:]) * layout.cols > _BLOCK:
        lead += 1
    height = math.prod(dims[lead:])
    blocks = itertools.product(*(range(d) for d in dims[:lead]))
    norm = missing = 0.0
    for digits, start in zip(blocks, range(0, layout.rows, height), strict=False):
        block = backend.cast(matrix[start : start + height], work_dtype(dtype_name(matrix)))
        part = MatrixLayout(
            (1,) * lead + dims[lead:], layout.col_dims, int(block.shape[0]), layout.cols
        )
        fixed = [core[:, digit : digit + 1] for core, digit in zip(wide, digits, strict=False)]
        found = contract_matrix([*fixed, *wide[lead:]], part)
        norm = math.hypot(norm, frobenius(block))
        missing = math.hypot(missing, frobenius(found - block))
    return missing / norm if norm > 0.0 else 0.0
