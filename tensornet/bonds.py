"""Bond dimensions: what a chain can have at most, and what the user asked for."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from tensornet.checks import integer, integers
from tensornet.errors import BondError, complaint
from tensornet.typing import Bonds


def structural_bonds(
    site_dims: Sequence[int], limits: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the n + 1 bonds that no chain with these sites and limits can exceed.

    A bond is at most its limit, and at most the neighbouring bond times the site between.

    Parameters
    ----------
    site_dims : sequence of int
        Site dimensions, n of them.
    limits : int or sequence of int, optional
        One cap for every inner bond, or n - 1 caps.

    Examples
    --------
    >>> structural_bonds((16, 16, 9, 16, 16))
    (1, 16, 256, 256, 16, 1)
    >>> structural_bonds((16, 16, 9, 16, 16), 64)
    (1, 16, 64, 64, 16, 1)
    """
    n = len(site_dims)
    caps = list(limits) if isinstance(limits, Sequence) else [limits] * (n - 1)
    bonds = [1, *caps, 1]
    for k in range(1, n):
        bonds[k] = _least(bonds[k], _known(bonds[k - 1]) * site_dims[k - 1])
    for k in range(n - 1, 0, -1):
        bonds[k] = _least(bonds[k], _known(bonds[k + 1]) * site_dims[k])
    return tuple(_known(b) for b in bonds)


