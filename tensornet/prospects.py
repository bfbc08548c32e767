"""What layouts of one matrix promise under a limit, and which of them promise most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tensornet.backend import Backend
from tensornet.bonds import chain_params
from tensornet.budget import fewest_params, least_error
from tensornet.fronts import SHARE, Front
from tensornet.layout import MatrixLayout
from tensornet.narrow import SAFE_SHARE
from tensornet.typing import Array
from tensornet.unfoldings import Side, Unfoldings, sides_of, work

# Operations spent on the spectra of further layouts once each number of sites has had one.
_WORK = 3e10
# Operations spent on exact spectra of layouts beyond those that promise most.
_EXACT_WORK = 1e10


class Prospect(NamedTuple):
    """What a layout promises, the smaller the better; no bonds where nothing fits."""

    first: float
    second: float
    layout: MatrixLayout
    bonds: tuple[int, ...]


def affordable(layouts: Sequence[MatrixLayout]) -> list[MatrixLayout]:
    """Return the layouts whose spectra can be had in reasonable time.

    The first of each number of sites is among them in any case.

    Examples
    --------
    >>> from tensornet.shapes import layouts_of
    >>> layouts = layouts_of(4096, 4096, (2, 3))
    >>> len(layouts), len(affordable(layouts))
    (24, 10)
    """
    known: set[Side] = set()
    lengths: set[int] = set()
    room, chosen = _WORK, []
    for layout in layouts:
        new = set() if layout.padded else set(sides_of(layout)) - known
        cost = sum(work(side, layout.rows * layout.cols, known) for side in new)
        if layout.n_sites in lengths:
            if layout.padded or cost > room:
                continue
            room -= cost
        lengths.add(layout.n_sites)
        known |= new
        chosen.append(layout)
    return chosen


class Prospects:
    """The layouts of a matrix that promise most, from spectra as right as promises need.

    Parameters
    ----------
    matrix : Array, shape (rows, cols)
        Finite.
    backend : Backend
        Operations for the matrix.
    limit : (str, float)
        "max_params" or "rtol", and its value.
    layouts : sequence of MatrixLayout
        Those that are compared.
    top : int
        How many are wanted.

    Attributes
    ----------
    unfoldings : Unfoldings
        The spectra found, for others who need some.
    found : list of Prospect
        The best first, at least ``top`` of them if there are as many.
    """

    def __init__(
        self,
        matrix: Array,
        backend: Backend,
        limit: tuple[str, float],
        layouts: Sequence[MatrixLayout],
        top: int,
    ) -> None:
        self._matrix, self._backend, self._limit = matrix, backend, limit
        self._layouts, self._top = layouts, top
        if limit[0] == "rtol":
            share = limit[1] ** 2 / max(layout.n_sites for layout in layouts)
            self.unfoldings = Unfoldings(matrix, backend, max(share, SHARE))
            self.found = self._ranked(share)
            return
        self.unfoldings = Unfoldings(matrix, backend, SAFE_SHARE)
        self.found = self._ranked(SAFE_SHARE)
        if self.found[0].first < SAFE_SHARE and self.unfoldings.single:
            self.unfoldings = Unfoldings(matrix, backend, SHARE)
            self.found = self._ranked(SHARE)
        if self.found[0].first < self.unfoldings.trusted:
            self.found = self._ranked(0.0)

    def _ranked(self, share: float) -> list[Prospect]:
        self.unfoldings.prepare(self._layouts)
        fronts = self._in_order(self.unfoldings.front(layout) for layout in self._layouts)
        if share < self.unfoldings.trusted:
            fronts = self._in_order(self._refined(fronts, share))
        leading = fronts[: 2 * self._top]
        prospects = (prospect(front, self._limit, exact=True) for front in leading)
        return sorted(prospects, key=lambda p: p[:2])

    def _in_order(self, fronts: Iterable[Front]) -> list[Front]:
        """Return fronts by what they promise roughly."""
        return sorted(fronts, key=lambda front: prospect(front, self._limit, exact=False)[:2])

    def _refined(self, fronts: Sequence[Front], share: float) -> Iterable[Front]:
        """Return fronts right down to a share, of the leading layouts and as many as are cheap.

        What Gram matrices promise below their noise is noise, so more than the leading ones are
        looked at again where that takes little time.
        """
        room = _EXACT_WORK
        self.unfoldings.prepare((f.layout for f in fronts[: 2 * self._top]), share)
        for k, front in enumerate(fronts):
            cost = self.unfoldings.further_work(front.layout)
            if k >= 2 * self._top:
                if cost > room:
                    continue
                room -= cost
            yield self.unfoldings.front(front.layout, share)


def prospect(front: Front, limit: tuple[str, float], *, exact: bool) -> Prospect:
    """Return what a layout promises under a limit; ``exact`` takes more time for best bonds."""
    sites, tails, (kind, value) = front.layout.site_dims, front.tails, limit
    if kind == "rtol":
        bonds = fewest_params(sites, tails, value**2, front.caps, exact=exact)
        params = chain_params(sites, bonds)
        return Prospect(params, front.choice(bonds).share, front.layout, bonds)
    if value < sum(sites):
        return Prospect(math.inf, math.inf, front.layout, ())
    chosen = front.choice(least_error(sites, tails, int(value), front.caps, exact=exact))
    # What is not needed is not paid for.
    return Prospect(chosen.share, chosen.params, front.layout, chosen.bonds or ())
