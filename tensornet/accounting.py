"""Exact counts of what a network stores, in Python integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensornet.backend import dtype_name, n_elements
from tensornet.checks import describe, integer
from tensornet.contract.orders import product_costs
from tensornet.errors import ArrayTypeError, OptionError, ShapeError, complaint
from tensornet.typing import Array, Cores


@dataclass(frozen=True)
class Report:
    """Counts of elements; prints as a table.

    Attributes
    ----------
    total : int
        Elements, every use of a tensor counted.
    unique : int
        Elements stored: a tensor used several times counts once. ``ratio`` uses this one.
    trainable : int
        Elements of ``unique`` that require a gradient (0 for numpy arrays).
    shared : int
        Elements of ``unique`` that have more than one user.
    by_kind : dict of str to int
        ``unique`` split into "central" and "auxiliary" cores.
    dense : int
        Elements of the matrices or tensors that are represented (true size, no padding).
    by_core : tuple of int
        ``unique`` split by site; for several networks, summed over them.
    bytes_by_dtype : dict of str to int
        Bytes of ``unique`` elements, by element type.
    gauge_free : int
        Degrees of freedom: ``unique`` less the b^2 of every inner bond b, because an invertible
        matrix and its inverse between two cores change nothing. Bonds that meet in a shared
        core have one such matrix together.
    multiply_adds : dict of str to int
        Multiply-adds of the product with a batch of vectors, by strategy; "matrix" is that with
        the dense matrix itself. Empty unless a batch was asked for.

    Examples
    --------
    >>> report = Report(total=80, unique=60, trainable=0, shared=20, dense=100)
    >>> report.ratio, round(report.compression, 4)
    (0.6, 1.6667)
    """

    total: int
    unique: int
    trainable: int
    shared: int
    dense: int
    by_kind: Mapping[str, int] = field(default_factory=dict, hash=False)
    by_core: tuple[int, ...] = ()
    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict, hash=False)
    gauge_free: int = 0
    multiply_adds: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def ratio(self) -> float:
        """Stored / dense: below 1 the network is smaller."""
        return self.unique / self.dense

    @property
    def compression(self) -> float:
        """Dense / stored: above 1 the network is smaller; infinite beyond the range of floats."""
        try:
            return self.dense / self.unique
        except OverflowError:
            return math.inf

    @property
    def stored_bytes(self) -> int:
        """Bytes of the elements stored."""
        return sum(self.bytes_by_dtype.values())

    def __str__(self) -> str:
        rows = [("dense", self.dense), ("total (every use)", self.total), ("unique", self.unique)]
        rows += [(f"  {kind}", count) for kind, count in self.by_kind.items()]
        rows += [("shared", self.shared), ("trainable", self.trainable)]
        rows += [("gauge-free", self.gauge_free)] if self.gauge_free else []
        rows += [(f"bytes {dtype}", count) for dtype, count in self.bytes_by_dtype.items()]
        rows += [(f"multiply-adds {way}", n) for way, n in self.multiply_adds.items()]
        width = max(len(f"{count:,}") for _, count in rows)
        name_width = max(18, *(len(name) for name, _ in rows))
        lines = [f"{name:<{name_width}} {count:>{width},}" for name, count in rows]
        lines.append(f"{'stored / dense':<{name_width}} {self.ratio:>{width}.4f}")
        lines.append(f"{'dense / stored':<{name_width}} {self.compression:>{width}.4f}")
        if self.unique > self.dense:
            lines.append("Note: larger than the dense form; truncate or share to save.")
        return "\n".join(lines)


def account(network: Any, *, batch: int | None = None) -> Report:
    """Return exact counts for one network or several; a core held by several counts once.

    Parameters
    ----------
    network : MPO, TensorTrain, MPOBatch, SharedMPO, or sequence of them
        What to count.
    batch : int, optional
        A number of vectors: then the report has the multiply-adds of the products W @ x of all
        MPOs with so many, for each order in which they can be made. (For one vector: 1.)

    Returns
    -------
    Report
        ``total``, ``unique``, ``trainable``, ``shared``, ``by_kind``, ``by_core``,
        ``bytes_by_dtype``, ``gauge_free``, ``dense``, ``ratio``, ``multiply_adds``.

    Raises
    ------
    ShapeError
        If the sequence is empty, or ``batch`` is no positive integer.
    OptionError
        If ``batch`` is given for something else than MPOs.

    Examples
    --------
    >>> import tensornet as tn
    >>> m = tn.MPO([np.ones((1, 4, 4, 2)), np.ones((2, 4, 4, 1))])
    >>> report = account(m, batch=10)
    >>> report.unique, report.dense, report.ratio, report.gauge_free
    (64, 256, 0.25, 60)
    >>> report.multiply_adds
    {'matrix': 2560, 'left': 2560, 'right': 2560, 'dense': 3072}
    """
    several = isinstance(network, Sequence) and not isinstance(network, str)
    networks: list[Any] = list(network) if several else [network]
    networks = [part for n in networks for part in getattr(n, "mpos", (n,))]
    if not networks:
        raise ShapeError(complaint("network", "hold at least one network", "an empty sequence"))
    for n in networks:
        if not (hasattr(n, "cores") and hasattr(n, "account")):
            expected = "be an MPO, a TensorTrain or a sequence of them"
            raise ArrayTypeError(complaint("network", expected, describe(n)))
    costs = None if batch is None else _costs(networks, integer("batch", batch, 1, ShapeError))
    return count([(n.cores, math.prod(n.shape)) for n in networks], costs)


class _Entry(NamedTuple):
    """One stored core: where it was met first, and what it takes."""

    site: int
    kind: str
    size: int
    dtype: str
    n_bytes: int
    trainable: bool


def count(
    chains: Iterable[tuple[Cores, int]], multiply_adds: Mapping[str, int] | None = None
) -> Report:
    """Return the report of several chains of cores, each with its dense number of elements.

    A core counts once however many chains hold it: the same object, or arrays over the same
    memory. Cores of a batch have the batch as their first axis.
    """
    chains = list(chains)
    users: dict[object, int] = {}
    stored: dict[object, _Entry] = {}
    for cores, _ in chains:
        for k, core in enumerate(cores):
            key = storage_key(core)
            users[key] = users.get(key, 0) + 1
            stored.setdefault(key, _entry(core, k, len(cores)))
    entries = stored.values()
    unique = sum(e.size for e in entries)
    return Report(
        total=sum(users[key] * e.size for key, e in stored.items()),
        unique=unique,
        trainable=sum(e.size for e in entries if e.trainable),
        shared=sum(e.size for key, e in stored.items() if users[key] > 1),
        dense=sum(n_dense for _, n_dense in chains),
        by_kind={kind: _sum(entries, kind=kind) for kind in ("central", "auxiliary")},
        by_core=tuple(_sum(entries, site=k) for k in range(max(len(c) for c, _ in chains))),
        bytes_by_dtype={
            dtype: sum(e.n_bytes for e in entries if e.dtype == dtype)
            for dtype in sorted({e.dtype for e in entries})
        },
        gauge_free=unique - _gauge_freedom([cores for cores, _ in chains]),
        multiply_adds=dict(multiply_adds or {}),
    )


def _entry(core: Array, k: int, n_sites: int) -> _Entry:
    size = n_elements(core)
    return _Entry(
        site=k,
        kind="central" if k == n_sites // 2 else "auxiliary",
        size=size,
        dtype=dtype_name(core),
        n_bytes=size * int(core.dtype.itemsize),
        trainable=bool(getattr(core, "requires_grad", False)),
    )


def _sum(entries: Iterable[_Entry], **wanted: object) -> int:
    return sum(e.size for e in entries if all(getattr(e, k) == v for k, v in wanted.items()))


def _gauge_freedom(chains: list[Cores]) -> int:
    """Return the number of parameters that gauges take: b^2 for each bond, shared ones once.

    The right side of a core and the left side of the next share one invertible matrix. Sides
    that are joined through a core of several chains share it too, hence sets of sides.
    """
    leader: dict[object, object] = {}
    sizes: dict[object, int] = {}

    def find(side: object) -> object:
        while leader.setdefault(side, side) != side:
            side = leader[side]
        return side

    for cores in chains:
        keys = [storage_key(core) for core in cores]
        for k in range(len(cores) - 1):
            left, right = find((keys[k], "right")), find((keys[k + 1], "left"))
            leader[left] = right
            copies = int(cores[k].shape[0]) if cores[k].ndim == 5 else 1
            sizes[right] = copies * int(cores[k].shape[-1]) ** 2
    return sum(size for side, size in sizes.items() if find(side) == side)


def storage_key(core: Array) -> object:
    """Return a key that is equal for arrays over the same memory with the same layout."""
    if not hasattr(core, "data_ptr") and not hasattr(core, "__array_interface__"):
        return id(core)  # jax: arrays never change, and show no address
    shape = tuple(int(d) for d in core.shape)
    if hasattr(core, "data_ptr"):
        address, strides = core.data_ptr(), core.stride()
    else:
        address, strides = core.__array_interface__["data"][0], core.strides
    # An axis of size 1 has no stride that means anything.
    return address, shape, tuple(s for s, d in zip(strides, shape, strict=True) if d > 1)


def _costs(networks: Sequence[Any], batch: int) -> dict[str, int]:
    totals = {"matrix": 0}
    for n in networks:
        if not hasattr(n, "layout"):
            given = f"{batch} with a {type(n).__name__}"
            remedy = "Vectors are multiplied with MPOs only."
            raise OptionError(complaint("batch", "be left out", given, remedy))
        copies = math.prod(n.shape[:-2])
        totals["matrix"] += math.prod(n.shape) * batch
        for name, cost in product_costs(n.layout, n.bond_dims[:-1], batch).items():
            totals[name] = totals.get(name, 0) + copies * cost
    # Only what all networks can do is a strategy for all of them.
    known = [set(product_costs(n.layout, n.bond_dims[:-1], batch)) for n in networks]
    return {k: v for k, v in totals.items() if k == "matrix" or all(k in names for names in known)}
