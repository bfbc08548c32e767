"""Decomposition in the metric of activations: errors count as they show in the output."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.als import Effort, Fit, Problem, continued, frames, gathered, refine, spread
from tensornet.backend import Backend, dtype_name, work_dtype
from tensornet.canonical import move_center
from tensornet.certificate import MetricCertificate
from tensornet.cores import contract_wide, split
from tensornet.errors import ToleranceError, complaint
from tensornet.fitting import TensorSource, fitted
from tensornet.gram import divided
from tensornet.layout import MatrixLayout
from tensornet.limits import make_limits
from tensornet.linalg import thin_svd
from tensornet.metric_bonds import fewest, guide_for
from tensornet.metric_starts import best_start
from tensornet.single import Made, Request, decompose_tensor, gauged, requested_caps, scale_factors
from tensornet.storage import narrowed, scaled, weight
from tensornet.truncation import tail_weights
from tensornet.typing import Array, Cores
from tensornet.whitening import Metric, column_site


class _Task(NamedTuple):
    """A matrix near 1 in double precision, its metric, and what was asked."""

    problem: Problem
    metric: Metric
    request: Request
    caps: tuple[int, ...]
    dtype: str
    scale: float
    backend: Backend


def decompose_metric(
    matrix: Array, metric: Metric, layout: MatrixLayout, request: Request, backend: Backend
) -> Made:
    """Return fused cores (left, site, right) in the matrix' element type.

    Where one site holds all columns the metric acts on that site alone. Then
    |(W - M) H^(1/2)| is the plain error of a network for W H^(1/2): its bases are taken from a
    plain decomposition, and the core with the columns is what W itself has between them. For
    two sites that is the optimum (Eckart and Young 1936). Otherwise cores are improved in turn
    from the best of several starts.

    Parameters
    ----------
    matrix : Array, shape (rows, cols)
        Finite.
    metric : Metric
        From :func:`tensornet.whitening.checked_metric`.
    layout : MatrixLayout
        Sites of the matrix.
    request : Request
        Limits in the metric, and the gauge.
    backend : Backend
        Operations for the matrix.

    Raises
    ------
    BondError, OptionError, ToleranceError
        As in :func:`tensornet.mpo`.
    """
    caps, forced = requested_caps(layout.site_dims, request)
    dtype = dtype_name(matrix)
    scale, near_one = scaled(backend.cast(matrix, work_dtype(dtype)), backend)
    total = metric.square(near_one, backend)
    problem = Problem(near_one, metric.matrix, metric.root, total, layout, backend)
    task = _Task(problem, metric, request, caps, dtype, scale, backend)
    unlimited = caps == layout.structural_bonds() and _spared(request, layout.n_params(caps))
    site = column_site(layout)
    if request.gauge == "identity" or (unlimited and (site is None or forced)):
        made = decompose_tensor(layout.fold(matrix), request, backend)
        storage = made.certificate.storage_error
        return made._replace(certificate=_certified(made.cores, task, storage, (), 0.0))
    fit, least = _closed(task, site) if site is not None else (_alternated(task), 0.0)
    cores, center = gauged(fit.cores, fit.center, request.gauge, backend)
    stored, storage = narrowed(cores, dtype, backend, scale_factors(len(cores), center, scale))
    certificate = _certified(stored, task, storage, fit.history, least)
    _keep_promise(certificate, request.rtol)
    return Made(stored, center, certificate)


def _spared(request: Request, n_params: int) -> bool:
    """Return whether no budget asks for less than a network of so many parameters."""
    enough = request.max_params is None or request.max_params >= n_params
    return request.rtol is None and enough


def whitened_errors(matrix: Array, metric: Metric, backend: Backend) -> np.ndarray[Any, Any]:
    """Return the least error in the metric of any matrix of rank 0, 1, ..., min(rows, cols).

    These are the errors of :func:`decompose_metric` with two sites ((rows, 1), (1, cols)).

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> from tensornet.whitening import checked_metric
    >>> numpy = load_backend("numpy")
    >>> H = checked_metric(np.diag([1.0, 4.0]), np.eye(2), np.eye(2), numpy)
    >>> whitened_errors(np.eye(2), H, numpy).round(4).tolist()
    [1.0, 0.4472, 0.0]
    """
    wide = scaled(backend.cast(matrix, work_dtype(dtype_name(matrix))), backend)[1]
    values = thin_svd(wide @ metric.root, backend)[1]
    tails = tail_weights(values**2)
    return np.asarray(np.sqrt(tails / tails[0])) if tails[0] > 0.0 else tails


def _closed(task: _Task, site: int) -> tuple[Fit, float]:
    """Return the network with its columns at one site, and what no other falls below."""
    problem, backend, rtol = task.problem, task.backend, task.request.rtol
    white = problem.layout.fold(problem.target @ task.metric.root)
    forced = isinstance(task.request.bonds, str)
    limits = make_limits(task.caps, rtol, task.dtype, problem.total, forced=forced)
    source = TensorSource(white, problem.total, limits.noise, backend)
    swept = fitted(source, limits, rtol, task.request.max_params)
    cores = move_center(swept.cores, swept.center, site, backend)
    sides = frames(cores, site, backend)
    core = gathered(problem.target, sides, problem)
    missing = problem.target - spread(core, sides, problem)
    error = _relative(task.metric.square(missing, backend), problem.total)
    least = _relative(max(swept.record.discarded.values(), default=0.0), problem.total)
    fit = Fit((*cores[:site], core, *cores[site + 1 :]), site, (error,))
    if problem.layout.padded:
        return _without_padding(task, fit), 0.0
    return fit, min(least, error)


def _without_padding(task: _Task, fit: Fit) -> Fit:
    """Return the best network with the bonds of a fit where padding does not count.

    The closed form counts it; a plain decomposition may be better by chance, and sweeps are.
    """
    bonds = (1, *(int(core.shape[2]) for core in fit.cores))
    other = _fitted(task, bonds, Effort())
    return min(fit, other, key=lambda one: one.history[-1])


def _alternated(task: _Task) -> Fit:
    """Return the network that sweeps have found, with bonds that the request allows."""
    problem, request = task.problem, task.request
    if request.rtol is None and request.max_params is None:
        return _fitted(task, task.caps, Effort())
    white = problem.layout.fold(problem.target @ task.metric.root)
    guide = guide_for(white, task.caps, problem.total, task.backend)
    if request.max_params is not None:
        chosen = {f(int(request.max_params)) for f in (guide.affordable, guide.even)}
        begun = (_fitted(task, bonds, Effort(sweeps=2)) for bonds in sorted(chosen))
        best = min(begun, key=lambda fit: fit.history[-1])
        return continued(best, problem, Effort())
    limits = make_limits(task.caps, request.rtol, task.dtype, 1.0, forced=False)
    room = math.sqrt(limits.allowed)
    return fewest(
        guide,
        room,
        lambda bonds: _fitted(task, bonds, Effort(sweeps=2)),
        lambda fit: continued(fit, problem, Effort(goal=room)),
    )


def _fitted(task: _Task, bonds: tuple[int, ...], effort: Effort) -> Fit:
    asked = task.request._replace(rtol=None, max_params=None, gauge="central")
    if not isinstance(asked.bonds, str):
        asked = asked._replace(max_bond=None, bonds=bonds)
    start = best_start(task.problem, task.metric, asked)
    return refine(start.cores, start.center, task.problem, effort)


def _certified(
    cores: Cores, task: _Task, storage: float, fit_history: tuple[float, ...], least: float
) -> MetricCertificate:
    """Return what stored cores are worth, measured on the matrix that they represent."""
    problem, backend = task.problem, task.backend
    found = contract_wide(split(cores, problem.layout), problem.layout)
    missing = problem.target - divided(found, task.scale)
    total, plain = problem.total, weight(problem.target, backend)
    error = _relative(task.metric.square(missing, backend), total)
    return MetricCertificate(
        norm=task.scale * math.sqrt(task.metric.scale) * math.sqrt(total),
        discarded_share=(),
        storage_error=storage,
        singular_values=(None,) * (len(cores) - 1),
        metric_error=error,
        frobenius_error=_relative(weight(missing, backend), plain),
        history=fit_history or (error,),
        least_error=least,
    )


def _keep_promise(certificate: MetricCertificate, rtol: float | None) -> None:
    if rtol is not None and certificate.metric_error > rtol:
        remedy = "The metric weights what storing the cores loses: use a wider element type."
        expected = f"be at least {certificate.metric_error:.4g} for this metric and element type"
        raise ToleranceError(complaint("rtol", expected, rtol, remedy))


def _relative(square: float, total: float) -> float:
    return math.sqrt(square / total) if total > 0.0 else 0.0
