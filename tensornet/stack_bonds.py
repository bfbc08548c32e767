"""Bonds of many matrices of one shape together, as far as their spectra tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from tensornet.backend import Backend, work_dtype
from tensornet.budget import fewest_params, least_error
from tensornet.fitting import DOUBLE_SHARE, NOISY_SHARE, Found, TensorSource, budget
from tensornet.layout import MatrixLayout
from tensornet.limits import DOUBLE, make_limits
from tensornet.single import Looked, Request, requested_caps
from tensornet.stack import fold_stack
from tensornet.stack_spectra import joined_tails
from tensornet.stack_storage import NearOne, Numbers, near_one
from tensornet.storage import carried
from tensornet.threads import AT_ONCE, side_by_side
from tensornet.typing import Array

T = TypeVar("T")
R = TypeVar("R")

# Matrices that were looked at before they are cut, by their number, or what was found out alone.
Seen = dict[int, Looked | Found]
# Matrices (batch, rows, cols), or a list of them.
Matrices = Array | Sequence[Array]
# Share of the squared norm down to which spectra are wanted when a budget is spent.
_SHARE = 1e-10


class Job(NamedTuple):
    """What is the same for all matrices."""

    layout: MatrixLayout
    request: Request
    dtype: str
    backend: Backend


def with_common_bonds(matrices: Matrices, job: Job, seen: Seen | None, *, stacked: bool) -> Request:
    """Return the request with bonds that suit all matrices together, as far as spectra tell.

    Under ``max_params`` they make the sum of the squared relative errors least; under ``rtol``
    they are the fewest parameters with which every matrix keeps it. What each would choose for
    itself may differ in kind, and the largest of all that could be no cut at all.

    Parameters
    ----------
    matrices : Array, shape (batch, rows, cols), or sequence of Array, shape (rows, cols) each
        Finite.
    job : Job
        What was asked for.
    seen : dict or None
        Gets the first matrices, and what was found out about the others where that is little.
    stacked : bool
        Whether stacked linear algebra is used, which keeps nothing.
    """
    request, sites = job.request, job.layout.site_dims
    caps, _ = requested_caps(sites, request)
    if request.rtol is None:
        sums = _tails(matrices, job, _SHARE, np.add, seen, stacked=stacked)
        bonds = least_error(sites, sums, budget(request.max_params, sites), caps)
        return request._replace(max_params=None, max_bond=None, bonds=bonds)
    limits = make_limits(caps, request.rtol, job.dtype, 1.0, forced=False)
    share = limits.allowed / len(caps)
    worst = _tails(matrices, job, share, np.maximum, seen, stacked=stacked)
    return request._replace(max_bond=None, bonds=fewest_params(sites, worst, limits.allowed, caps))


def _tails(
    matrices: Matrices,
    job: Job,
    share: float,
    join: np.ufunc,
    seen: Seen | None,
    *,
    stacked: bool,
) -> list[Numbers]:
    """Return the tails of all matrices, as shares of their squared norms, joined into one."""
    if stacked and share >= (DOUBLE_SHARE if job.dtype in DOUBLE else NOISY_SHARE):
        stacks = (near_ones(piece, job) for piece in pieces_of(matrices, job))
        found = joined_tails(stacks, join, job.backend)
        if found is not None:
            return found
    keep = None if stacked else seen
    noise = make_limits((1,) * (job.layout.n_sites + 1), None, job.dtype, 1.0, forced=False).noise

    def work(k: int) -> list[Numbers] | None:
        looked = Looked(*carried(job.layout.fold(matrices[k]), job.backend))
        total = looked.weight
        if total == 0.0:
            return None
        source = TensorSource(looked.tensor, total, noise * total, job.backend)
        found = source.find(share, gentle=job.request.rtol is not None)
        if keep is not None and k < _at_once(job):
            keep[k] = looked._replace(found=found)
        elif keep is not None and found.size * len(matrices) <= AT_ONCE:
            keep[k] = found  # less than the matrix, which is folded once more
        return [t / total for t in found.tails]

    joined: list[Numbers] = [np.zeros(1)] * (job.layout.n_sites - 1)
    for tails in each_of(work, range(len(matrices)), matrices):
        if tails is not None:
            joined = [_joined(a, t, join) for a, t in zip(joined, tails, strict=True)]
    return joined


def each_of(work: Callable[[T], R], pieces: Sequence[T], matrices: Matrices) -> list[R]:
    """Return what ``work`` makes of the pieces, on several threads where numpy does it.

    Examples
    --------
    >>> each_of(len, ["a", "bc"], np.ones((2, 2, 2)))
    [1, 2]
    """
    if isinstance(matrices[0], np.ndarray):
        return side_by_side(work, pieces, size=matrices[0].size)
    return [work(piece) for piece in pieces]


def _joined(a: Numbers, b: Numbers, join: np.ufunc) -> Numbers:
    # Spectra may be cut off where nothing is left: their tails go on with zeros.
    size = max(len(a), len(b))
    return np.asarray(join(np.pad(a, (0, size - len(a))), np.pad(b, (0, size - len(b)))))


def pieces_of(matrices: Matrices, job: Job) -> Iterator[Array]:
    """Yield stacks of as many matrices as are worked on at a time."""
    size = max(1, _at_once(job))
    for start in range(0, len(matrices), size):
        piece = matrices[start : start + size]
        yield job.backend.tl.stack(piece) if isinstance(piece, list) else piece


def _at_once(job: Job) -> int:
    return AT_ONCE // (job.layout.rows * job.layout.cols)


def near_ones(matrices: Array, job: Job) -> NearOne:
    """Return a stack (batch, rows, cols) folded to sites, in double precision and near 1."""
    folded = fold_stack(matrices, job.layout, job.backend)
    return near_one(job.backend.cast(folded, work_dtype(job.dtype)), job.backend)
