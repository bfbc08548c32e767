"""The product of a chain of cores with a matrix, in the order that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensornet.backend import Backend, backend_of, dtype_name, traced
from tensornet.contract.chain import join_cores, join_matrix
from tensornet.contract.execute import HALF
from tensornet.contract.matrix_plan import matrix_plan
from tensornet.contract.orders import Order
from tensornet.contract.plan import Plan
from tensornet.contract.speed import THIN, fastest, speed_of
from tensornet.layout import MatrixLayout
from tensornet.typing import Array, Cores


def apply_cores(
    cores: Sequence[Array], layout: MatrixLayout, x: Array, order: Order | None = None
) -> Array:
    """Return W @ x for cores (left, i, j, right) of W and ``x`` of shape (cols, batch).

    In the order that is expected to be fastest, or the given one. Half precision is contracted
    in float32 and rounded once at the end.
    """
    backend = backend_of(x)
    dtype = dtype_name(x)
    if order is None:
        bonds = (*(int(core.shape[0]) for core in cores), 1)
        order = fastest(layout, bonds, int(x.shape[1]) or 1, backend.name, _place(x, backend))
    if dtype not in HALF:
        return apply_in(order, tuple(cores), layout, x, backend)
    wide = tuple(backend.cast(core, "float32") for core in cores)
    x = backend.cast(x, "float32")
    return backend.cast(apply_in(order, wide, layout, x, backend), dtype)


def _place(a: Array, backend: Backend) -> str:
    return "cpu" if traced(a) else backend.place(a)


def plan_cores(
    cores: Cores, layout: MatrixLayout, batch: int, memory_limit: int | None, minimize: str
) -> Plan:
    """Return the plan of the product of cores with ``batch`` vectors; see :meth:`MPO.plan`."""
    backend = backend_of(cores[0])
    return matrix_plan(
        layout,
        (*(int(core.shape[0]) for core in cores), 1),
        batch,
        memory_limit=memory_limit,
        minimize=minimize,
        itemsize=max(4, int(cores[0].dtype.itemsize)),  # half precision is contracted in float32
        speed=speed_of(backend.name, _place(cores[0], backend)),
    )


def apply_in(order: Order, cores: Cores, layout: MatrixLayout, x: Array, backend: Backend) -> Array:
    """Return W @ x in a given order."""
    if order.name == "dense":
        return product(join_matrix(cores, layout, backend), x, backend)
    state, batch = _pad_rows(x, layout, backend), int(x.shape[1])
    few = speed_of(backend.name, _place(x, backend)).few
    done = incoming = 1
    left = order.side == "left"
    for start, stop in order.segments if left else order.segments[::-1]:
        factor = _segment(cores[start:stop], left=left, backend=backend)
        j = math.prod(layout.col_dims[start:stop])
        # From the left: (rows done, bond and columns, columns to do and batch); from the right:
        # (columns to do, columns and bond, rows done and batch). Both are views.
        if left:
            size = (done, incoming * j, math.prod(layout.col_dims[stop:]) * batch)
        else:
            size = (math.prod(layout.col_dims[:start]), j * incoming, done * batch)
        state = _multiplied(factor, state.reshape(size), few, backend)
        done *= math.prod(layout.row_dims[start:stop])
        incoming = int((cores[stop - 1].shape[3]) if left else cores[start].shape[0])
    return state.reshape((done, batch))[: layout.rows]


def product(matrix: Array, x: Array, backend: Backend) -> Array:
    """Return matrix @ x.

    MKL, which multiplies for torch on a CPU, needs as long for 2 columns as for 40: it is asked
    for the transpose, which has as many columns as the matrix has rows.
    """
    cols = x.shape[1]
    if backend.name != "pytorch" or not 1 < cols < THIN or x.device.type != "cpu":
        return matrix @ x
    return ((x.T if cols > 3 else x.T.contiguous()) @ matrix.T).T


def _multiplied(factor: Array, state: Array, few: int, backend: Backend) -> Array:
    """Return factor @ state, as one product of two matrices where that is faster."""
    items, inner, cols = state.shape
    if items == 1:
        return product(factor, state.reshape((inner, cols)), backend)
    if cols == 1:
        return state.reshape((items, inner)) @ factor.T
    if cols > few:
        return factor @ state
    tl, rows = backend.tl, factor.shape[0]
    beside = tl.transpose(state, (1, 0, 2)).reshape((inner, items * cols))
    made = product(factor, beside, backend).reshape((rows, items, cols))
    return tl.transpose(made, (1, 0, 2))


def _segment(cores: Cores, *, left: bool, backend: Backend) -> Array:
    """Return a segment as the matrix that acts on the state.

    From the left (rows and right bond, left bond and columns), from the right (left bond and
    rows, columns and right bond). Elements that lie side by side stay together where they can:
    from the left, the transpose is formed where there is a right bond.
    """
    tl = backend.tl
    if len(cores) == 1 and not left:
        first, i, j, last = cores[0].shape
        return cores[0].reshape((first * i, j * last))
    joined = join_cores(cores, backend)
    first, *dims, last = joined.shape
    rows, cols = math.prod(dims[::2]), math.prod(dims[1::2])
    i, j, end = range(1, len(dims) + 1, 2), range(2, len(dims) + 1, 2), len(dims) + 1
    if not left:
        return tl.transpose(joined, (0, *i, *j, end)).reshape((first * rows, cols * last))
    if last == 1:
        return tl.transpose(joined, (*i, end, 0, *j)).reshape((rows, first * cols))
    return tl.transpose(joined, (0, *j, *i, end)).reshape((first * cols, rows * last)).T


def _pad_rows(x: Array, layout: MatrixLayout, backend: Backend) -> Array:
    missing = layout.padded_shape[1] - int(x.shape[0])
    if not missing:
        return x
    return backend.tl.concatenate([x, backend.zeros((missing, int(x.shape[1])), x)], axis=0)
