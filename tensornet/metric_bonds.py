"""Which bonds a network needs in a metric: the spectra of W H^(1/2) guide, errors decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensornet.als import Fit
from tensornet.backend import Backend
from tensornet.bonds import chain_params, even_bonds, raised, structural_bonds, twins
from tensornet.budget import fewest_params, least_error
from tensornet.eigen import spectrum
from tensornet.errors import ToleranceError, complaint
from tensornet.truncation import tail_weights
from tensornet.typing import Array

# Networks begun at most to see which bonds a tolerance needs, and raised at most after that.
_PROBES = 5
_RAISES = 6
# What further sweeps take off the error of a network that has had a few; when a probe is close
# enough; and by how much the level of the guide is lowered where a finished network misses.
_COMES_DOWN = 1.03
_CLOSE = 0.02
_STEP = 0.97


class Guide(NamedTuple):
    """Sites, caps (n + 1), and for each inner bond the squared weight that r values leave out."""

    site_dims: tuple[int, ...]
    caps: tuple[int, ...]
    tails: tuple[np.ndarray[Any, Any], ...]
    total: float

    def bonds(self, level: float) -> tuple[int, ...]:
        """Return the n + 1 bonds with the fewest parameters that cut the guide to ``level``.

        ``level`` is a relative error. Where the caps do not allow it, these are the caps.
        """
        allowed = level * level * self.total
        inner = self.caps[1:-1]
        cuts = zip(self.tails, inner, twins(self.site_dims), strict=True)
        if sum(float(tail[cap]) for tail, cap, twin in cuts if not twin) <= allowed:
            inner = fewest_params(self.site_dims, self.tails, allowed, self.caps)
        return structural_bonds(self.site_dims, inner)

    def affordable(self, max_params: int) -> tuple[int, ...]:
        """Return n + 1 bonds with the least error of the guide within a budget."""
        inner = least_error(self.site_dims, self.tails, max_params, self.caps)
        return self._filled(structural_bonds(self.site_dims, inner), max_params)

    def even(self, max_params: int) -> tuple[int, ...]:
        """Return n + 1 bonds as equal as possible, none of which could be raised by one."""
        inner = even_bonds(self.site_dims, self.caps, max_params)
        return self._filled((1, *inner, 1), max_params)

    def _filled(self, bonds: tuple[int, ...], max_params: int) -> tuple[int, ...]:
        """Return the bonds after raising one after the other while the budget allows it."""
        changed = True
        while changed:
            changed = False
            for k in range(1, len(bonds) - 1):
                more = structural_bonds(
                    self.site_dims, raised(self.site_dims, bonds[1:-1], k - 1, bonds[k] + 1)
                )
                fits = chain_params(self.site_dims, more[1:-1]) <= max_params
                if fits and bonds[k] < more[k] <= self.caps[k]:
                    bonds, changed = more, True
        return bonds


def guide_for(tensor: Array, caps: tuple[int, ...], total: float, backend: Backend) -> Guide:
    """Return the guide that the unfoldings of a tensor (p1, ..., pn) give."""
    sites = tuple(int(d) for d in tensor.shape)
    tails = []
    for k in range(1, len(sites)):
        unfolding = backend.tl.reshape(tensor, (math.prod(sites[:k]), -1))
        if unfolding.shape[0] > unfolding.shape[1]:
            unfolding = backend.adjoint(unfolding)
        tails.append(tail_weights(spectrum(unfolding @ backend.adjoint(unfolding), backend)))
    return Guide(sites, caps, tuple(tails), total)


def fewest(
    guide: Guide,
    room: float,
    begin: Callable[[tuple[int, ...]], Fit],
    finish: Callable[[Fit], Fit],
) -> Fit:
    """Return about the smallest network whose error is at most ``room`` (relative).

    The guide says which bonds a plain cut to a level would need. In the metric others do. A few
    networks are begun to see how the error follows the level; the one that should just fit is
    finished. Where it does not, bonds are raised, in the end to the caps.

    Parameters
    ----------
    guide : Guide
        Spectra and caps.
    room : float
        Largest relative error.
    begin, finish : callable
        The network at given bonds after few sweeps; a network after all sweeps that it takes to
        come down to ``room``.

    Raises
    ------
    ToleranceError
        If the caps themselves leave a larger error.
    """
    begun: dict[tuple[int, ...], Fit] = {}
    level = _probed(guide, room, begin, begun)
    for _ in range(_RAISES):
        bonds = guide.bonds(level)
        if bonds not in begun:
            begun[bonds] = begin(bonds)
        fit = finish(begun[bonds])
        if fit.history[-1] <= room:
            return fit
        level *= min(room / fit.history[-1], _STEP)
        while guide.bonds(level) == bonds and level > 0.0 and bonds != guide.caps:
            level *= _STEP
    return _at_the_caps(guide, room, lambda caps: finish(begin(caps)))


def _probed(
    guide: Guide,
    room: float,
    begin: Callable[[tuple[int, ...]], Fit],
    begun: dict[tuple[int, ...], Fit],
) -> float:
    """Return the level at which begun networks have the error that will come down to ``room``.

    Errors follow levels about like a power: the next level is interpolated between the nearest
    ones on either side, in logarithms.
    """
    aim, level = _COMES_DOWN * room, room
    below, above = (0.0, 0.0), (math.inf, math.inf)
    for _ in range(_PROBES):
        bonds = guide.bonds(level)
        if bonds in begun:
            break
        begun[bonds] = begin(bonds)
        error = max(begun[bonds].history[-1], 1e-3 * aim)
        if error <= aim:
            below = (level, error)
        else:
            above = (level, error)
        if abs(error / aim - 1.0) < _CLOSE:
            break
        level = _between(below, above, aim)
    return level


def _between(below: tuple[float, float], above: tuple[float, float], aim: float) -> float:
    """Return a level for the error ``aim`` from a (level, error) below it and one above it."""
    if not below[0]:
        return above[0] * max(aim / above[1], 0.25)
    if above[0] == math.inf:
        return below[0] * min(aim / below[1], 4.0)
    share = math.log(aim / below[1]) / math.log(above[1] / below[1])
    return float(below[0] * (above[0] / below[0]) ** min(max(share, 0.1), 0.9))


def _at_the_caps(guide: Guide, room: float, fit_at: Callable[[tuple[int, ...]], Fit]) -> Fit:
    fit = fit_at(guide.caps)
    if fit.history[-1] <= room:
        return fit
    expected = f"leave room for an error of {fit.history[-1]:.4g} in the metric"
    given = f"room for {room:.4g} under the bonds {list(guide.caps[1:-1])}"
    raise ToleranceError(complaint("rtol", expected, given, "Raise the bonds or the tolerance."))
