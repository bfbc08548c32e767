"""Exact counts of what a network stores, in Python integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensornet.backend import n_elements
from tensornet.typing import Array


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

    @property
    def ratio(self) -> float:
        """Stored / dense: below 1 the network is smaller."""
        return self.unique / self.dense

    @property
    def compression(self) -> float:
        """Dense / stored: above 1 the network is smaller."""
        return self.dense / self.unique

    def __str__(self) -> str:
        rows = [("dense", self.dense), ("total (every use)", self.total), ("unique", self.unique)]
        rows += [(f"  {kind}", count) for kind, count in self.by_kind.items()]
        rows += [("shared", self.shared), ("trainable", self.trainable)]
        width = max(len(f"{count:,}") for _, count in rows)
        lines = [f"{name:<18} {count:>{width},}" for name, count in rows]
        lines.append(f"{'stored / dense':<18} {self.ratio:>{width}.4f}")
        lines.append(f"{'dense / stored':<18} {self.compression:>{width}.4f}")
        if self.unique > self.dense:
            lines.append("Note: larger than the dense form; truncate or share to save.")
        return "\n".join(lines)


def count(chains: Iterable[tuple[tuple[Array, ...], int]]) -> Report:
    """Return the report of several chains of cores, each with its dense number of elements.

    A core counts once however many chains hold it: the same object, or arrays over the same
    memory.
    """
    total, dense = 0, 0
    users: dict[object, int] = {}
    sizes: dict[object, tuple[str, int, bool]] = {}
    for cores, n_dense in chains:
        dense += n_dense
        for k, core in enumerate(cores):
            size = n_elements(core)
            kind = "central" if k == len(cores) // 2 else "auxiliary"
            key = storage_key(core)
            total += size
            users[key] = users.get(key, 0) + 1
            sizes[key] = (kind, size, bool(getattr(core, "requires_grad", False)))
    by_kind = {
        kind: sum(size for k, size, _ in sizes.values() if k == kind)
        for kind in ("central", "auxiliary")
    }
    return Report(
        total=total,
        unique=sum(size for _, size, _ in sizes.values()),
        trainable=sum(size for _, size, trainable in sizes.values() if trainable),
        shared=sum(sizes[key][1] for key, n in users.items() if n > 1),
        dense=dense,
        by_kind=by_kind,
    )


def storage_key(core: Array) -> object:
    """Return a key that is equal for arrays over the same memory with the same layout."""
    shape = tuple(int(d) for d in core.shape)
    if hasattr(core, "data_ptr"):
        address, strides = core.data_ptr(), core.stride()
    else:
        address, strides = core.__array_interface__["data"][0], core.strides
    # An axis of size 1 has no stride that means anything.
    return address, shape, tuple(s for s, d in zip(strides, shape, strict=True) if d > 1)
