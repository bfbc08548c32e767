"""The bonds that a budget buys: fewest parameters for a tolerance, least error for a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensornet.backend import Backend, dtype_name, n_elements
from tensornet.bonds import chain_params, even_bonds, raised, structural_bonds, twins
from tensornet.budget import fewest_params, least_error
from tensornet.canonical import schmidt_form
from tensornet.chain_grams import Gathered, gathered_tails, round_gathered
from tensornet.checks import fraction, integer
from tensornet.errors import OptionError, complaint
from tensornet.implied import cut_in_order
from tensornet.limits import within
from tensornet.narrow import NARROW, SAFE_SHARE
from tensornet.rounding import round_cores
from tensornet.spectra import tensor_spectra
from tensornet.storage import in_double
from tensornet.sweep import Known, Swept, sweep
from tensornet.truncation import Limits, still_right, tail_weights
from tensornet.typing import Array, Cores

Tails = tuple[np.ndarray[Any, Any], ...]
# Share of the squared norm below which Gram matrices in double precision say little: of data in
# double precision, and of narrower data, whose own noise is larger.
DOUBLE_SHARE = 1e-10
NOISY_SHARE = 1e-13
# Where all bonds together discard this share or more for each bond, single precision is enough at
# every one of them.
_COARSE_SHARE = 1e-3


class Found(NamedTuple):
    """What was found out about a tensor when its spectra were asked for."""

    tails: Tails
    known: Mapping[int, Known]
    chain: ChainSource | None

    @property
    def size(self) -> float:
        """Number of elements that it holds; infinite with a chain, which may be as large as all."""
        if self.chain is not None:
            return math.inf
        pairs = [known.pairs[1] for known in self.known.values() if known.pairs is not None]
        return sum(map(n_elements, [known.gram for known in self.known.values()] + pairs))


class Source(Protocol):
    """Something that can be cut, and tells what cuts would cost."""

    sites: tuple[int, ...]
    weight: float

    def tails(self, share: float, *, gentle: bool) -> Tails:
        """Return the tails of all spectra, right for cuts of this share of the squared norm.

        Where cuts are gentle, what is found out about the bonds will serve for the cuts too.
        """

    def run(self, limits: Limits) -> Swept:
        """Return the network cut under limits."""


class TensorSource:
    """A tensor (p1, ..., pn) of squared norm ``weight`` with rounding noise of its own.

    ``found`` is what another source found out about the same tensor, for cuts as low as those
    that this one is asked for.
    """

    def __init__(
        self,
        tensor: Array,
        weight: float,
        noise: float,
        backend: Backend,
        found: Found | None = None,
    ) -> None:
        self.sites = tuple(int(d) for d in tensor.shape)
        self.weight = weight
        self._tensor, self._noise, self._backend = tensor, noise, backend
        self._narrow = dtype_name(tensor) in NARROW
        self._given, self._found = found, found

    def tails(self, share: float, *, gentle: bool) -> Tails:
        """Return the tails, in the lowest precision that is good enough."""
        return (self._given or self.find(share, gentle=gentle)).tails

    def find(self, share: float, *, gentle: bool) -> Found:
        """Return the tails with all that was found out on the way."""
        self._found = self._spectra(share, gentle=gentle)
        if self._found is None:
            chain = self._exact()
            self._found = Found(chain.tails(share, gentle=gentle), {}, chain)
        return self._found

    def run(self, limits: Limits) -> Swept:
        """Return the decomposition under limits."""
        found = self._found or Found((), {}, None)
        if found.chain is not None:
            return found.chain.run(limits)

        def swept(limits: Limits) -> Swept:
            return sweep(self._tensor, limits, self._backend, self.weight, found.known)

        return cut_in_order(self.sites, limits, swept, self._backend)

    def _spectra(self, share: float, *, gentle: bool) -> Found | None:
        """Return what Gram matrices tell, or None where they say too little."""
        if share <= 0.0:
            return None
        trusted = NOISY_SHARE if self._narrow else DOUBLE_SHARE
        single = self._narrow and share >= SAFE_SHARE
        found = tensor_spectra(self._tensor, self._backend, single=single, both=gentle)
        if found is None or not (share >= trusted or self._whole(found.tails, trusted)):
            return None
        return Found(found.tails, found.known, None)

    def _whole(self, tails: Tails, trusted: float) -> bool:
        """Return whether no value at all is small enough to be cut, or to be wrong."""
        return all(still_right(tail / self.weight, trusted) for tail in tails)

    def _exact(self) -> ChainSource:
        """Return the exact network: its small cores show the spectra to all digits."""
        free = Limits(structural_bonds(self.sites), 0.0, self._noise)
        swept = sweep(self._tensor, free, self._backend, self.weight)
        return ChainSource(in_double(swept.cores)[1], swept.center, self.weight, self._backend)


class ChainSource:
    """A chain of cores (left, site, right) of squared norm ``weight``, in double precision.

    ``ready`` is the same chain gathered for Gram matrices, where they may be used.
    """

    def __init__(
        self,
        cores: Cores,
        center: int | None,
        weight: float,
        backend: Backend,
        ready: Gathered | None = None,
    ) -> None:
        self.sites = tuple(int(core.shape[1]) for core in cores)
        self.weight = weight
        self._cores, self._center, self._backend, self._ready = cores, center, backend, ready

    def tails(self, share: float, *, gentle: bool) -> Tails:  # noqa: ARG002
        """Return the tails, to all digits where Gram matrices would say too little."""
        if self._ready is not None and share >= NOISY_SHARE:
            return gathered_tails(self._ready, self._backend)
        self._ready = None
        self._cores, spectra = schmidt_form(self._cores, self._center, self._backend)
        self._center = len(self._cores) - 1
        return tuple(tail_weights(s**2) for s in spectra)

    def run(self, limits: Limits) -> Swept:
        """Return the chain cut under limits."""
        return cut_in_order(self.sites, limits, self._cut, self._backend)

    def _cut(self, limits: Limits) -> Swept:
        if self._ready is not None:
            swept = round_gathered(self._ready, limits, self._backend)
            if swept is not None:
                return swept
        return round_cores(self._cores, self._center, limits, self._backend)


def fitted(source: Source, limits: Limits, rtol: object, max_params: object) -> Swept:
    """Return the network under the limits, with bonds chosen for the tolerance or the budget.

    Raises
    ------
    ToleranceError
        If the caps alone cost more than ``rtol``.
    OptionError
        If ``max_params`` is no integer or less than the smallest chain needs.
    """
    if max_params is not None:
        return _least(source, limits, budget(max_params, source.sites))
    if rtol is not None and len(source.sites) > 1:
        swept = _fewest(source, limits)
        if swept is not None:
            return swept
    return within(limits, source.run, rtol, source.weight)


def budget(max_params: object, sites: Sequence[int]) -> int:
    """Return ``max_params`` as an integer that a chain with these sites can meet.

    Raises
    ------
    OptionError
        If it is no integer, or smaller than the chain whose bonds are all 1; says how many
        parameters that has.
    """
    number = integer("max_params", max_params, 1, OptionError)
    smallest = sum(sites)
    if number < smallest:
        expected = f"be at least {smallest}, the parameters of the chain whose bonds are all 1"
        raise OptionError(complaint("max_params", expected, number))
    return number


def allowance(
    max_params: int | None, ratio: float | None, rtol: object, dense: int, sites: Sequence[int]
) -> int | None:
    """Return the most parameters of a chain with these sites: those of ``ratio`` if it is given.

    ``dense`` is the number of elements that the ratio is a share of.

    Raises
    ------
    OptionError
        If the ratio is out of range, comes with another limit, or allows no chain.

    Examples
    --------
    >>> allowance(None, 0.5, None, 4096, (64, 64))
    2048
    """
    if ratio is None:
        return max_params
    number = ratio_budget(ratio, dense, max_params=max_params, rtol=rtol)
    if number < sum(sites):
        raise below_ratio(ratio, sum(sites), dense)
    return number


def ratio_budget(ratio: object, dense: int, **others: object) -> int:
    """Return how many parameters a share of ``dense`` elements is, which comes with no other limit.

    Raises
    ------
    OptionError
        If the share is no number in (0, 1], or one of the ``others`` is given too.
    """
    number = fraction("ratio", ratio)
    for name, value in others.items():
        if value is not None:
            remedy = "Leave one of them out."
            raise OptionError(
                complaint("ratio", f"not come with {name}", f"{name}={value}", remedy)
            )
    return int(number * dense)


def below_ratio(ratio: object, smallest: int, dense: int) -> OptionError:
    """Return the error for a share that not even the smallest chain can keep."""
    chain = f"the {smallest} parameters of the chain whose bonds are all 1"
    if smallest > dense:
        return OptionError(complaint("ratio", f"be left out: {chain} exceed {dense}", ratio))
    step = 10.0 ** (math.floor(math.log10(smallest / dense)) - 3)
    count = math.floor(smallest / dense / step)
    # The number that is said must do, and is rounded twice: when it is written and when it is used.
    while int(float(f"{count * step:.4g}") * dense) < smallest:
        count += 1
    return OptionError(complaint("ratio", f"be at least {count * step:.4g}, {chain}", ratio))


def one_budget(rtol: object, max_params: object) -> None:
    """Raise OptionError if both a tolerance and a number of parameters are asked for."""
    if rtol is not None and max_params is not None:
        remedy = "Leave one of them out."
        raise OptionError(complaint("max_params", "not come with rtol", f"rtol={rtol}", remedy))


def _fewest(source: Source, limits: Limits) -> Swept | None:
    share = limits.allowed / (source.weight or 1.0) / len(limits.caps)
    tails = source.tails(share, gentle=True)
    inner = limits.caps[1:-1]
    if math.fsum(_costs(source.sites, tails, inner)) > limits.allowed:
        return None
    bonds = fewest_params(source.sites, tails, limits.allowed, limits.caps)
    costs = _costs(source.sites, tails, bonds)
    coarse = math.fsum(costs) >= _COARSE_SHARE * len(limits.caps) * source.weight > 0.0
    swept = source.run(_reserved(limits, costs, bonds, coarse))
    return swept if limits.kept(swept.record.discarded) else None


def _least(source: Source, limits: Limits, max_params: int) -> Swept:
    for share in (SAFE_SHARE, DOUBLE_SHARE, 0.0):
        tails = source.tails(share, gentle=False)
        bonds = least_error(source.sites, tails, max_params, limits.caps)
        reached = math.fsum(_costs(source.sites, tails, bonds)) / (source.weight or 1.0)
        if reached >= share or reached == 0.0:
            break
    best = source.run(replace(limits, caps=(1, *bonds, 1)))
    # The bound counts what every bond sees anew, such as noise, once for each bond. The actual
    # error does not, and may then prefer bonds that are all alike.
    alike = _alike(source.sites, tails, max_params, limits.caps)
    if alike == tuple(bonds):
        return best
    other = source.run(replace(limits, caps=(1, *alike, 1)))
    return min(best, other, key=lambda swept: math.fsum(swept.record.discarded.values()))


def _alike(
    sites: Sequence[int], tails: Tails, max_params: int, caps: Sequence[int]
) -> tuple[int, ...]:
    """Return inner bonds under one cap for all, and then raised where that gains most."""
    inner, same = even_bonds(sites, caps, max_params), twins(sites)
    while True:
        options = [
            (tails[k][b] - tails[k][b + 1], k)
            for k, b in enumerate(inner)
            if not same[k]
            and b < caps[k + 1]
            and b + 1 < len(tails[k])
            and chain_params(sites, raised(sites, inner, k, b + 1)) <= max_params
        ]
        if not options or max(options)[0] <= 0.0:
            return inner
        k = max(options)[1]
        inner = raised(sites, inner, k, inner[k] + 1)


def _reserved(
    limits: Limits, costs: Sequence[float], bonds: tuple[int, ...], coarse: bool
) -> Limits:
    """Return limits that keep the bonds affordable, and let later ones use what is left over."""
    return replace(limits, caps=(1, *bonds, 1), reserve=(0.0, *costs, 0.0), coarse=coarse)


def _costs(sites: Sequence[int], tails: Tails, bonds: Sequence[int]) -> list[float]:
    """Return what each bond discards; of both bonds of a site of 1 the first does."""
    cuts = zip(tails, bonds, twins(sites), strict=True)
    return [0.0 if twin else float(tail[min(b, len(tail) - 1)]) for tail, b, twin in cuts]
