"""Which bonds a network needs in a metric: the spectra of W H^(1/2) guide, errors decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensornet.als import Fit
from tensornet.backend import Backend
from tensornet.bonds import structural_bonds
from tensornet.errors import ToleranceError, complaint
from tensornet.truncation import tail_weights
from tensornet.typing import Array

# How many networks a search makes at most once one has kept the tolerance.
_TRIALS = 5


class Guide(NamedTuple):
    """Sites, caps (n + 1), and for each inner bond the squared weight that r values leave out."""

    site_dims: tuple[int, ...]
    caps: tuple[int, ...]
    tails: tuple[np.ndarray[Any, Any], ...]
    total: float

    def bonds(self, level: float) -> tuple[int, ...]:
        """Return n + 1 bonds that a plain cut of the guide to the error ``level`` would keep."""
        allowed = level * level * self.total / max(len(self.tails), 1)
        inner = [max(int(np.argmax(tail <= allowed)), 1) for tail in self.tails]
        capped = [min(b, c) for b, c in zip(inner, self.caps[1:-1], strict=True)]
        return structural_bonds(self.site_dims, capped)


def guide_for(tensor: Array, caps: tuple[int, ...], total: float, backend: Backend) -> Guide:
    """Return the guide that the unfoldings of a tensor (p1, ..., pn) give."""
    sites = tuple(int(d) for d in tensor.shape)
    tails = []
    for k in range(1, len(sites)):
        unfolding = backend.tl.reshape(tensor, (math.prod(sites[:k]), -1))
        if unfolding.shape[0] > unfolding.shape[1]:
            unfolding = backend.adjoint(unfolding)
        values = backend.tl.eigh(unfolding @ backend.adjoint(unfolding))[0]
        tails.append(tail_weights(np.maximum(backend.numbers(values)[::-1], 0.0)))
    return Guide(sites, caps, tuple(tails), total)


def fewest(
    guide: Guide, room: float, fit_at: Callable[[tuple[int, ...]], Fit], size: Callable[[Fit], int]
) -> Fit:
    """Return the smallest network found whose error is at most ``room`` (relative).

    The guide says which bonds a plain cut would need. In the metric others do, so the guide's
    level is moved until the error just fits: down to the caps if it must be.

    Raises
    ------
    ToleranceError
        If the caps themselves leave a larger error.
    """
    level, good, bad = room, 0.0, math.inf
    best: Fit | None = None
    tried: set[tuple[int, ...]] = set()
    for _ in range(_TRIALS):
        bonds = guide.bonds(level)
        if bonds in tried and best is not None:
            break
        if bonds not in tried:
            tried.add(bonds)
            fit = fit_at(bonds)
            ratio = fit.history[-1] / room
        if ratio <= 1.0:
            good = level
            best = fit if best is None or size(fit) < size(best) else best
        else:
            bad = level
        level = _moved(level, ratio, good, bad)
    return best or _at_the_caps(guide, room, fit_at)


def _moved(level: float, ratio: float, good: float, bad: float) -> float:
    """Return the next level to try, where ``ratio`` is the error over the room for it."""
    if good > 0.0 and bad < math.inf:
        return math.sqrt(good * bad)
    return (
        level * min(max(0.98 / max(ratio, 1e-3), 1.05), 2.0)
        if good
        else level * max(0.95 / ratio, 0.3)
    )


def _at_the_caps(guide: Guide, room: float, fit_at: Callable[[tuple[int, ...]], Fit]) -> Fit:
    fit = fit_at(guide.caps)
    if fit.history[-1] <= room:
        return fit
    expected = f"leave room for an error of {fit.history[-1]:.4g} in the metric"
    given = f"room for {room:.4g} under the bonds {list(guide.caps[1:-1])}"
    raise ToleranceError(complaint("rtol", expected, given, "Raise the bonds or the tolerance."))
