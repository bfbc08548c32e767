"""What an allocation gives each matrix, as an immutable value that prints as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensornet.errors import OptionError, complaint
from tensornet.layout import MatrixLayout


@dataclass(frozen=True)
class Allotment:
    """One matrix' part of an allocation.

    Attributes
    ----------
    name : str
        Its key in the mapping, or its place in the sequence.
    layout : MatrixLayout
        Sites of the matrix; give it to :func:`tensornet.mpo` as ``shape``.
    bonds : tuple of int or None
        The n - 1 inner bonds; None where the matrix stays as it is.
    n_params : int
        Elements that it then takes.
    relative_error : float
        Bound on the relative Frobenius error, from the spectra of the uncut matrix; 0 for a
        matrix that stays as it is.
    weight : float
        Weight of its squared error.
    copies : tuple of (int, int, int)
        How many side cores, central cores and dense matrices are counted for it.

    Examples
    --------
    >>> a = Allotment("0", MatrixLayout((4, 4), (4, 4)), (2,), 64, 0.25, 1.0)
    >>> a.dense_params, a.ratio, a.dense
    (256, 0.25, False)
    """

    name: str
    layout: MatrixLayout
    bonds: tuple[int, ...] | None
    n_params: int
    relative_error: float
    weight: float
    copies: tuple[int, int, int] = (1, 1, 1)

    @property
    def dense(self) -> bool:
        """Whether the matrix stays as it is."""
        return self.bonds is None

    @property
    def dense_params(self) -> int:
        """Elements of the matrix, or of all that it stands for."""
        return self.layout.rows * self.layout.cols * self.copies[2]

    @property
    def ratio(self) -> float:
        """Stored / dense."""
        return self.n_params / self.dense_params


@dataclass(frozen=True)
class Allocation:
    """Bonds for many matrices under one budget; prints as a table.

    Made by :func:`tensornet.allocate`. Iterating gives the allotments in the order of the
    matrices, indexing takes a name or a place.

    Attributes
    ----------
    allotments : tuple of Allotment
        One for each matrix.
    measure : {"relative", "absolute"}
        Whether squared errors were added up relative to each matrix' norm or as they are.
    max_params : int or None
        The budget, if one was given.
    rtol : float or None
        The tolerance, if one was given.
    error : float
        What was made small: the root of the weighted mean of squared relative errors, or with
        "absolute" the root of the weighted sum of squared errors over that of squared norms. A
        bound. With "retained" the root of one minus the weighted geometric mean of the shares
        that are kept, each a product over bonds, which is no bound.

    Examples
    --------
    >>> a = Allotment("0", MatrixLayout((4, 4), (4, 4)), (2,), 64, 0.25, 1.0)
    >>> allocation = Allocation((a,), "relative", 64, None, 0.25)
    >>> allocation.n_params, allocation["0"].bonds
    (64, (2,))
    """

    allotments: tuple[Allotment, ...]
    measure: str
    max_params: int | None
    rtol: float | None
    error: float

    @property
    def n_params(self) -> int:
        """Elements of all networks and of all matrices that stay as they are."""
        return sum(a.n_params for a in self.allotments)

    @property
    def dense_params(self) -> int:
        """Elements of all matrices."""
        return sum(a.dense_params for a in self.allotments)

    @property
    def ratio(self) -> float:
        """Stored / dense."""
        return self.n_params / self.dense_params

    def __len__(self) -> int:
        return len(self.allotments)

    def __iter__(self) -> Iterator[Allotment]:
        return iter(self.allotments)

    def __getitem__(self, key: str | int) -> Allotment:
        """Return the allotment of a name or a place.

        Raises
        ------
        OptionError
            If there is no such matrix.
        """
        if isinstance(key, str):
            for a in self.allotments:
                if a.name == key:
                    return a
        elif -len(self) <= key < len(self):
            return self.allotments[key]
        expected = f"be a name or a place of one of {len(self)} matrices"
        raise OptionError(complaint("key", expected, repr(key)))

    def to_json(self) -> str:
        """Return the allocation as one line of JSON."""
        rows: list[dict[str, Any]] = [
            {
                "name": a.name,
                "shape": list(a.layout.shape),
                "row_dims": list(a.layout.row_dims),
                "col_dims": list(a.layout.col_dims),
                "bonds": None if a.bonds is None else list(a.bonds),
                "n_params": a.n_params,
                "relative_error": a.relative_error,
                "weight": a.weight,
            }
            for a in self.allotments
        ]
        record = {"measure": self.measure, "max_params": self.max_params, "rtol": self.rtol}
        totals = {"error": self.error, "n_params": self.n_params, "dense_params": self.dense_params}
        return json.dumps({**record, **totals, "matrices": rows}, ensure_ascii=False)

    def __str__(self) -> str:
        head = ("matrix", "shape", "bonds", "parameters", "ratio", "error at most")
        rows = [head, *(_cells(a) for a in self.allotments)]
        rows.append(
            (
                "together",
                "",
                "",
                f"{self.n_params:,}",
                f"{self.ratio:.4f}",
                f"{self.error:.4g}",
            )
        )
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        lines = [_line(row, widths) for row in rows]
        rule = "-" * max(len(line) for line in lines)
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _cells(a: Allotment) -> tuple[str, ...]:
    size = f"{a.layout.rows} x {a.layout.cols}"
    bonds = "dense" if a.bonds is None else " ".join(str(b) for b in a.bonds)
    return a.name, size, bonds, f"{a.n_params:,}", f"{a.ratio:.4f}", f"{a.relative_error:.4g}"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    left = [f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=False)]
    right = [f"{cell:>{width}}" for cell, width in zip(row[3:], widths[3:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


def root(square: float) -> float:
    """Return the square root, 0 for what rounding has made negative."""
    return math.sqrt(max(square, 0.0))
