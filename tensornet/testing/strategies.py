"""Hypothesis strategies: layouts, matrices with awkward spectra, cores and options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensornet.bonds import structural_bonds
from tensornet.layout import MatrixLayout

KINDS = (
    "gaussian",
    "low_rank",
    "decaying",
    "identity",
    "constant",
    "zero",
    "one_entry",
    "repeated",
    "integers",
    "tiny",
    "huge",
)


@st.composite
def layouts(
    draw: st.DrawFn, *, max_sites: int = 4, max_dim: int = 4, max_size: int = 400
) -> MatrixLayout:
    """Draw a layout with at most ``max_sites`` sites, factors 1 included, padded or not."""
    n = draw(st.integers(1, max_sites))
    dims = st.integers(1, max_dim)
    rows = draw(st.lists(dims, min_size=n, max_size=n))
    cols = draw(st.lists(dims, min_size=n, max_size=n))
    while math.prod(rows) * math.prod(cols) > max_size:
        side = rows if math.prod(rows) >= math.prod(cols) else cols
        side[side.index(max(side))] = 1
    true_rows = draw(st.integers(max(1, math.prod(rows) - 1), math.prod(rows)))
    true_cols = draw(st.integers(max(1, math.prod(cols) - 1), math.prod(cols)))
    return MatrixLayout(rows, cols, true_rows, true_cols)


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    *,
    dtype: str = "float64",
    kinds: tuple[str, ...] = KINDS,
) -> np.ndarray[Any, Any]:
    """Draw an array of the given shape, with structure that decompositions find hard.

    Parameters
    ----------
    draw : callable
        Given by Hypothesis.
    shape : tuple of int
        Shape of the array.
    dtype : str
        A numpy element type; complex ones get complex entries.
    kinds : tuple of str
        Which structures to choose from, see :data:`KINDS`.
    """
    kind = draw(st.sampled_from(kinds))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = math.prod(shape[: (len(shape) + 1) // 2])
    flat = _flat(kind, rows, math.prod(shape) // rows, rng)
    if dtype.startswith("complex"):
        flat = flat * np.exp(2j * np.pi * rng.random(flat.shape))
    limit = {"float16": 100.0, "float32": 1e30, "complex64": 1e15}.get(dtype, 1e150)
    if kind in ("tiny", "huge"):
        flat = flat * (1.0 / limit if kind == "tiny" and dtype != "float16" else limit)
    array: np.ndarray[Any, Any] = flat.reshape(shape).astype(dtype)
    return array


def _flat(kind: str, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if kind == "low_rank":
        rank = max(1, min(rows, cols) // 3)
        return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, cols))
    if kind == "decaying":
        return np.exp(-np.linspace(0, 2, rows)[:, None] * np.linspace(0, 2, cols))
    if kind == "repeated":
        return np.linalg.qr(rng.normal(size=(max(rows, cols),) * 2))[0][:rows, :cols]
    if kind == "one_entry":
        flat = np.zeros((rows, cols))
        flat[rng.integers(rows), rng.integers(cols)] = 1.0
        return flat
    simple = {
        "identity": np.eye(rows, cols),
        "constant": np.ones((rows, cols)),
        "zero": np.zeros((rows, cols)),
        "integers": rng.integers(-3, 4, size=(rows, cols)).astype(float),
    }
    return simple.get(kind, rng.normal(size=(rows, cols)))


@st.composite
def matrices(
    draw: st.DrawFn,
    layout: MatrixLayout,
    *,
    dtype: str = "float64",
    kinds: tuple[str, ...] = KINDS,
) -> np.ndarray[Any, Any]:
    """Draw a matrix of a layout's true shape; see :func:`tensors`."""
    return draw(tensors(layout.shape, dtype=dtype, kinds=kinds))


@st.composite
def mpo_cores(
    draw: st.DrawFn, layout: MatrixLayout, *, max_bond: int = 5, dtype: str = "float64"
) -> list[np.ndarray[Any, Any]]:
    """Draw Gaussian cores (left, i, j, right) for a layout, in no gauge in particular."""
    caps = draw(
        st.lists(st.integers(1, max_bond), min_size=layout.n_sites - 1, max_size=layout.n_sites - 1)
    )
    bonds = structural_bonds(layout.site_dims, caps)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = layout.core_shapes(bonds)
    cores = [rng.normal(size=shape) for shape in shapes]
    if dtype.startswith("complex"):
        cores = [core + 1j * rng.normal(size=core.shape) for core in cores]
    return [core.astype(dtype) for core in cores]


@st.composite
def options(draw: st.DrawFn, layout: MatrixLayout) -> dict[str, Any]:
    """Draw keyword arguments of :func:`tensornet.mpo` that are valid together."""
    gauge = draw(st.sampled_from(("central", "left", "right", "symmetric")))
    limit = draw(st.sampled_from(("none", "max_bond", "bonds", "rtol", "full")))
    chosen: dict[str, Any] = {"gauge": gauge}
    if limit == "max_bond":
        chosen["max_bond"] = draw(st.integers(1, 6))
    elif limit == "bonds":
        n = layout.n_sites - 1
        chosen["bonds"] = draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    elif limit == "rtol":
        chosen["rtol"] = draw(st.sampled_from((0.5, 0.1, 1e-3, 1e-5)))
    elif limit == "full":
        chosen["bonds"] = "full"
    return chosen
