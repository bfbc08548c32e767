"""The chains on both sides of a core of many networks: spread over matrices, gathered from them.

Cores and sides have a batch axis of length 1 where all networks have them in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tensornet.backend import Backend
from tensornet.interleave import fold_stack, unfold_stack
from tensornet.layout import MatrixLayout
from tensornet.typing import Array


class Ground(NamedTuple):
    """What all cores have in common: the sites, the metrics averaged to each, and the library."""

    layout: MatrixLayout
    averages: Sequence[Array]
    backend: Backend

    @property
    def edge(self) -> Part:
        """What stands outside of the first and of the last core."""
        one = self.backend.identity(1, self.averages[0])[None]
        return Part(one, one)


class Part(NamedTuple):
    """The chains on one side of a core, and their Gram matrices under averaged metrics.

    ``frame`` is (batch or 1, rows, bond) on the left, (batch or 1, bond, columns) on the right;
    ``gram`` is (batch or 1, bond, bond).
    """

    frame: Array
    gram: Array


class Sides(NamedTuple):
    """The chains left of a core (batch or 1, rows, a) and right of it (batch or 1, b, columns)."""

    left: Array
    right: Array


def right_parts(cores: Sequence[Array], ground: Ground) -> list[Part]:
    """Return, for each core, the chains after it."""
    backend, parts = ground.backend, [ground.edge]
    for k in range(len(cores) - 1, 0, -1):
        core, (frame, gram) = cores[k], parts[-1]
        batch, a, site, b = (int(d) for d in core.shape)
        seen = backend.tl.reshape(core, (batch, a * site, b)) @ gram
        seen = backend.tl.reshape(seen, (-1, a, site, b))
        seen = on_columns(ground.averages[k], seen, ground.layout.col_dims[k], backend)
        flat = backend.tl.reshape(core, (batch, a, site * b))
        gram = backend.tl.reshape(seen, (-1, a, site * b)) @ backend.adjoint(flat)
        parts.append(Part(_before(core, frame, backend.tl), gram))
    return parts[::-1]


def left_part(part: Part, core: Array, k: int, ground: Ground) -> Part:
    """Return the chains up to and with core ``k`` from those before it."""
    backend = ground.backend
    batch, a, site, b = (int(d) for d in core.shape)
    seen = part.gram @ backend.tl.reshape(core, (batch, a, site * b))
    seen = backend.tl.reshape(seen, (-1, a, site, b))
    seen = on_columns(ground.averages[k], seen, ground.layout.col_dims[k], backend)
    flat = backend.tl.reshape(core, (batch, a * site, b))
    gram = backend.adjoint(flat) @ backend.tl.reshape(seen, (-1, a * site, b))
    return Part(_behind(part.frame, core, backend.tl), gram)


def contracted(cores: Sequence[Array], ground: Ground) -> Array:
    """Return the matrices (batch, rows, cols) of chains, without padding."""
    one = right = ground.edge.frame
    for core in cores[:0:-1]:
        right = _before(core, right, ground.backend.tl)
    return spread(cores[0], Sides(one, right), ground)


def spread(core: Array, sides: Sides, ground: Ground) -> Array:
    """Return the matrices (batch, rows, cols) of a core between its sides."""
    layout, backend = ground.layout, ground.backend
    full = _behind(sides.left, core, backend.tl) @ sides.right
    matrices = unfold_stack(full, layout.row_dims, layout.col_dims, backend)
    return matrices[:, : layout.rows, : layout.cols] if layout.padded else matrices


def gathered(matrices: Array, sides: Sides, ground: Ground) -> Array:
    """Return the cores (batch, left, site, right) that matrices have between their sides."""
    layout, backend = ground.layout, ground.backend
    left, right = backend.adjoint(sides.left), backend.adjoint(sides.right)
    tensors = fold_stack(matrices, layout.row_dims, layout.col_dims, backend)
    batch, a = int(tensors.shape[0]), int(left.shape[1])
    core = left @ backend.tl.reshape(tensors, (batch, int(left.shape[2]), -1))
    core = backend.tl.reshape(core, (batch, -1, int(right.shape[1]))) @ right
    return backend.tl.reshape(core, (batch, a, -1, int(right.shape[2])))


def on_columns(factors: Array, core: Array, dim: int, backend: Backend) -> Array:
    """Return cores times a matrix on the columns, the last factor ``dim`` of their site."""
    batch, a, site, b = (int(d) for d in core.shape)
    split = backend.tl.reshape(core, (batch, a * site // dim, dim, b))
    turned = backend.matrix_transpose(factors)[:, None] @ split
    return backend.tl.reshape(turned, (-1, a, site, b))


def _behind(left: Array, core: Array, tl: Any) -> Array:
    """Return (batch or 1, rows, bond) of the chains on the left with one more core."""
    batch, a, site, b = (int(d) for d in core.shape)
    product = left @ tl.reshape(core, (batch, a, site * b))
    return tl.reshape(product, (int(product.shape[0]), -1, b))


def _before(core: Array, right: Array, tl: Any) -> Array:
    """Return (batch or 1, bond, columns) of the chains on the right with one more core."""
    batch, a, site, b = (int(d) for d in core.shape)
    product = tl.reshape(core, (batch, a * site, b)) @ right
    return tl.reshape(product, (int(product.shape[0]), a, -1))
