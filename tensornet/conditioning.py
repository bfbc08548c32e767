"""What the rounding of the numbers in a chain does to what the chain represents."""

from __future__ import annotations

import math

import numpy as np

from tensornet.backend import Backend
from tensornet.storage import weight
from tensornet.typing import Array, Cores

# Growth of the parts that meet, over all bonds, from which some of them cancel.
CANCELLED = 4.0
# Errors of a sweep of factorizations, in those of rounding each number once.
_SWEEP = 4.0


def rounding_share(cores: Cores, norm: tuple[float, int], backend: Backend) -> float:
    """Return about how much a sweep in double precision errs, relative to a chain's norm.

    Every entry of every core is taken to be rounded by itself. To first order the squared errors
    of the whole add up, and that of one entry is its square times those of the parts of the chain
    that meet it on the left and on the right: the diagonals of their Gram matrices. Where parts
    of a chain cancel, at one bond or a little at each, this is much larger than the norm.

    Parameters
    ----------
    cores : Cores
        Three axes (left, site, right), double precision, entries near one or smaller.
    norm : tuple of float and int
        Norm of the chain: mantissa, and exponent of two.
    backend : Backend
        Operations for the cores.

    Returns
    -------
    float
        Relative, Frobenius; infinite where the norm is zero.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> numpy, one = load_backend("numpy"), np.ones((1, 2, 1))
    >>> rounding_share((one, one), (2.0, 0), numpy) < 1e-15
    True
    >>> pair = (np.ones((1, 1, 2)), np.array([1.0, -1.0 + 1e-9]).reshape(2, 1, 1))
    >>> 1e-7 < rounding_share(pair, (1e-9, 0), numpy) < 1e-5
    True
    """
    mantissa, exponent = norm
    if mantissa == 0.0:
        return math.inf
    lefts, rights = _diagonals(cores, backend), _diagonals(_mirrored(cores, backend), backend)[::-1]
    total = 0.0
    for core, (left, low), (right, high) in zip(cores, lefts, rights, strict=True):
        squares = backend.numbers(backend.tl.sum(backend.tl.abs(core) ** 2, axis=1))
        total += _times(float(left @ squares @ right), low + high - 2 * exponent)
    return _SWEEP * 2.0**-53 * math.sqrt(total) / mantissa


def _diagonals(cores: Cores, backend: Backend) -> list[tuple[np.ndarray, int]]:
    """Return the diagonal of the Gram matrix of all that is left of each core, and its exponent."""
    gram: Array = backend.identity(1, cores[0])
    exponent, found = 0, []
    for core in cores:
        left, site, right = (int(d) for d in core.shape)
        found.append((np.real(np.diagonal(backend.numbers(gram))), exponent))
        met = gram @ backend.tl.reshape(core, (left, site * right))
        rows = backend.tl.reshape(core, (left * site, right))
        gram = backend.adjoint(rows) @ backend.tl.reshape(met, (left * site, right))
        size = weight(gram, backend)
        if size > 0.0:
            power = math.frexp(size)[1] // 2
            gram, exponent = gram * 2.0**-power, exponent + power
    return found


def _mirrored(cores: Cores, backend: Backend) -> Cores:
    return tuple(backend.tl.transpose(core, (2, 1, 0)) for core in reversed(cores))


def _times(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf
