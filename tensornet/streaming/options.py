"""What is asked of a whole file: which matrices, in how many sites, under which limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np

from tensornet.checks import integer, tolerance
from tensornet.errors import BondError, OptionError, ShapeError, complaint
from tensornet.layout import MAX_SITES


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
        Number of balanced sites.
    min_size : int
        Matrices with fewer rows or columns stay as they are.
    keep_larger : bool
        Whether a chain that is larger than its matrix is stored all the same.

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

    def __post_init__(self) -> None:
        if self.max_bond is None and self.rtol is None and self.ratio is None:
            remedy = "An exact chain is larger than its matrix."
            raise OptionError(complaint("limits", "name max_bond, rtol or ratio", "none", remedy))
        if self.rtol is not None and self.ratio is not None:
            raise OptionError(complaint("limits", "not name both rtol and ratio", "both"))
        if self.max_bond is not None:
            integer("max_bond", self.max_bond, 1, BondError)
        if self.rtol is not None:
            tolerance(self.rtol, "float64", self.sites)
        _check_ratio(self.ratio)
        _check_sites(self.sites)
        integer("min_size", self.min_size, 1, ShapeError)
        _check_patterns("include", self.include)
        _check_patterns("exclude", self.exclude)

    def selects(self, name: str) -> bool:
        """Return whether a tensor of this name is to be decomposed if it can be."""
        wanted = any(fnmatchcase(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(name, pattern) for pattern in self.exclude)

    def budget(self, dense: int) -> int | None:
        """Return how many parameters a matrix of ``dense`` elements may take; None for any."""
        return None if self.ratio is None else int(self.ratio * dense)

    def limits(self) -> dict[str, Any]:
        """Return what the result for a selected matrix depends on."""
        names = ("max_bond", "rtol", "ratio", "sites", "keep_larger")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return the options ready for JSON."""
        listed = {name: list(getattr(self, name)) for name in ("include", "exclude")}
        return {**asdict(self), **listed}


def _check_ratio(ratio: object) -> None:
    if ratio is None:
        return
    number = isinstance(ratio, Real) and not isinstance(ratio, bool | np.bool_)
    if not number or not 0.0 < float(ratio) <= 1.0:  # type: ignore[arg-type]
        remedy = "It is stored / dense."
        raise OptionError(complaint("ratio", "be a number in (0, 1]", repr(ratio), remedy))


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
