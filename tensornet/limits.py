"""From what the user asked for to the limits of a sweep, and whether they could be kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tensornet.backend import eps
from tensornet.certificate import Certificate
from tensornet.checks import storage_error, tolerance
from tensornet.errors import ToleranceError, complaint
from tensornet.sweep import Swept
from tensornet.truncation import Limits

DOUBLE = ("float64", "complex128")


def noise(dtype: str, side: int) -> float:
    """Return the relative error below which a discarded part counts as rounding noise.

    Data in single precision carry a few roundings of their own. In half precision it is less
    than one rounding, as much as storing two cores costs. In double precision the noise is that
    of the SVD, which grows with the square root of its side.
    """
    if dtype in DOUBLE:
        return 4.0 * math.sqrt(side) * eps(dtype)
    return (4.0 if dtype in ("float32", "complex64") else 0.4) * eps(dtype)


def make_limits(
    caps: tuple[int, ...], rtol: object, dtype: str, weight: float, *, forced: bool
) -> Limits:
    """Return the limits of a sweep over something of squared norm ``weight``.

    Raises
    ------
    ToleranceError
        If ``rtol`` is out of range or below what the element type can keep.
    """
    n_sites = len(caps) - 1
    floor = noise(dtype, max(caps)) ** 2 * weight / max(n_sites - 1, 1)
    if rtol is None:
        return Limits(caps, 0.0, floor, forced)
    solver = noise(dtype, max(caps)) if dtype in DOUBLE else 0.0
    # The two errors may point the same way, and the second is an estimate: hence no squares.
    room = tolerance(rtol, dtype, n_sites, solver) - 1.2 * storage_error(dtype, n_sites)
    allowed = room**2 * weight
    return Limits(caps, allowed, min(floor, allowed / max(n_sites - 1, 1)), forced)


def within(limits: Limits, run: Callable[[Limits], Swept], rtol: object, weight: float) -> Swept:
    """Return the sweep under the limits, or raise if the tolerance cannot be kept under the caps.

    Where capped bonds overdraw the budget that others have used up already, a second sweep sets
    aside what each cap costs at least, and splits only the remainder.

    Raises
    ------
    ToleranceError
        If the caps alone cost more than ``rtol``; says what they cost and what ``rtol`` needs.
    """
    swept = run(limits)
    if rtol is None or limits.kept(swept.record.discarded):
        return swept
    least = run(replace(limits, allowed=0.0))
    if limits.kept(least.record.discarded):
        ends = range(len(limits.caps))
        reserve = tuple(least.record.discarded.get(k, 0.0) for k in ends)
        return run(replace(limits, reserve=reserve))
    wide = tuple(_unbounded(limits.caps))
    needed = [int(core.shape[0]) for core in run(replace(limits, caps=wide)).cores[1:]]
    reached = math.sqrt(sum(least.record.discarded.values()) / weight)
    raise ToleranceError(
        complaint(
            "rtol",
            f"be at least {reached * (1 + 2e-6):.6g} under these bonds",
            f"{rtol}",
            f"Raise the bonds (rtol={rtol} needs {needed}) or the tolerance.",
        )
    )


def _unbounded(caps: tuple[int, ...]) -> list[int]:
    # A rule never keeps more values than there are, so a cap beyond all sizes is none at all.
    return [1, *[2**62] * (len(caps) - 2), 1]


def certify(swept: Swept, weight: float, storage_error: float, scale: float) -> Certificate:
    """Return the certificate of a sweep over data of squared norm ``weight``.

    The data had been divided by ``scale``; spectra and norm are stated for the data as given.
    """
    bonds = range(1, len(swept.cores))
    spectra = []
    for bond in bonds:
        found = swept.record.weights.get(bond)
        if found is not None:
            found = scale * found**0.5
            found.flags.writeable = False
        spectra.append(found)
    return Certificate(
        norm=scale * math.sqrt(weight),
        discarded_share=tuple(swept.record.discarded[k] / (weight or 1.0) for k in bonds),
        storage_error=storage_error,
        singular_values=tuple(spectra),
    )
