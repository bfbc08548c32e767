"""What is asked of a whole file: which matrices, in how many sites, under which limits."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from tensornet.checks import choice, fraction, integer, tolerance
from tensornet.errors import BondError, OptionError, ShapeError, complaint
from tensornet.layout import MAX_SITES, MatrixLayout, matrix_layout

_DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Options:
    """Which matrices of a file are decomposed, and how.

    Parameters
    ----------
    max_bond : int, optional
        Hard cap for every bond.
    rtol : float, optional
        Largest relative error of each matrix, storage of the cores included.
    ratio : float, optional
        Largest number of stored parameters of each matrix, as a share of the matrix.
    include, exclude : tuple of str
        Patterns with ``*`` and ``?`` for the names of tensors; a name must match one of the
        first and none of the second.
    sites : int
        Number of balanced sites of matrices that no shape is given for.
    min_size : int
        Matrices with fewer rows or columns stay as they are.
    keep_larger : bool
        Whether a chain that is larger than its matrix is stored all the same.
    shapes : tuple of (row_dims, col_dims)
        Sites for the matrices of the sizes that they multiply to.
    dtype : {"float64", "float32", "float16", "bfloat16"}, optional
        Element type of the cores; each matrix' own by default.
    max_params : int, optional
        Largest number of elements of the whole file, with all that is not decomposed. The
        matrices share what is left so that the sum of their squared relative errors is least.

    Raises
    ------
    OptionError, BondError, ToleranceError, ShapeError
        If a limit is out of range, or there is none.

    Examples
    --------
    >>> Options(ratio=0.5, include=("*.weight",)).selects("layer.0.weight")
    True
    """

    max_bond: int | None = None
    rtol: float | None = None
    ratio: float | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    sites: int = 5
    min_size: int = 16
    keep_larger: bool = False
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    dtype: str | None = None
    max_params: int | None = None

    def __post_init__(self) -> None:
        _check_limits(self)
        if self.max_params is not None:
            integer("max_params", self.max_params, 1, OptionError)
        if self.max_bond is not None:
            integer("max_bond", self.max_bond, 1, BondError)
        if self.rtol is not None:
            tolerance(self.rtol, "float64", self.sites)
        if self.ratio is not None:
            fraction("ratio", self.ratio)
        _check_sites(self.sites)
        integer("min_size", self.min_size, 1, ShapeError)
        _check_patterns("include", self.include)
        _check_patterns("exclude", self.exclude)
        _check_shapes(self.shapes)
        if self.dtype is not None:
            choice("dtype", self.dtype, _DTYPES)

    def selects(self, name: str) -> bool:
        """Return whether a tensor of this name is to be decomposed if it can be."""
        wanted = any(fnmatchcase(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(name, pattern) for pattern in self.exclude)

    def budget(self, dense: int) -> int | None:
        """Return how many parameters a matrix of ``dense`` elements may take; None for any."""
        return None if self.ratio is None else int(self.ratio * dense)

    def layout(self, shape: tuple[int, ...]) -> MatrixLayout:
        """Return the sites of a matrix: those of the shape for its size, or balanced ones."""
        rows, cols = shape
        own = [s for s in self.shapes if (math.prod(s[0]), math.prod(s[1])) == (rows, cols)]
        return matrix_layout(rows, cols, own[0] if own else self.sites)

    def limits(self) -> dict[str, Any]:
        """Return what the result for a selected matrix depends on, ready for JSON.

        Under one budget for all, that is the choice of the matrices too.
        """
        names = ["max_bond", "rtol", "ratio", "sites", "keep_larger", "shapes", "dtype"]
        if self.max_params is not None:
            names += ["max_params", "include", "exclude", "min_size"]
        found: dict[str, Any] = json.loads(json.dumps({n: getattr(self, n) for n in names}))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the options ready for JSON."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


def _check_limits(options: Options) -> None:
    names = ("max_bond", "rtol", "ratio", "max_params")
    given = [name for name in names if getattr(options, name) is not None]
    if not given:
        remedy = "An exact chain is larger than its matrix."
        expected = "name max_bond, rtol, ratio or max_params"
        raise OptionError(complaint("limits", expected, "none", remedy))
    if "rtol" in given and "ratio" in given:
        raise OptionError(complaint("limits", "not name both rtol and ratio", "both"))
    if "max_params" in given and len(given) > 1:
        expected = "not name max_params with another one"
        raise OptionError(complaint("limits", expected, " and ".join(given)))


def _check_shapes(shapes: object) -> None:
    if not isinstance(shapes, tuple):
        raise ShapeError(complaint("shapes", "be a tuple of (row_dims, col_dims)", repr(shapes)))
    sizes = []
    for shape in shapes:
        pair = isinstance(shape, tuple) and len(shape) == 2
        if not pair or not all(isinstance(side, tuple) and side for side in shape):
            raise ShapeError(complaint("shapes", "hold pairs (row_dims, col_dims)", repr(shape)))
        for side, name in zip(shape, ("row_dims", "col_dims"), strict=True):
            for d in side:
                integer(name, d, 1, ShapeError)
        size = math.prod(shape[0]), math.prod(shape[1])
        matrix_layout(*size, shape)
        sizes.append(size)
    twice = [size for size in sizes if sizes.count(size) > 1]
    if twice:
        given = f"two of {twice[0][0]} x {twice[0][1]}"
        raise ShapeError(complaint("shapes", "have one for each size", given))


def _check_sites(sites: object) -> None:
    if integer("sites", sites, 2, ShapeError) > MAX_SITES:
        raise ShapeError(complaint("sites", f"be at most {MAX_SITES}", sites))


def _check_patterns(argument: str, patterns: object) -> None:
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise OptionError(complaint(argument, "be a tuple of patterns", repr(patterns)))
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise OptionError(
                complaint(argument, "hold patterns such as '*.weight'", repr(pattern))
            )