def late_bonds(
    site_dims: Sequence[int], caps: Sequence[int], meeting: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bonds that a sweep should leave to their neighbours, and the n + 1 caps for it.

    A sweep from both ends to the site ``meeting`` may come to a bond before it comes to the
    neighbour that limits it. Cutting it there would discard in vain: once the neighbour is cut,
    the bond has no more values than its cap. The caps of such bonds are lifted.

    Parameters
    ----------
    site_dims : sequence of int
        Site dimensions, n of them.
    caps : sequence of int
        n + 1 bonds that a chain can have, 1 at both ends.
    meeting : int
        Bonds up to this one are cut from the left, in rising order, the others then from the
        right.

    Examples
    --------
    >>> late_bonds((16, 16, 9, 16, 16), (1, 8, 9, 1, 8, 1), 2)
    ((2,), (1, 8, 128, 1, 8, 1))
    >>> late_bonds((16, 16, 9, 16, 16), (1, 8, 8, 8, 8, 1), 2)
    ((), (1, 8, 8, 8, 8, 1))
    """
    n = len(site_dims)
    from_right, from_left = {n}, {0}
    # Both bonds of a site of 1 have one spectrum: the one that comes first may as well be cut.
    for k in range(n - 1, 0, -1):
        if caps[k] == caps[k + 1] * site_dims[k] and (site_dims[k] > 1 or k + 1 in from_right):
            from_right.add(k)
    for k in range(1, n):
        site = site_dims[k - 1]
        if caps[k] == caps[k - 1] * site and (site > 1 or k - 1 in from_left):
            from_left.add(k)
    late = [k for k in range(1, n) if k in (from_right if k <= meeting else from_left)]
    before = {k: (k - 1, k - 1) if k <= meeting else (k + 1, k) for k in late}
    if all(
        caps[k] == caps[other] * site_dims[site]
        for k, (other, site) in before.items()
        if k != meeting + 1
    ):
        return (), tuple(caps)  # whoever comes there finds no more values anyway
    free, lifted = structural_bonds(site_dims), list(caps)
    for k in [*range(1, meeting + 1), *range(n - 1, meeting, -1)]:
        if k in late:
            other, site = before[k]
            lifted[k] = min(free[k], lifted[other] * site_dims[site])
    return tuple(late), tuple(lifted)


def _least(cap: int | None, limit: int) -> int:
    return limit if cap is None else min(cap, limit)


def _known(bond: int | None) -> int:
    return 1 if bond is None else bond


def chain_params(sites: Sequence[int], inner: Sequence[int]) -> int:
    """Return the number of parameters of a chain with these inner bonds.

    Examples
    --------
    >>> chain_params((3, 4, 3), (2, 2))
    28
    """
    bonds = (1, *inner, 1)
    return sum(bonds[k] * site * bonds[k + 1] for k, site in enumerate(sites))


def twins(site_dims: Sequence[int]) -> tuple[bool, ...]:
    """Return for each inner bond whether it cuts the chain where the one before cuts it.

    So do both bonds of a site of 1: they have one spectrum, and no reason to differ.

    Examples
    --------
    >>> twins((4, 1, 1, 4)), twins((4, 2, 4))
    ((False, True, True), (False, False))
    """
    return tuple(k > 0 and site_dims[k] == 1 for k in range(len(site_dims) - 1))


def raised(site_dims: Sequence[int], inner: Sequence[int], k: int, to: int) -> tuple[int, ...]:
    """Return inner bonds with bond ``k`` of them, and its twins after it, raised to a value.

    Examples
    --------
    >>> raised((4, 1, 4, 4), (2, 2, 3), 0, 4)
    (4, 4, 3)
    """
    same = twins(site_dims)
    last = k + 1
    while last < len(inner) and same[last]:
        last += 1
    return (*inner[:k], *[to] * (last - k), *inner[last:])


def even_bonds(sites: Sequence[int], caps: Sequence[int], max_params: int) -> tuple[int, ...]:
    """Return the n - 1 inner bonds under the largest cap for all that a budget allows.

    ``caps`` are n + 1 largest bonds. Where not even bonds of 1 fit, these come back.

    Examples
    --------
    >>> even_bonds((4, 4, 4), (1, 4, 4, 1), 40)
    (2, 2)
    """

    def under(cap: int) -> tuple[int, ...]:
        return structural_bonds(sites, [min(cap, c) for c in caps[1:-1]])[1:-1]

    low, high = 1, max(caps)
    while low < high:
        cap = (low + high + 1) // 2
        fits = chain_params(sites, under(cap)) <= max_params
        low, high = (cap, high) if fits else (low, cap - 1)
    return under(low)


def requested_bonds(
    site_dims: Sequence[int], max_bond: object = None, bonds: Bonds = None
) -> tuple[int, ...]:
    """Return the n + 1 structural bonds under the caps that the user gave.

    Parameters
    ----------
    site_dims : sequence of int
        Site dimensions, n of them.
    max_bond : int, optional
        Cap for every bond.
    bonds : "full" or sequence of int, optional
        ``"full"`` caps nothing; else the n - 1 inner bonds, or all n + 1 with 1 at both ends.

    Raises
    ------
    BondError
        If a bond is no positive integer, or the list has another length (both lengths are
        stated), or an outer bond is not 1.

    Examples
    --------
    >>> requested_bonds((8, 8, 8), bonds=[3, 100])
    (1, 3, 8, 1)
    """
    n = len(site_dims)
    caps: list[int | None] = [None] * (n - 1)
    if bonds is not None and not _is_full(bonds):
        caps = list(_inner(bonds, n))
    if max_bond is not None:
        cap = integer("max_bond", max_bond, 1, BondError)
        caps = [cap if c is None else min(cap, c) for c in caps]
    unlimited = structural_bonds(site_dims)[1:-1]
    return structural_bonds(
        site_dims, [u if c is None else c for c, u in zip(caps, unlimited, strict=True)]
    )


def _is_full(bonds: Bonds) -> bool:
    if isinstance(bonds, str) and bonds != "full":
        raise BondError(complaint("bonds", "be 'full' or a sequence of integers", repr(bonds)))
    return isinstance(bonds, str)


def _inner(bonds: Bonds, n_sites: int) -> tuple[int, ...]:
    given: object = bonds
    if isinstance(given, Integral):
        remedy = f"One cap for every bond is given as max_bond={bonds}."
        raise BondError(complaint("bonds", "be 'full' or a sequence of integers", bonds, remedy))
    values = integers("bonds", bonds, BondError)
    if len(values) == n_sites - 1:
        return values
    if len(values) != n_sites + 1:
        expected = f"have {n_sites - 1} inner bonds, or {n_sites + 1} with 1 at both ends"
        raise BondError(complaint("bonds", expected, f"{len(values)} values"))
    for name, value in (("first", values[0]), ("last", values[-1])):
        if value != 1:
            expected = f"have 1 as {name} bond when it lists all {n_sites + 1}"
            raise BondError(complaint("bonds", expected, value))
    return values[1:-1]
