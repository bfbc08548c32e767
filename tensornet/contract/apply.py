"""The product of a chain of cores with a matrix, in the order that is expected to be fastest."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet.backend import Backend, backend_of, dtype_name, traced
from tensornet.contract.chain import join_cores, join_matrix
from tensornet.contract.execute import HALF
from tensornet.contract.matrix_plan import matrix_plan
from tensornet.contract.orders import Order
from tensornet.contract.plan import Plan
from tensornet.contract.route import Route, Stage, fastest_route, route
from tensornet.contract.speed import THIN, speed_of
from tensornet.layout import MatrixLayout
from tensornet.typing import Array, Cores


def apply_cores(
    cores: Sequence[Array], layout: MatrixLayout, x: Array, order: Order | None = None
) -> Array:
    """Return W @ x for cores (left, i, j, right) of W and ``x`` of shape (cols, batch).

    In the order that is expected to be fastest, or the given one. Half precision is contracted
    in float32 and rounded once at the end.
    """
    backend, dtype = backend_of(x), dtype_name(x)
    place = _place(x, backend)
    bonds, batch = (*[int(core.shape[0]) for core in cores], 1), int(x.shape[1])
    if order is None:
        way = fastest_route(layout, bonds, batch, backend.name, place)
    else:
        way = route(order, layout, bonds, batch, speed_of(backend.name, place).few)
    if dtype not in HALF:
        return _along(way, tuple(cores), layout, x, backend)
    wide = tuple(backend.cast(core, "float32") for core in cores)
    x = backend.cast(x, "float32")
    return backend.cast(_along(way, wide, layout, x, backend), dtype)


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


def _along(way: Route, cores: Cores, layout: MatrixLayout, x: Array, backend: Backend) -> Array:
    """Return W @ x on a route."""
    if not way.stages:
        return product(join_matrix(cores, layout, backend), x, backend)
    state = x
    if way.missing:
        zeros = backend.zeros((way.missing, int(x.shape[1])), x)
        state = backend.tl.concatenate([x, zeros], axis=0)
    for stage in way.stages:
        factor = _factor(cores[stage.start : stage.stop], stage, backend)
        state = _met(factor, state.reshape(stage.state), stage.way, backend)
    found = state.reshape((way.padded_rows, int(x.shape[1])))
    return found if way.padded_rows == layout.rows else found[: layout.rows]


def product(matrix: Array, x: Array, backend: Backend) -> Array:
    """Return matrix @ x.

    MKL, which multiplies for torch on a CPU, needs as long for 2 columns as for 40: it is asked
    for the transpose, which has as many columns as the matrix has rows.
    """
    cols = x.shape[1]
    if backend.name != "pytorch" or not 1 < cols < THIN or x.device.type != "cpu":
        return matrix @ x
    return ((x.T if cols > 3 else x.T.contiguous()) @ matrix.T).T


def _met(factor: Array, state: Array, way: str, backend: Backend) -> Array:
    """Return factor @ state, item by item, with the elements in the order of (item, row, col)."""
    if way == "one":
        return product(factor, state, backend)
    if way == "many":
        return factor @ state
    if way == "vectors":
        return state @ factor.T
    items, inner, cols = state.shape
    beside = state.swapaxes(0, 1).reshape((inner, items * cols))
    made = product(factor, beside, backend)
    return made.reshape((factor.shape[0], items, cols)).swapaxes(0, 1)


def _factor(cores: Cores, stage: Stage, backend: Backend) -> Array:
    """Return a segment as the matrix that acts on the state."""
    joined = join_cores(cores, backend)
    if stage.axes is not None:
        joined = backend.tl.transpose(joined, stage.axes)
    matrix = joined.reshape(stage.matrix)
    return matrix.T if stage.turned else matrix
