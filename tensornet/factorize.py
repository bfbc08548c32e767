"""Balanced factors of an integer, and the next integer that has them."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache, lru_cache

from tensornet.checks import integer
from tensornet.errors import ShapeError, complaint

# A factorization is fair when its largest factor is at most this many times the ideal
# size**(1/n). Presets of published models stay below 1.7; a prime among five sites is far above.
_FAIR = 2.0
_TRIVIAL = 3
# Beyond any dimension of an array in memory, and still factorized in well under a second.
MAX_SIZE = 2**40
MAX_FACTORS = 128


def factorize(size: int, n: int) -> tuple[int, ...]:
    """Return n factors of a size, as equal as possible, the largest in the middle.

    Among all ordered products the one with the smallest sum is taken, then the smallest
    largest factor. From the middle outwards factors fall in the order right, left, right, left.

    Parameters
    ----------
    size : int
        The number to factorize, at least 1.
    n : int
        Number of factors, at least 1.

    Returns
    -------
    tuple of int
        n factors whose product is ``size``.

    Raises
    ------
    ShapeError
        If an argument is no positive integer, or no fair factorization exists: the prime
        factor in the way is named, and the next size that has one.

    Examples
    --------
    >>> factorize(3072, 5)
    (4, 4, 8, 6, 4)
    >>> factorize(768, 5)
    (3, 4, 4, 4, 4)
    """
    size = integer("size", size, 1, ShapeError)
    n = integer("n", n, 1, ShapeError)
    if size > MAX_SIZE or n > MAX_FACTORS:
        expected = f"be at most {MAX_SIZE:,} in at most {MAX_FACTORS} factors"
        raise ShapeError(complaint("size", expected, f"{size:,} in {n}"))
    factors = _balanced(size, n)
    if not is_fair(factors):
        raise ShapeError(
            complaint(
                "size",
                f"have {n} factors of about the same size",
                f"{size} with the prime factor {max(prime_factors(size))}",
                f"Pad it with zeros to {next_fair(size, n)}.",
            )
        )
    return _middle_first(factors)


def is_fair(factors: tuple[int, ...]) -> bool:
    """Return whether the largest factor is at most twice the geometric mean (or tiny).

    Examples
    --------
    >>> is_fair((4, 4, 8, 6, 4)), is_fair((1, 103))
    (True, False)
    """
    largest = max(factors)
    ideal = math.exp(sum(math.log(f) for f in factors) / len(factors))
    return len(factors) == 1 or largest <= _TRIVIAL or largest <= _FAIR * ideal * (1 + 1e-12)


def next_fair(size: int, n: int) -> int:
    """Return the smallest integer of at least ``size`` with a fair factorization.

    Examples
    --------
    >>> next_fair(103, 3)
    105
    """
    while True:
        if is_fair(_balanced(size, n)):
            return size
        size += 1


def prime_factors(size: int) -> tuple[int, ...]:
    """Return the prime factors in ascending order, with repetitions.

    Examples
    --------
    >>> prime_factors(30522)
    (2, 3, 5087)
    """
    found: list[int] = []
    divisor = 2
    while divisor * divisor <= size:
        while size % divisor == 0:
            found.append(divisor)
            size //= divisor
        divisor += 1 if divisor == 2 else 2
    return tuple([*found, size] if size > 1 or not found else found)


def _middle_first(factors: tuple[int, ...]) -> tuple[int, ...]:
    n = len(factors)
    placed = [1] * n
    order = sorted(range(n), key=lambda k: (abs(k - n // 2), k < n // 2))
    for position, factor in zip(order, sorted(factors, reverse=True), strict=True):
        placed[position] = factor
    return tuple(placed)


@lru_cache(maxsize=4096)
def _balanced(size: int, n: int) -> tuple[int, ...]:
    """Return the ascending factors with the least sum, then the least largest one."""
    primes = prime_factors(size)
    divisors = [1]
    for prime in sorted(set(primes)):
        powers = [prime**k for k in range(primes.count(prime) + 1)]
        divisors = [d * p for d in divisors for p in powers]
    ladder = tuple(sorted(divisors))

    @cache
    def best(rest: int, sites: int, least: int) -> tuple[int, int, tuple[int, ...]] | None:
        if sites == 1:
            return (rest, rest, (rest,)) if rest >= least else None
        found = None
        root = rest ** (1.0 / sites) * (1 + 1e-9)
        for d in reversed(ladder[: bisect_right(ladder, root)]):
            # Equal factors have the least sum, and it grows the further d falls below them.
            bound = d + (sites - 1) * (rest / d) ** (1.0 / (sites - 1))
            if d < least or (found is not None and bound > found[0] + 1e-6):
                break
            tail = best(rest // d, sites - 1, d) if rest % d == 0 else None
            if tail is not None:
                candidate = (d + tail[0], tail[1], (d, *tail[2]))
                found = candidate if found is None else min(found, candidate)
        return found

    result = best(size, n, 1)
    return (size,) if result is None else result[2]  # None never: ones always fit
