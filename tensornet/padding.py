"""The true part of a padded index: which numbers lie below a limit, site by site.

A number is below a limit if it was smaller at the first digit that differs. Reading digits from
the most significant one, two states tell everything: equal so far, or already smaller. So the
mask of the true part is a chain with bonds of at most 2, and of 1 where the rest is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def digits(number: int, dims: Sequence[int]) -> tuple[int, ...]:
    """Return the digits of a number, most significant first; a Python integer of any size.

    Examples
    --------
    >>> digits(11, (2, 3, 4))
    (0, 2, 3)
    """
    found = []
    for d in reversed(dims):
        number, digit = divmod(number, d)
        found.append(digit)
    return tuple(reversed(found))


def open_bonds(size: int, dims: Sequence[int]) -> tuple[bool, ...]:
    """Return for each of the n + 1 bonds whether the digits after it still matter.

    They do not where the last true number has nothing but largest digits there.

    Examples
    --------
    >>> open_bonds(6, (2, 3, 2)), open_bonds(7, (2, 3, 2))
    ((True, False, False, False), (True, True, True, False))
    """
    last = digits(size - 1, dims)
    return tuple(
        any(last[j] < dims[j] - 1 for j in range(k, len(dims))) for k in range(len(dims) + 1)
    )


def mask_cores(size: int, dims: Sequence[int]) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the chain (left, digit, right) that is 1 for numbers below ``size``, else 0.

    Examples
    --------
    >>> a, b = mask_cores(5, (3, 2))
    >>> np.einsum("axb,byc->xy", a, b).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    """
    last, still_open = digits(size - 1, dims), open_bonds(size, dims)
    reached = [any(last[:k]) for k in range(len(dims) + 1)]  # a number can be smaller by then
    cores = []
    for k, d in enumerate(dims):
        core = np.zeros((2, d, 2))  # states: equal so far, smaller
        core[0, : last[k], 1] = 1.0
        core[0, last[k], 0] = 1.0
        core[1, :, 1] = 1.0
        if not still_open[k]:  # one state: all that follows is free
            core = np.ones((1, d, 2)) * [0.0, 1.0]
        elif not reached[k]:
            core = core[:1]
        if not still_open[k + 1]:
            core = core.sum(axis=2, keepdims=True)
        elif not reached[k + 1]:
            core = core[:, :, :1]
        cores.append(core)
    return tuple(cores)
