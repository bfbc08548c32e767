"""Random numbers that are a pure function of a key: no state, so that any sample is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
# Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, figure 16).
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROUNDS = 6


class Draws:
    """A stream of uniform numbers that its key alone determines.

    The bits are those of Philox 4x64, which numpy promises to keep; how numbers are made of them
    is written here, so that another version of numpy gives the same samples.

    Parameters
    ----------
    *key : int
        Non-negative integers such as a seed, the number of a sample and a purpose.

    Examples
    --------
    >>> Draws(0, 5).below(100, 3).tolist() == Draws(0, 5).below(100, 3).tolist()
    True
    >>> Draws(0, 5).below(100, 3).tolist() == Draws(0, 6).below(100, 3).tolist()
    False
    """

    def __init__(self, *key: int) -> None:
        first, second = 0, 0
        for part in key:
            first = mixed(first ^ (int(part) & _MASK))
            second = mixed(second + first)
        self._bits = np.random.Philox(key=np.array([first, second], dtype=np.uint64))

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1).

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        ndarray of float64
            (count,), multiples of 2**-53.
        """
        raw: Integers = self._bits.random_raw(count)
        numbers: NDArray[np.float64] = (raw >> np.uint64(11)) * np.float64(2.0**-53)
        return numbers

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Return uniform integers from 0 to below a limit.

        Parameters
        ----------
        limit : int
            At most 2**32, for which the bias stays under 2**-20.
        count : int
            How many.

        Returns
        -------
        ndarray of int64
            (count,).
        """
        return (self.uniform(count) * limit).astype(np.int64)


def mixed(value: int) -> int:
    """Return an integer whose 64 bits all depend on all bits of another.

    Parameters
    ----------
    value : int
        Non-negative, below 2**64.

    Returns
    -------
    int
        The finalizer of splitmix64.

    Examples
    --------
    >>> hex(mixed(0))
    '0xe220a8397b1dcdaf'
    """
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def shuffled(places: NDArray[np.int64], size: int, *key: int) -> NDArray[np.int64]:
    """Return where a random permutation of ``range(size)`` takes some places.

    A Feistel network over the next power of four, walked until it lands inside the range
    (Black and Rogaway, CT-RSA 2002, section 3): any place costs the same, no table is kept.

    Parameters
    ----------
    places : ndarray of int64
        Numbers from 0 to below `size`.
    size : int
        Length of the permutation.
    *key : int
        What determines the permutation.

    Returns
    -------
    ndarray of int64
        As many numbers from 0 to below `size`.

    Examples
    --------
    >>> order = shuffled(np.arange(10), 10, 7)
    >>> sorted(order.tolist()) == list(range(10))
    True
    """
    half = max(1, ((max(size, 2) - 1).bit_length() + 1) // 2)
    seed = 0
    for part in key:
        seed = mixed(seed ^ (int(part) & _MASK))
    keys = [np.uint64(mixed(seed + number)) for number in range(_ROUNDS)]
    result = _feistel(places.astype(np.uint64), half, keys)
    outside = result >= np.uint64(size)
    while outside.any():
        result[outside] = _feistel(result[outside], half, keys)
        outside = result >= np.uint64(size)
    return result.astype(np.int64)


def _feistel(values: Integers, half: int, keys: list[np.uint64]) -> Integers:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_scrambled(right ^ key) & mask)
    return (left << shift) | right


def _scrambled(values: Integers) -> Integers:
    # Arrays wrap around silently, which is what is wanted.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))
