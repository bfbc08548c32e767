"""Forms in which a matrix can be stored, ranked; the table that a search prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tensornet.contract.orders import product_costs
from tensornet.decompose import mpo
from tensornet.errors import OptionError, complaint
from tensornet.layout import MatrixLayout
from tensornet.network import MPO
from tensornet.typing import Array

DENSE, SVD, WHITENED, CHAIN = "dense", "svd", "whitened svd", "mpo"


@dataclass(frozen=True)
class Candidate:
    """One form of a matrix: its kind, layout and inner bonds, and what it costs.

    Attributes
    ----------
    kind : {"dense", "svd", "whitened svd", "mpo"}
        What it is; an SVD is a chain of two sites.
    layout : MatrixLayout or None
        Sites of the chain; None for the dense matrix.
    bonds : tuple of int
        Inner bonds.
    n_params : int
        Stored elements.
    relative_error : float
        Relative Frobenius error, in the metric if the search had one.
    multiply_adds : int
        Of a product with the batch of the search, in the order that needs fewest.

    Examples
    --------
    >>> Candidate("dense", None, (), 64, 0.0, 64).n_params
    64
    """

    kind: str
    layout: MatrixLayout | None
    bonds: tuple[int, ...]
    n_params: int
    relative_error: float
    multiply_adds: int

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """(row_dims, col_dims), as :func:`tensornet.mpo` takes them; None for dense."""
        return None if self.layout is None else (self.layout.row_dims, self.layout.col_dims)

    def to_json(self) -> dict[str, Any]:
        """Return the candidate ready for JSON."""
        return {
            "kind": self.kind,
            "row_dims": None if self.layout is None else list(self.layout.row_dims),
            "col_dims": None if self.layout is None else list(self.layout.col_dims),
            "bonds": list(self.bonds),
            "n_params": self.n_params,
            "relative_error": self.relative_error,
            "multiply_adds": self.multiply_adds,
        }


@dataclass(frozen=True)
class SearchResult:
    """Candidates for one matrix, the best first; prints as a table.

    Attributes
    ----------
    rows : tuple of Candidate
        Ranked.
    matrix_shape : (int, int)
        Rows and columns of the matrix.
    limit : (str, float)
        "max_params" or "rtol", and its value.
    batch : int
        Number of vectors that multiply-adds are counted for.
    in_metric : bool
        Whether errors are those in a metric.
    noise : float
        Relative error below which a form is as good as the matrix itself, but for rounding.

    Examples
    --------
    >>> dense = Candidate("dense", None, (), 64, 0.0, 64)
    >>> SearchResult((dense,), (8, 8), ("rtol", 0.1), 1, False).best.kind
    'dense'
    """

    rows: tuple[Candidate, ...]
    matrix_shape: tuple[int, int]
    limit: tuple[str, float]
    batch: int
    in_metric: bool
    noise: float = 0.0

    @property
    def best(self) -> Candidate:
        """The first of the rows."""
        return self.rows[0]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def build(self, W: Array, metric: Array | None = None) -> MPO:
        """Return the matrix in the form of the best row.

        Parameters
        ----------
        W : Array, shape (rows, cols)
            The matrix that was searched for.
        metric : Array, optional
            The metric of the search, if it had one.

        Raises
        ------
        OptionError
            If the dense matrix is best, or the metric is missing or superfluous.
        """
        best = self.best
        if best.layout is None:
            remedy = "Keep the matrix."
            raise OptionError(complaint("the best form", "be a chain", "the dense matrix", remedy))
        if self.in_metric != (metric is not None):
            given = "none" if metric is None else "one"
            expected = "be that of the search" if self.in_metric else "be left out"
            raise OptionError(complaint("metric", expected, given))
        shape = best.layout.n_sites if best.layout.padded else best.shape
        used = None if best.kind == SVD else metric
        return mpo(W, shape, bonds=best.bonds, metric=used)

    def to_json(self) -> dict[str, Any]:
        """Return the search ready for JSON.

        Examples
        --------
        >>> dense = Candidate("dense", None, (), 64, 0.0, 64)
        >>> SearchResult((dense,), (8, 8), ("rtol", 0.1), 1, False).to_json()["limit"]
        {'rtol': 0.1}
        """
        return {
            "matrix_shape": list(self.matrix_shape),
            "limit": dict([self.limit]),
            "batch": self.batch,
            "in_metric": self.in_metric,
            "candidates": [row.to_json() for row in self.rows],
        }

    def __str__(self) -> str:
        rows, cols = self.matrix_shape
        error = "error (metric)" if self.in_metric else "error"
        head = ("form", "sites", "bonds", "parameters", "of dense", error, "multiply-adds")
        lines = [head, *(_cells(row, rows * cols) for row in self.rows)]
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        texts = [_line(line, widths) for line in lines]
        kind, value = self.limit
        title = f"{rows} x {cols}, {kind} {value:g}, multiply-adds for a batch of {self.batch}"
        note = table_warning(self)
        return "\n".join(
            [title, texts[0], "-" * len(texts[0]), *texts[1:], *([note] if note else [])]
        )


def multiply_adds(layout: MatrixLayout, bonds: tuple[int, ...], batch: int) -> int:
    """Return the multiply-adds of a product in the cheapest order, of n + 1 bonds.

    Examples
    --------
    >>> multiply_adds(MatrixLayout((8, 1), (1, 8)), (1, 2, 1), 3)
    96
    """
    return min(product_costs(layout, bonds[:-1], batch).values())


def ranked(
    candidates: Iterable[Candidate], *, by_params: bool, noise: float = 0.0
) -> tuple[Candidate, ...]:
    """Return candidates with the best first: by error, or by parameters where all are allowed.

    Errors that are rounding ``noise`` are alike: fewest parameters come first among them.
    """

    def key(row: Candidate) -> tuple[float, float, int]:
        first, second = _beyond(noise, row), float(row.n_params)
        return (
            (second, first, row.multiply_adds) if by_params else (first, second, row.multiply_adds)
        )

    return tuple(sorted(candidates, key=key))


def table_warning(result: SearchResult) -> str:
    """Return a sentence if something simpler than an MPO wins, else an empty text."""
    best = result.best
    if best.kind == CHAIN:
        return ""
    chain = next((row for row in result.rows if row.kind == CHAIN), None)
    if chain is None:
        return f"Note: {_named(best)} is best; no MPO fits the limit."
    alike = _beyond(result.noise, best) == _beyond(result.noise, chain) == 0.0
    if alike and best.n_params == chain.n_params:
        return ""
    if alike:
        figures = f"{best.n_params:,} parameters against {chain.n_params:,}"
        return f"Note: {_named(best)} beats every MPO tried: {figures}, both exact to rounding."
    figures = f"error {best.relative_error:.3g} with {best.n_params:,} parameters"
    other = f"{chain.relative_error:.3g} with {chain.n_params:,}"
    return f"Note: {_named(best)} beats every MPO tried: {figures}, the best MPO {other}."


def _beyond(noise: float, row: Candidate) -> float:
    return row.relative_error if row.relative_error > noise else 0.0


def _named(row: Candidate) -> str:
    return {DENSE: "the dense matrix", SVD: "a plain SVD", WHITENED: "a whitened SVD"}[row.kind]


def _cells(row: Candidate, dense: int) -> tuple[str, ...]:
    sites = ""
    if row.layout is not None:
        sites = f"{row.layout.row_dims} x {row.layout.col_dims}".replace(", ", ",")
        sites += " padded" if row.layout.padded else ""
    numbers: tuple[Any, ...] = (
        " ".join(str(b) for b in row.bonds),
        f"{row.n_params:,}",
        f"{row.n_params / dense:.4f}",
        f"{row.relative_error:.4g}",
        f"{row.multiply_adds:,}",
    )
    return (row.kind, sites, *numbers)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join([*left, *right])
