"""The product of a chain of cores with a matrix, in the order that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensornet.backend import Backend, backend_of, dtype_name, traced
from tensornet.contract.chain import join_cores, join_matrix
from tensornet.contract.execute import HALF
from tensornet.contract.matrix_plan import matrix_plan
from tensornet.contract.orders import FEW_COLUMNS, Order, fastest, speed_of
from tensornet.contract.plan import Plan
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
        return join_matrix(cores, layout, backend) @ x
    state, batch = _pad_rows(x, layout, backend), int(x.shape[1])
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
        state = _multiplied(factor, state.reshape(size), backend)
        done *= math.prod(layout.row_dims[start:stop])
        incoming = int((cores[stop - 1].shape[3]) if left else cores[start].shape[0])
    return state.reshape((done, batch))[: layout.rows]


def _multiplied(factor: Array, state: Array, backend: Backend) -> Array:
    """Return factor @ state, as one product of two matrices where that is faster."""
    items, inner, cols = state.shape
    if items == 1:
        return factor @ state.reshape((inner, cols))
    if cols == 1:
        return state.reshape((items, inner)) @ factor.T
    if cols > FEW_COLUMNS:
        return factor @ state
    tl, rows = backend.tl, factor.shape[0]
    beside = tl.transpose(state, (1, 0, 2)).reshape((inner, items * cols))
    return tl.transpose((factor @ beside).reshape((rows, items, cols)), (1, 0, 2))


def _segment(cores: Cores, *, left: bool, backend: Backend) -> Array:
    """Return a segment as the matrix that acts on the state.

    From the left (rows and right bond, left bond and columns), from the right (left bond and
    rows, columns and right bond).
    """
    tl = backend.tl
    if len(cores) == 1:
        first, i, j, last = cores[0].shape
        if left:
            return tl.transpose(cores[0], (1, 3, 0, 2)).reshape((i * last, first * j))
        return cores[0].reshape((first * i, j * last))
    joined = join_cores(cores, backend)
    first, *dims, last = joined.shape
    rows, cols = math.prod(dims[::2]), math.prod(dims[1::2])
    i, j = range(1, len(dims) + 1, 2), range(2, len(dims) + 1, 2)
    if left:
        moved = tl.transpose(joined, (*i, len(dims) + 1, 0, *j))
        return moved.reshape((rows * last, first * cols))
    return tl.transpose(joined, (0, *i, *j, len(dims) + 1)).reshape((first * rows, cols * last))


def _pad_rows(x: Array, layout: MatrixLayout, backend: Backend) -> Array:
    missing = layout.padded_shape[1] - int(x.shape[0])
    if not missing:
        return x
    return backend.tl.concatenate([x, backend.zeros((missing, int(x.shape[1])), x)], axis=0)
