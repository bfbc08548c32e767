"""What each size of a network for a matrix costs in error, before any network is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name
from tensornet.bonds import chain_params, structural_bonds, twins
from tensornet.budget import frontier
from tensornet.fitting import TensorSource
from tensornet.layout import MatrixLayout
from tensornet.limits import make_limits
from tensornet.network import MPO
from tensornet.storage import carried
from tensornet.truncation import tail_weights
from tensornet.typing import Array

Tails = tuple[np.ndarray[Any, Any], ...]
Copies = tuple[int, int, int]
ONE: Copies = (1, 1, 1)
# Spectra of Gram matrices are right for discarded shares of the squared norm down to this one:
# errors of 1e-5.
SHARE = 1e-10
_FLOOR = 1e-15


class Choice(NamedTuple):
    """Inner bonds (None: the matrix as it is), parameters, and the share they discard.

    ``share`` is a sum over bonds; no more than ``most`` is lost.
    """

    bonds: tuple[int, ...] | None
    params: int
    share: float
    most: float = 1.0

    @property
    def loss(self) -> float:
        """The share that is lost at most."""
        return min(self.share, self.most)


class Front:
    """The tails of a matrix' unfoldings as shares of its squared norm, and what they allow.

    ``copies`` says how many side cores, central cores and dense matrices are stored. No choice
    counts more than ``most``: bounds add up what bonds discard, but nothing loses more than all.
    Both bonds of a site of 1 are one cut, which counts once.
    """

    def __init__(
        self,
        layout: MatrixLayout,
        norm: float,
        tails: Tails,
        copies: Copies = ONE,
        most: float = 1.0,
    ) -> None:
        self.layout, self.norm, self.copies, self.most = layout, norm, copies, most
        self._twins = twins(layout.site_dims) if tails else ()
        # Found twice, one spectrum may differ by its roundings.
        self.tails = tuple(
            tails[max(j for j in range(k + 1) if not self._twins[j])] for k in range(len(tails))
        )
        self.caps = layout.structural_bonds()
        self.dense = Choice(None, layout.rows * layout.cols * copies[2], 0.0)
        sides, central, _ = copies
        # What a core costs, but for its bonds.
        self.costs = tuple(
            dim * (central if k == layout.central else sides)
            for k, dim in enumerate(layout.site_dims)
        )

    def copied(self, copies: Copies) -> Front:
        """Return the front of as many copies."""
        return Front(self.layout, self.norm, self.tails, copies, self.most)

    def retained(self) -> Front:
        """Return the front that counts minus the logarithms of what bonds keep of the square.

        Their sum belongs to the product of what is kept bond by bond. It has no bound: a matrix
        of which nothing is left counts infinitely.
        """
        with np.errstate(divide="ignore"):
            tails = tuple(-np.log1p(-np.minimum(tail, 1.0)) for tail in self.tails)
        return Front(self.layout, self.norm, tails, self.copies, math.inf)

    def choice(self, bonds: Sequence[int]) -> Choice:
        """Return what bonds cost, after those are lowered that discard nothing by it.

        A bond larger than its neighbour times the site between cannot be, and is lowered too.
        """
        sites = self.layout.site_dims
        lowered = structural_bonds(sites, self.lowered(bonds))[1:-1]
        cuts = zip(self.tails, lowered, self._twins, strict=True)
        share = math.fsum(float(tail[b]) for tail, b, twin in cuts if not twin)
        return Choice(lowered, chain_params(self.costs, lowered), share, self.most)

    def lowered(self, bonds: Sequence[int]) -> tuple[int, ...]:
        """Return the smallest bonds that discard no more than these."""
        return tuple(
            max(int(np.argmax(tail <= tail[min(b, len(tail) - 1)])), 1)
            for tail, b in zip(self.tails, bonds, strict=True)
        )

    def uniform(self, cap: int) -> Choice:
        """Return what one cap for all bonds costs."""
        return self.choice(self.layout.structural_bonds(cap)[1:-1])

    def hull(self, *, keep_dense: bool) -> list[Choice]:
        """Return the choices on the lower convex hull of all, from the smallest on."""
        chains = frontier(self.costs, self.tails, self.caps, dims=self.layout.site_dims)
        choices = [Choice(*chain, self.most) for chain in chains]
        if keep_dense:
            smaller = [c for c in choices if c.params < self.dense.params]
            choices = [*smaller, self.dense]
        kept: list[Choice] = []
        for c in choices:
            while len(kept) > 1 and _slope(kept[-2], kept[-1]) <= _slope(kept[-1], c):
                kept.pop()
            if not kept or c.loss < kept[-1].loss:
                kept.append(c)
        return kept


def front_of(matrix: Array, layout: MatrixLayout, backend: Backend, share: float = SHARE) -> Front:
    """Return the front of a matrix (rows, cols) in a layout.

    Shares that are rounding noise of the element type count as nothing, as in an exact
    decomposition. The others are right down to ``share`` of the squared norm.
    """
    scale, near_one, total = carried(layout.fold(matrix), backend)
    norm = scale * math.sqrt(total)
    if total == 0.0:
        return Front(layout, 0.0, tuple(np.zeros(b + 1) for b in layout.structural_bonds()[1:-1]))
    limits = make_limits(layout.structural_bonds(), None, dtype_name(matrix), total, forced=False)
    if layout.n_sites == 1:
        return Front(layout, norm, ())
    source = TensorSource(near_one, total, limits.noise, backend)
    tails, noise = source.tails(share, gentle=False), limits.noise / total
    sides = layout.structural_bonds()[1:-1]
    # An exact chain shows the spectra up to its ranks: nothing is left beyond.
    full = (np.pad(tail, (0, b + 1 - len(tail))) for tail, b in zip(tails, sides, strict=True))
    return Front(layout, norm, tuple(cleaned(tail / total, noise, share) for tail in full))


def front_of_mpo(network: MPO) -> Front:
    """Return the front of a matrix that comes as an MPO: its bonds are the largest possible.

    What a cut network has in its padding is cut with the rest, so tails include it. They are
    shares of the matrix alone, as the errors of ``round`` are: all of them can then be above 1.
    """
    spectra, layout = network.spectra(), network.layout
    if not spectra:
        return Front(layout, network.norm(), ())
    whole = float(np.linalg.norm(spectra[0]))
    norm = min(network.norm(), whole) if layout.padded else whole
    if norm == 0.0:
        return Front(layout, 0.0, tuple(np.zeros(len(s) + 1) for s in spectra))
    tails = (tail_weights((s / norm) ** 2) for s in spectra)
    most = (whole / norm) ** 2
    return Front(layout, norm, tuple(cleaned(tail, 0.0, 0.0) for tail in tails), most=most)


def mean_front(fronts: Sequence[Front]) -> Front:
    """Return the front of matrices that get the same bonds: the means of their shares."""
    first, count = fronts[0], len(fronts)
    norm = math.sqrt(math.fsum(front.norm**2 for front in fronts) / count)
    sums = (np.sum(tails, axis=0) for tails in zip(*(f.tails for f in fronts), strict=True))
    return Front(first.layout, norm, tuple(total / count for total in sums))


def first_true(test: Callable[[int], bool], last: int) -> int:
    """Return the first of 1, 2, ..., last for which a test holds that holds from there on."""
    low, high = 1, last
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            high = middle
        else:
            low = middle + 1
    return low


def cleaned(tail: np.ndarray[Any, Any], noise: float, share: float) -> np.ndarray[Any, Any]:
    """Return tails without what is noise: of the data, and of spectra right to ``share`` only.

    Examples
    --------
    >>> cleaned(np.array([1.0, 1e-16, 0.0]), 0.0, 1e-10).tolist()
    [1.0, 0.0, 0.0]
    """
    floor = _FLOOR if share >= SHARE else 0.0
    return np.where(tail <= max(noise, floor), 0.0, tail)


def _slope(one: Choice, two: Choice) -> float:
    return (one.loss - two.loss) / (two.params - one.params)
