"""Cuts of bonds that limit each other: those that a neighbour limits anyway come last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensornet.backend import Backend
from tensornet.bonds import late_bonds, structural_bonds
from tensornet.rounding import round_cores
from tensornet.storage import in_double
from tensornet.sweep import Record, Swept, meeting_site
from tensornet.truncation import Limits


def cut_in_order(
    sites: Sequence[int], limits: Limits, run: Callable[[Limits], Swept], backend: Backend
) -> Swept:
    """Return what ``run`` makes under limits, with bonds that a chain can have.

    Bonds that a neighbour limits to what they may have are not cut before it: the error is then
    that of the other bonds alone. Nor is a bond left larger than its neighbour times the site
    between, as a tolerance, which is spent bond by bond, may leave it.

    Parameters
    ----------
    sites : sequence of int
        Site dimensions, n of them.
    limits : Limits
        Caps may be larger than what a chain can have.
    run : callable
        Cuts from both ends to the meeting site.
    backend : Backend
        Operations for the cores.
    """
    caps = structural_bonds(sites, limits.caps[1:-1])
    _, lifted = late_bonds(sites, caps, meeting_site(tuple(sites)))
    first = run(replace(limits, caps=lifted))
    bonds = [int(core.shape[0]) for core in first.cores[1:]]
    possible = structural_bonds(sites, [min(b, c) for b, c in zip(bonds, caps[1:], strict=False)])
    if possible == (1, *bonds, 1):
        return first
    rest = replace(limits, caps=possible, allowed=0.0, reserve=(), coarse=False)
    again = round_cores(in_double(first.cores)[1], first.center, rest, backend)
    return again._replace(record=_joined(first.record, again.record, bonds, possible))


def _joined(one: Record, two: Record, bonds: Sequence[int], possible: Sequence[int]) -> Record:
    """Return what two runs discarded, with spectra as they were where a bond was cut."""
    discarded = {k: weight + two.discarded[k] for k, weight in one.discarded.items()}
    weights = dict(one.weights)
    for k, bond in enumerate(bonds, start=1):
        if possible[k] < bond:
            weights[k] = two.weights[k]
    return Record(discarded, weights)
