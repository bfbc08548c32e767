"""Type names used in signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Array: TypeAlias = Any
"""A numpy array or a torch tensor. Typed as ``Any``: neither library is imported for its types."""

Cores: TypeAlias = tuple[Array, ...]
"""Cores of a network, each (left bond, site dimension, right bond)."""

Gauge: TypeAlias = Literal["central", "left", "right", "symmetric", "identity"]
"""Where the norm of a network sits; see :func:`tensornet.mpo`."""

ShapeSpec: TypeAlias = int | tuple[Sequence[int], Sequence[int]] | None
"""``None`` (five balanced sites), a number of sites, or ``(row_dims, col_dims)``."""

Bonds: TypeAlias = Literal["full"] | Sequence[int] | None
"""``None``, ``"full"``, or the inner bonds (n - 1 values) or all bonds (n + 1 values)."""
