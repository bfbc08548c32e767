"""Joint decomposition: many matrices as MPOs that have some of their cores in common."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal

import numpy as np

from tensornet.backend import Backend, at_home, backend_of, dtype_name, work_dtype, working
from tensornet.bonds import requested_bonds
from tensornet.certificate import Certificate, MetricCertificate
from tensornet.checks import array, choice, integer, one_cap, positives
from tensornet.contract.chain import contract_matrix
from tensornet.cores import frobenius, relative_distance, seal
from tensornet.errors import (
    OptionError,
    RangeError,
    ShapeError,
    ToleranceError,
    ToleranceWarning,
    complaint,
)
from tensornet.joint_fit import Effort
from tensornet.joint_groups import Group, Job, fitted_group, gathered_groups, history_of
from tensornet.layout import matrix_layout
from tensornet.metric_stack import MetricStack, checked_metrics
from tensornet.network import MPO
from tensornet.shared_network import SharedCertificate, SharedMPO
from tensornet.stack import split_stack
from tensornet.stack_storage import Numbers
from tensornet.storage import in_double, scaled
from tensornet.typing import Array, Bonds, Cores, ShapeSpec

Share = Literal["central", "auxiliary"] | Sequence[Any]
Groups = int | Sequence[Sequence[int]] | None
Progress = Callable[[int, float], object] | bool | None
_log = logging.getLogger("tensornet")


def shared_mpo(
    Ws: Array | Sequence[Array],
    shape: ShapeSpec = None,
    *,
    share: Share = ("central",),
    groups: Groups = None,
    max_bond: int | None = None,
    bonds: Bonds = None,
    weights: Sequence[float] | None = None,
    metric: Array | Sequence[Array] | None = None,
    rtol: float | None = None,
    max_sweeps: int = 100,
    tol: float = 1e-4,
    starts: int = 3,
    seed: int = 0,
    progress: Progress = None,
    pad: bool = True,
) -> SharedMPO:
    """Return matrices of one shape as MPOs that share cores: by default W_l = L_l C R_l.

    The sum of squared errors is made small by over-relaxed alternating least squares: core
    after core is moved 1.9 times the way to its optimum, which lowers the error in every step
    and takes about a sixth of the sweeps that plain alternation needs. The central core C is
    common; the auxiliary cores, L_l and R_l, belong to their matrix and are not isometric. If
    all matrices are equal the result is exact. Matrices that were trained apart have little in
    common: look at the certificates.

    Parameters
    ----------
    Ws : Array, shape (n, rows, cols), or sequence of Array, shape (rows, cols)
        The matrices; library and element types as in :func:`tensornet.mpo`.
    shape : None, int or (row_dims, col_dims)
        As in :func:`tensornet.mpo`.
    share : "central", "auxiliary" or sequence
        What is shared: the central core, all others, or the named sites (integers and
        "central"). At least one site must not be shared.
    groups : int or sequence of sequences of int, optional
        Sharing groups, each with cores of its own: so many runs of neighbours, as equal as
        possible, or the indices of the matrices of each group. By default one group.
    max_bond, bonds
        As in :func:`tensornet.mpo`; bonds are full otherwise, whatever the rank.
    weights : sequence of float, optional
        Weight of each matrix's squared error. By default 1: large matrices count more. Use
        ``1 / norm ** 2`` to give all relative errors the same weight.
    metric : Array, shape (cols, cols) or (n, cols, cols), or sequence of Array, optional
        One H for all matrices, or one for each: symmetric, positive semidefinite, such as the
        mean of x x^T over inputs x of a layer. Errors are then those of the outputs,
        ‖(W - M) H^(1/2)‖, and so are those of ``rtol``, ``weights``, ``progress`` and the
        history; each certificate is a :class:`MetricCertificate`. The cores of the plain
        decomposition are the start, and no sweep raises their error in the metrics.
    rtol : float, optional
        Stop as soon as the relative error of all matrices of a group is at most this. Where no
        sweep gets there the best result comes back with a :class:`ToleranceWarning`.
    max_sweeps : int
        Largest number of sweeps, those that try the starts included. 0: the first start itself.
        With ``metric`` as many more may follow in the metrics.
    tol : float
        Stop when five sweeps lower the error by less than five times this share.
    starts : int
        Number of starts: common sides with the mean as common core (identities, for full
        bonds), each matrix's own sides, the mean matrix's chain, and then perturbed ones. Each
        that is a point of its own has five sweeps; the better half has more, until one is left.
    seed : int
        Seed of the perturbations.
    progress : callable or True, optional
        Called as ``progress(sweep, relative_error)`` after each sweep; the fit of the group
        ends early if it returns True. ``True`` writes lines to the log named "tensornet". With
        ``metric``, sweeps of the plain decomposition and their plain errors come first.
    pad : bool
        As in :func:`tensornet.mpo`.

    Returns
    -------
    SharedMPO
        ``mpos`` hold the very same array where they share; every one has a ``certificate``.

    Raises
    ------
    ShapeError
        If the matrices differ in shape, or the shape, sites, groups or metrics do not fit them.
    OptionError
        If an option is out of range, nothing or everything is shared, or a metric is not
        symmetric and positive semidefinite up to rounding.
    BondError, NonFiniteError, ArrayTypeError, DTypeError
        As in :func:`tensornet.mpo`, also for ``metric``; one of several is named by its index.
    RangeError
        If a core does not fit the range of the element type.

    References
    ----------
    Kroonenberg and de Leeuw 1980 (alternating least squares); Young 1954 (over-relaxation);
    in metrics Hestenes and Stiefel 1952 (conjugate gradients for each core).

    Examples
    --------
    >>> W = np.random.default_rng(0).normal(size=(16, 16))
    >>> s = shared_mpo(np.stack([W, W, W]), 3)
    >>> s.mpos[0].central is s.mpos[2].central, s.relative_error < 1e-14
    (True, True)
    >>> s.account().unique, 3 * 16 * 16
    (352, 768)

    What the inputs of a layer hardly have need not be right:

    >>> Ws, H = np.random.default_rng(1).normal(size=(3, 16, 16)), np.diag(0.5 ** np.arange(16))
    >>> seen = shared_mpo(Ws, 3, metric=H)  # begins with the plain decomposition
    >>> round(seen.history[0], 2), round(seen.relative_error, 2)
    (0.6, 0.21)
    """
    stack = _stacked(Ws)
    backend, matrices = array("Ws", stack, 3)
    n, rows, cols = (int(d) for d in matrices.shape)
    layout = matrix_layout(rows, cols, shape, pad=pad)
    layout.check_formable()
    sites = _sites(share, layout.n_sites)
    members = _members(groups, n)
    one_cap(max_bond)
    caps = requested_bonds(layout.site_dims, max_bond, bonds)
    each = _weights(weights, n)
    effort = _effort(max_sweeps, tol, rtol, progress)
    tries = integer("starts", starts, 1, OptionError), integer("seed", seed, 0, OptionError)
    metrics = None if metric is None else checked_metrics(metric, stack, matrices, backend)
    wide = backend.cast(matrices, work_dtype(dtype_name(matrices)))
    scale, near_one = scaled(wide, backend)
    job = Job(layout, sites, caps, tries, effort, backend)
    fits = [
        fitted_group(
            near_one[list(group)],
            None if each is None else each[list(group)],
            None if metrics is None else metrics.of(group),
            job,
        )
        for group in members
    ]
    cores, middle = gathered_groups(fits, members, job), layout.central
    cores = (*cores[:middle], cores[middle] * scale, *cores[middle + 1 :])
    stacks = split_stack(_narrowed(cores, dtype_name(matrices), backend), layout, backend)
    mpos = _networks(seal(at_home(stacks, stack)), wide, metrics, members, job)
    converged = all(f.converged for f in fits)
    made = SharedMPO(mpos, sites, members, stacks, history_of(fits), converged)
    _warn_of_missed(made, fits, effort)
    return made


def _warn_of_missed(made: SharedMPO, fits: Sequence[Group], effort: Effort) -> None:
    """Say so where matrices that share cores do not come as close as was asked for."""
    worst = max(fit.history[-1] for fit in fits)
    if worst > effort.goal > 0.0:
        way = "larger bonds or fewer matrices for a common core"
        more = way if made.converged else f"more sweeps (max_sweeps), {way}"
        text = f"rtol={effort.goal:g} was not reached: the relative error is {worst:.4g}. "
        warnings.warn(f"{text}Try {more}.", ToleranceWarning, stacklevel=3)


def _narrowed(cores: Cores, dtype: str, backend: Backend) -> Cores:
    stored = []
    for k, core in enumerate(cores):
        with np.errstate(over="ignore"):  # looked for in the next line
            small = backend.own(backend.cast(core, dtype))
        if not backend.all_finite(small):
            remedy = "Scale the matrices down, or use a wider element type."
            raise RangeError(
                complaint(f"core {k}", f"fit the range of {dtype}", "larger entries", remedy)
            )
        stored.append(small)
    return tuple(stored)


def _networks(
    stacks: Cores,
    matrices: Array,
    metrics: MetricStack | None,
    members: tuple[tuple[int, ...], ...],
    job: Job,
) -> tuple[MPO, ...]:
    n = int(matrices.shape[0])
    group_of = {k: g for g, group in enumerate(members) for k in group}
    # One view for each common core, so that its users hold the very same object.
    common = {site: [stacks[site][g] for g in range(len(members))] for site in job.sites}
    mpos = []
    for k in range(n):
        cores = tuple(
            common[site][group_of[k]] if site in common else stack[k]
            for site, stack in enumerate(stacks)
        )
        backend, wide = in_double(cores)
        # jax's arrays are worked on by numpy.
        _, rebuilt = working(contract_matrix(wide, job.layout), backend)
        own = None if metrics is None else metrics.of([k])
        certificate = _certified(rebuilt, matrices[k], own, job.layout.n_sites - 1)
        mpos.append(MPO._from(cores, job.layout, None, certificate))
    return tuple(mpos)


def _certified(
    rebuilt: Array, matrix: Array, metric: MetricStack | None, n_bonds: int
) -> Certificate:
    """Return what stored cores are worth, measured on the matrix that they represent."""
    error = relative_distance(rebuilt, matrix)
    if metric is None:
        return SharedCertificate(frobenius(matrix), (error * error / n_bonds,) * n_bonds, 0.0)
    root = metric.roots[0]
    seen, missing = frobenius(matrix @ root), frobenius((matrix - rebuilt) @ root)
    return MetricCertificate(
        norm=seen * math.sqrt(metric.scale),
        discarded_share=(),
        storage_error=0.0,
        singular_values=(None,) * n_bonds,
        metric_error=missing / seen if seen > 0.0 else 0.0,
        frobenius_error=error,
    )


def _stacked(Ws: Any) -> Array:
    """Return the matrices as one array."""
    if not isinstance(Ws, list | tuple):
        return Ws
    if not Ws:
        raise ShapeError(complaint("Ws", "hold at least one matrix", "an empty sequence"))
    backends = backend_of(*Ws, argument="Ws")
    shapes = {tuple(int(d) for d in W.shape) for W in Ws}
    types = {dtype_name(W) for W in Ws}
    if len(shapes) > 1 or len(types) > 1:
        given = " and ".join(sorted(map(str, shapes if len(shapes) > 1 else types)))
        raise ShapeError(complaint("Ws", "have one shape and element type", given))
    return backends.tl.stack(list(Ws))


def _sites(share: Any, n_sites: int) -> tuple[int, ...]:
    """Return the sites whose cores are shared."""
    middle = n_sites // 2
    if isinstance(share, str):
        choice("share", share, ("central", "auxiliary"))
        share = (middle,) if share == "central" else [k for k in range(n_sites) if k != middle]
    if not isinstance(share, Sequence):
        expected = "be 'central', 'auxiliary' or a sequence of sites"
        raise OptionError(complaint("share", expected, repr(share)))
    named = {middle if k == "central" else integer("share", k, 0, OptionError) for k in share}
    if named and max(named) >= n_sites:
        expected = f"name sites from 0 to {n_sites - 1}"
        raise OptionError(complaint("share", expected, max(named)))
    if not named or len(named) == n_sites:
        expected = f"name at least one and not all of the sites 0 to {n_sites - 1}"
        raise OptionError(complaint("share", expected, sorted(named)))
    return tuple(sorted(named))


def _members(groups: Any, n: int) -> tuple[tuple[int, ...], ...]:
    """Return the matrices of each sharing group."""
    if groups is None:
        return (tuple(range(n)),)
    if not isinstance(groups, Sequence) or isinstance(groups, str):
        k = integer("groups", groups, 1, ShapeError)
        if k > n:
            raise ShapeError(complaint("groups", f"be at most the number of matrices {n}", k))
        return tuple(tuple(map(int, part)) for part in np.array_split(np.arange(n), k))
    for g, group in enumerate(groups):
        if isinstance(group, str | bytes) or not isinstance(group, Sequence | np.ndarray):
            expected = "be a sequence of indices of matrices"
            remedy = "Write groups=[[0, 1], [2]], or a number of groups."
            raise OptionError(complaint(f"groups[{g}]", expected, repr(group), remedy))
    made = tuple(
        tuple(integer(f"groups[{g}]", k, 0, ShapeError) for k in group)
        for g, group in enumerate(groups)
    )
    if sorted(k for group in made for k in group) != list(range(n)) or () in made:
        expected = f"hold each of the matrices 0 to {n - 1} once"
        raise ShapeError(complaint("groups", expected, [list(group) for group in made]))
    return made


def _weights(weights: Any, n: int) -> Numbers | None:
    if weights is None:
        return None
    values = np.array(positives("weights", weights, [str(k) for k in range(n)]))
    # Their mean is 1: only ratios matter, and sums stay in the range of numbers.
    return np.asarray(values / values.max())


def _effort(max_sweeps: Any, tol: Any, rtol: Any, progress: Any) -> Effort:
    """Return when to stop, from what the user said."""
    for name, value, least in (("tol", tol, 0.0), ("rtol", rtol, None)):
        if value is None and name == "rtol":
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ToleranceError(complaint(name, "be a number", repr(value)))
        if not 0.0 <= float(value) < 1.0 or (least is None and float(value) == 0.0):
            expected = "be in [0, 1)" if name == "tol" else "be in (0, 1)"
            raise ToleranceError(complaint(name, expected, value))
    if not (progress is None or progress is True or callable(progress)):
        raise OptionError(complaint("progress", "be None, True or a callable", repr(progress)))

    def told(sweep: int, error: float) -> bool:
        if progress is True:
            _log.info("joint decomposition: sweep %d, relative error %.6g", sweep, error)
        elif progress is not None:
            return progress(sweep, error) is True
        return False

    sweeps = integer("max_sweeps", max_sweeps, 0, OptionError)
    return Effort(sweeps, float(tol), 0.0 if rtol is None else float(rtol), told)
