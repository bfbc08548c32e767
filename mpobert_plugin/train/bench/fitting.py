"""Fewer samples at a time where memory is short, so that a contender is measured all the same."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def fitting(whole: int, make: Callable[[int], T]) -> tuple[T, int]:
    """Return what was made for as many samples at a time as there is memory for.

    Parameters
    ----------
    whole : int
        Samples to begin with; halved while they do not fit.
    make : callable
        Takes the number of samples at a time, and runs what it returns once.

    Returns
    -------
    tuple of (object, int)
        What was made, and the number.

    Raises
    ------
    torch.OutOfMemoryError
        When an odd number does not fit.

    Examples
    --------
    >>> fitting(8, lambda size: "x" * size)
    ('xxxxxxxx', 8)
    """
    size = whole
    while True:
        try:
            return make(size), size
        except torch.OutOfMemoryError:
            if size % 2:
                raise
        # Behind the error, which holds what did not fit.
        size //= 2
        if "torch._dynamo" in sys.modules:
            # Else a second size would be compiled for any size, which is slower.
            torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
