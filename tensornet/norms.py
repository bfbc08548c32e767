"""Norms and spectra of chains of any length: binary exponents are kept apart from the cores."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, backend_of, n_elements
from tensornet.canonical import absorb_left, rows_matrix
from tensornet.chains import trusted, widened
from tensornet.cores import contract_wide, frobenius
from tensornet.exponents import centered
from tensornet.layout import MAX_SITES, MatrixLayout
from tensornet.linalg import thin_svd
from tensornet.padding import digits, open_bonds
from tensornet.storage import weight
from tensornet.typing import Array, Cores


class Size(NamedTuple):
    """A norm as ``mantissa * 2**exponent``."""

    mantissa: float
    exponent: int

    @property
    def value(self) -> float:
        """The norm; infinity where it exceeds the range of numbers."""
        try:
            return math.ldexp(self.mantissa, self.exponent)
        except OverflowError:
            return math.inf

    @property
    def log10(self) -> float:
        """The decimal logarithm of the norm; minus infinity for zero."""
        if self.mantissa == 0.0:
            return -math.inf
        return math.log10(self.mantissa) + self.exponent * math.log10(2.0)


def size(cores: Cores, center: int | None, layout: MatrixLayout | None = None) -> Size:
    """Return the Frobenius norm of a chain, without its padding if it has a padded layout.

    From orthogonal factors, not from squares of the cores: where a difference almost vanishes,
    its norm is right to the rounding of the parts. Only a padded matrix that is smaller than
    its cores is formed: that costs less.
    """
    backend, wide = widened(cores)
    center = trusted(cores, center)
    if layout is not None and layout.padded:
        small = math.prod(layout.padded_shape) <= sum(map(n_elements, cores))
        if small and layout.n_sites <= MAX_SITES:
            norm = _formed(cores, layout)
            if 0.0 < norm < math.inf:
                return Size(norm, 0)
        first, exponent = centered(wide, center, 0, backend)
        return Size(math.sqrt(_true_weight(first, layout, backend)), exponent)
    if center is not None:
        wide = (wide[center],)
    first, exponent = centered(wide, None, 0, backend)
    return Size(math.sqrt(weight(first[0], backend)), exponent)


def _formed(cores: Cores, layout: MatrixLayout) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # then the cores are taken
        wide = contract_wide(cores, layout)
    backend = backend_of(wide)
    return frobenius(wide) if backend.all_finite(wide) else math.inf


def distance(a: Size, b: Size) -> float:
    """Return the ratio of two norms, 0 where the second is zero."""
    if b.mantissa == 0.0:
        return 0.0
    return math.ldexp(a.mantissa / b.mantissa, a.exponent - b.exponent)


def spectra(cores: Cores, center: int | None) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Return the singular values of all inner bonds in one sweep, and their binary exponent.

    Source: Schollwoeck 2011, section 4.5.
    """
    backend, wide = widened(cores)
    wide, exponent = centered(wide, trusted(cores, center), 0, backend)
    found = []
    rest = wide[0]
    for k in range(len(wide) - 1):
        _, s, vh = thin_svd(rows_matrix(rest, backend), backend)
        found.append(s)
        rest = absorb_left(backend.like(s, vh)[:, None] * vh, wide[k + 1], backend)
    return found, exponent


def entropy(values: np.ndarray[Any, Any]) -> float:
    """Return the von Neumann entropy of singular values, in natural units; 0 for zero values.

    Examples
    --------
    >>> round(entropy(np.array([2.0, 2.0])), 6), entropy(np.zeros(2))
    (0.693147, 0.0)
    """
    largest = float(values.max(initial=0.0))
    if largest == 0.0:
        return 0.0
    shares = (values / largest) ** 2
    shares = shares[shares > 0.0] / shares.sum()
    # Plus zero: minus zero for a single value is no entropy to print.
    return max(float(-(shares * np.log(shares)).sum()), 0.0) + 0.0


def _true_weight(cores: Cores, layout: MatrixLayout, backend: Backend) -> float:
    """Return the squared norm of the true part of a chain whose norm sits in the first core.

    Rows and columns are each equal to the last true number so far, or free. Once both are free
    nothing has to be looked at: the cores that follow are isometric.
    """
    rows = _Side(layout.rows, layout.row_dims)
    cols = _Side(layout.cols, layout.col_dims)
    found = 0.0
    states = {(rows.open[0], cols.open[0]): backend.identity(1, cores[0])}
    for k, core in enumerate(cores):
        sites = (int(core.shape[0]), layout.row_dims[k], layout.col_dims[k], -1)
        grid = backend.tl.reshape(core, sites)
        parts: dict[tuple[bool, bool], list[Array]] = {}
        for (row_equal, col_equal), factor in states.items():
            for i, row_next in rows.steps(k, row_equal):
                for j, col_next in cols.steps(k, col_equal):
                    block = absorb_left(factor, _flat(grid[:, i, j], backend), backend)
                    part = rows_matrix(block, backend)
                    parts.setdefault((row_next, col_next), []).append(part)
        found += sum(weight(part, backend) for part in parts.pop((False, False), []))
        states = {state: _joined(listed, backend) for state, listed in parts.items()}
    return found


class _Side:
    """The digits of the last true row or column, and where digits still matter."""

    def __init__(self, true_size: int, dims: tuple[int, ...]) -> None:
        self.last, self.dims = digits(true_size - 1, dims), dims
        self.open = open_bonds(true_size, dims)

    def steps(self, k: int, equal: bool) -> list[tuple[slice, bool]]:
        """Return the digits allowed at a site, and whether all is equal still after them."""
        digit = self.last[k]
        if not equal:
            return [(slice(0, self.dims[k]), False)]
        if not self.open[k + 1]:
            return [(slice(0, digit + 1), False)]
        smaller = [(slice(0, digit), False)] if digit else []
        return [*smaller, (slice(digit, digit + 1), True)]


def _flat(block: Array, backend: Backend) -> Array:
    left, i, j, right = (int(d) for d in block.shape)
    return backend.tl.reshape(block, (left, i * j, right))


def _joined(parts: list[Array], backend: Backend) -> Array:
    rows = backend.tl.concatenate(parts, axis=0)
    # The triangular factor has the same weight in fewer rows.
    return backend.tl.qr(rows)[1] if int(rows.shape[0]) > int(rows.shape[1]) else rows
