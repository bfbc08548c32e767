"""Type names used in signatures."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from tensornet.layout import MatrixLayout

Array: TypeAlias = Any
"""A numpy array or a torch tensor. Typed as ``Any``: neither library is imported for its types."""

Cores: TypeAlias = tuple[Array, ...]
"""Cores of a network, each (left bond, site dimension, right bond)."""

Gauge: TypeAlias = Literal["central", "left", "right", "symmetric", "identity"]
"""Where the norm of a network sits; see :func:`tensornet.mpo`."""

Differentiable: TypeAlias = Literal[False, True, "subgradient"]
"""Whether a decomposition keeps torch's graph, and what a cut between equal values leads to."""

Integers: TypeAlias = "Sequence[int] | np.ndarray[Any, Any]"
"""Integers in a row."""

ShapeSpec: TypeAlias = (
    "SupportsIndex | Sequence[Integers] | np.ndarray[Any, Any] | MatrixLayout | None"
)
"""``None`` (five balanced sites), a number of sites, ``(row_dims, col_dims)``, or a layout."""

Bonds: TypeAlias = "Literal['full'] | Integers | None"
"""``None``, ``"full"``, or the inner bonds (n - 1 values) or all bonds (n + 1 values)."""

Equation: TypeAlias = "str | Sequence[Sequence[Hashable]]"
"""``"ab,bc->ac"``, or a list of labels for each operand and one for the output."""

Minimize: TypeAlias = Literal["multiply_adds", "peak", "traffic"]
"""What a plan has the least of."""
