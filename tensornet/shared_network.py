"""The value of a joint decomposition: MPOs that hold the very same cores where they share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tensornet.accounting import Report, count
from tensornet.certificate import Certificate, SharedCertificate
from tensornet.errors import counted
from tensornet.network import MPO
from tensornet.typing import Cores

__all__ = ["SharedCertificate", "SharedMPO"]


@dataclass(frozen=True, eq=False, repr=False)
class SharedMPO:
    """Matrices as MPOs that have some cores in common, made by :func:`tensornet.shared_mpo`.

    Attributes
    ----------
    mpos : tuple of MPO
        One network per matrix. A shared core is the very same array in all of its group.
    share : tuple of int
        The sites whose cores are shared.
    groups : tuple of tuple of int
        The matrices of each sharing group.
    stacks : tuple of Array
        For each site the cores of all networks: (matrices, left, i, j, right), or
        (groups, left, i, j, right) where they are shared. The networks' cores are views of them.
    history : tuple of float
        Relative error of all matrices (weighted, if weights were given) at the start and after
        each sweep, before the cores were stored; it never rises. Groups are fitted on their own:
        one that has ended keeps its last value. In metrics if it was made in them, from the
        plain decomposition on.
    converged : bool
        Whether every group ended by the stopping rule, not by the number of sweeps.

    Examples
    --------
    >>> import tensornet as tn
    >>> s = tn.shared_mpo(np.stack([np.eye(9), 2 * np.eye(9)]), ((3, 3), (3, 3)), max_bond=1)
    >>> s.mpos[0].cores[1] is s.mpos[1].cores[1], s.account().unique, s.account().shared
    (True, 27, 9)
    """

    mpos: tuple[MPO, ...]
    share: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    stacks: Cores
    history: tuple[float, ...]
    converged: bool

    @property
    def certificates(self) -> tuple[Certificate | None, ...]:
        """The actual error of each matrix; None where cores were changed in place."""
        return tuple(m.certificate for m in self.mpos)

    @property
    def relative_error(self) -> float | None:
        """Error of all matrices together (relative, Frobenius or in the metrics it was made in).

        None as a certificate is.
        """
        known = [c for c in self.certificates if c is not None]
        if len(known) < len(self.mpos):
            return None
        largest = max(c.norm for c in known) or 1.0
        errors = sum((c.norm / largest * c.relative_error) ** 2 for c in known)
        total = sum((c.norm / largest) ** 2 for c in known)
        return math.sqrt(errors / total) if total > 0.0 else 0.0

    @property
    def sweeps(self) -> int:
        """Number of sweeps from the start that was kept."""
        return len(self.history) - 1

    @property
    def bond_dims(self) -> tuple[int, ...]:
        """The n + 1 bond dimensions that all networks have."""
        return self.mpos[0].bond_dims

    def account(self) -> Report:
        """Return exact counts; a shared core counts once."""
        return count([(m.cores, math.prod(m.shape)) for m in self.mpos])

    def __len__(self) -> int:
        return len(self.mpos)

    def __iter__(self) -> Iterator[MPO]:
        return iter(self.mpos)

    def __getitem__(self, index: int) -> MPO:
        return self.mpos[index]

    def __repr__(self) -> str:
        report, (rows, cols) = self.account(), self.mpos[0].shape
        text = f"SharedMPO({len(self)} of {rows}x{cols} in "
        text += f"{counted(len(self.groups), 'group')}, sites {list(self.share)} shared, "
        text += f"bonds {list(self.bond_dims[1:-1])}, {report.unique:,} parameters "
        text += f"({report.ratio:.4g} of dense{': larger' if report.ratio > 1 else ''})"
        error = self.relative_error
        text += "" if error is None else f", relative error {error:.3g}"
        ended = "" if self.converged else ", not converged"
        return f"{text}, {counted(self.sweeps, 'sweep')}{ended})"
