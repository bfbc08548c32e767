"""Gauges of chains whose norm may leave the range of numbers: exponents are kept apart.

Powers of two multiply without rounding, so taking them out of the cores and spreading them over
the cores again changes no digit.
"""

from __future__ import annotations

import math

from tensornet.backend import Backend
from tensornet.canonical import gather_step, move_left, move_right
from tensornet.conditioning import CANCELLED, rounding_share
from tensornet.errors import RangeError, complaint, counted
from tensornet.storage import scaled, weight
from tensornet.typing import Array, Cores

# Exponents of two between which the entries of a core keep all digits of its element type.
_RANGES = {"float16": (-14, 16), "bfloat16": (-126, 128), "float32": (-126, 128)}
_RANGES |= {"float64": (-1022, 1024), "complex64": (-126, 128), "complex128": (-1022, 1024)}


def centered(cores: Cores, center: int | None, target: int, backend: Backend) -> tuple[Cores, int]:
    """Return the cores with the norm in core ``target``, near one, and the exponent taken out.

    As :func:`tensornet.canonical.move_center`, for norms of any size.
    """
    cores, exponent = _balanced(cores, center, backend)
    left_of, right_of = (0, len(cores) - 1) if center is None else (center, center)
    for k in range(left_of, target):
        cores, power = near_one(move_right(cores, k, backend), k + 1, backend)
        exponent += power
    for k in range(right_of, target, -1):
        cores, power = near_one(move_left(cores, k, backend), k - 1, backend)
        exponent += power
    return cores, exponent


def gathered_first(cores: Cores, backend: Backend) -> tuple[Cores, int, float]:
    """Return the cores with the norm in the first, near one, its exponent, and the error of it.

    The error is relative, and 0 where the parts that met at the bonds were not much larger than
    their sums: rounding errors are relative to the parts.
    """
    cores, exponent = _balanced(cores, None, backend)
    given, taken, grown = cores, exponent, 1.0
    for k in range(len(cores) - 1, 0, -1):
        cores, growth = gather_step(cores, k, backend)
        cores, power = near_one(cores, k - 1, backend)
        exponent += power
        grown *= max(growth, 1.0)
    if grown <= CANCELLED:
        return cores, exponent, 0.0
    norm = math.sqrt(weight(cores[0], backend)), exponent - taken
    return cores, exponent, rounding_share(given, norm, backend)


def shares(
    core: Array, site: int, n: int, exponent: int, dtype: str, backend: Backend
) -> list[int]:
    """Return the exponents that give the cores of a chain its norm back, in an element type.

    All of it belongs to ``core``, at ``site``, which has entries near one and shall hold the
    norm. Where it would leave the range of numbers, every core takes its part.

    Raises
    ------
    RangeError
        If that would leave the range too.
    """
    low, high = _RANGES[dtype]
    largest = float(backend.numbers(backend.tl.max(backend.tl.abs(core))))
    top = math.frexp(largest)[1]
    if largest == 0.0:
        return [0] * n
    if low < exponent + top <= high:
        return [exponent if k == site else 0 for k in range(n)]
    parts = [exponent // n + (k < exponent % n) for k in range(n)]
    if low < min(parts) <= max(parts) + max(top, 0) <= high:
        return parts
    expected = f"have a norm that its cores can hold in {dtype}"
    given = f"about 2**{exponent} in {counted(n, 'core')}"
    remedy = "Scale its cores towards one first, or use a wider element type."
    raise RangeError(complaint("the network", expected, given, remedy))


def _balanced(cores: Cores, center: int | None, backend: Backend) -> tuple[Cores, int]:
    """Return the cores that may hold a norm, near one, and the exponent taken out."""
    exponent = 0
    for k in range(len(cores)) if center is None else (center,):
        cores, power = near_one(cores, k, backend)
        exponent += power
    return cores, exponent


def near_one(cores: Cores, k: int, backend: Backend) -> tuple[Cores, int]:
    """Return the cores with core k near one, and the exponent taken out of it."""
    power, core = scaled(cores[k], backend)
    return (*cores[:k], core, *cores[k + 1 :]), math.frexp(power)[1] - 1
