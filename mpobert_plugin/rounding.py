"""Rounding matrices to an element type, and the report of what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mpobert_plugin.errors import ConfigError


@dataclass(frozen=True)
class MergeReport:
    """What merging into plain matrices changed: the rounding error of each; prints as a table.

    Parameters
    ----------
    errors : mapping of str to float
        Full name of each merged matrix to its rounding error: Frobenius norm of the stored minus
        the exact matrix, divided by that of the exact matrix. Exact is the product of the cores
        with the adapter added, in float64.
    dtype : str
        Element type of the stored matrices; 'mixed' when they have several.
    adapters : int
        Number of adapters that were added to their matrices.
    stored_before, stored_after : int
        Stored parameters of the model before and after.

    Examples
    --------
    >>> report = MergeReport({"query": 2e-8, "key": 3e-8}, "float32", 1, 50, 80)
    >>> report.largest
    3e-08
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    dtype: str = "float32"
    adapters: int = 0
    stored_before: int = 0
    stored_after: int = 0

    @property
    def largest(self) -> float:
        """The largest of the errors; 0 when nothing was merged."""
        return max(self.errors.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold.

        Returns
        -------
        dict
            The fields, and the largest error.

        Examples
        --------
        >>> MergeReport({"query": 0.0}, "float64").to_dict()["largest"]
        0.0
        """
        return {
            "dtype": self.dtype,
            "matrices": len(self.errors),
            "adapters": self.adapters,
            "stored_before": self.stored_before,
            "stored_after": self.stored_after,
            "largest": self.largest,
            "errors": dict(self.errors),
        }

    def __str__(self) -> str:
        """Return the report as a few lines of plain text."""
        lines = [
            f"{len(self.errors)} matrices merged into {self.dtype}, {self.adapters} adapters added",
            f"stored parameters {self.stored_before:,} before, {self.stored_after:,} after",
        ]
        worst = max(self.errors, key=lambda name: self.errors[name], default=None)
        if worst is not None:
            lines.append(f"largest rounding error {self.largest:.2e} (relative) in {worst}")
        return "\n".join(lines)


def rounded(matrix: Tensor, dtype: torch.dtype, name: str) -> tuple[Tensor, float]:
    """Return a matrix in another element type, and the relative error of that.

    Parameters
    ----------
    matrix : Tensor
        In float64.
    dtype : torch.dtype
        Element type of the result.
    name : str
        Full name of the matrix, for the message.

    Returns
    -------
    tuple of (Tensor, float)
        The rounded matrix, and the Frobenius norm of the difference over that of the matrix.

    Raises
    ------
    ConfigError
        When an entry is too large for the element type.

    Examples
    --------
    >>> rounded(torch.tensor([[1.0, 0.1]], dtype=torch.float64), torch.float64, "query")[1]
    0.0
    """
    stored = matrix.to(dtype)
    if not torch.isfinite(stored).all():
        raise ConfigError(
            f"dtype must hold every entry of {name}, got {_word(dtype)} with largest value "
            f"{torch.finfo(dtype).max:.3g} for an entry of size {float(matrix.abs().max()):.3g}. "
            "Use bfloat16 or float32."
        )
    norm = float(torch.linalg.vector_norm(matrix))
    distance = float(torch.linalg.vector_norm(stored.double() - matrix)) if norm else 0.0
    return stored, distance / norm if norm else 0.0


def check_dtype(dtype: object) -> torch.dtype | None:
    """Return the element type if models can be stored in it.

    Parameters
    ----------
    dtype : object
        Whatever the user gave; None stands for the model's own.

    Returns
    -------
    torch.dtype or None
        The same object.

    Raises
    ------
    ConfigError
        When it is something else.

    Examples
    --------
    >>> check_dtype(torch.bfloat16)
    torch.bfloat16
    """
    known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if dtype is not None and dtype not in known:
        raise ConfigError(
            f"dtype must be one of {', '.join(f'torch.{_word(one)}' for one in known)}, got "
            f"{dtype!r}."
        )
    return dtype


def common_dtype(dtypes: set[torch.dtype]) -> str:
    """Return the name of the element type that matrices have in common.

    Parameters
    ----------
    dtypes : set of torch.dtype
        Element types of the matrices.

    Returns
    -------
    str
        'mixed' when there are several.

    Examples
    --------
    >>> common_dtype({torch.float32})
    'float32'
    """
    return _word(next(iter(dtypes))) if len(dtypes) == 1 else "mixed"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
