"""Decomposition of a matrix into an MPO and of a tensor into a tensor train."""

from __future__ import annotations

import math
from typing import Any

from tensornet.backend import at_home
from tensornet.batch import decompose_batch, single_only
from tensornet.certificate import without_padding
from tensornet.checks import array, choice
from tensornet.cores import distance_to, split
from tensornet.errors import OptionError, complaint
from tensornet.fitting import allowance
from tensornet.gradient import differentiable_tensor
from tensornet.layout import MatrixLayout, matrix_layout
from tensornet.metric import decompose_metric
from tensornet.network import MPO, TensorTrain
from tensornet.single import GAUGES, Made, Request, decompose_tensor
from tensornet.stack import MPOBatch
from tensornet.typing import Array, Bonds, Differentiable, Gauge, ShapeSpec
from tensornet.whitening import checked_metric


def mpo(
    W: Array,
    shape: ShapeSpec = None,
    *,
    max_bond: int | None = None,
    bonds: Bonds = None,
    rtol: float | None = None,
    max_params: int | None = None,
    ratio: float | None = None,
    gauge: Gauge = "central",
    metric: Array | None = None,
    differentiable: Differentiable = False,
    pad: bool = True,
) -> MPO | Any:
    """Return a matrix as an MPO: a chain of small cores (left bond, i_k, j_k, right bond).

    Matrices of one shape in a 3-D array come back as an :class:`MPOBatch` with common bonds.

    Without limits the MPO is exact up to rounding, and its bonds show the numerical rank of
    every unfolding: a tail of singular values is dropped only where its share of the norm is
    rounding noise (4 eps in single precision, 0.4 eps in half, 4 eps times the square root of
    the bond in double). An exact MPO of a full-rank matrix is *larger* than the matrix:
    truncate it, or share cores among matrices, to save parameters.

    Parameters
    ----------
    W : Array, shape (rows, cols) or (batch, rows, cols)
        numpy array, torch tensor or jax array; float16, bfloat16, float32, float64, complex64
        or complex128. Not modified; torch tensors are detached unless ``differentiable``. jax
        arrays are decomposed by numpy on the host, in double precision whether or not jax has
        it; the cores are back on their device. Functions that jax traces cannot decompose.
    shape : None, int or (row_dims, col_dims)
        Factors of rows and columns, most significant first. An integer asks for so many
        balanced sites; ``None`` for five. Sizes without balanced factors are zero-padded.
    max_bond : int, optional
        Hard cap for every bond.
    bonds : sequence of int or "full", optional
        Caps for the n - 1 inner bonds (or all n + 1 with 1 at both ends). One that is larger than
        its neighbour times the site between is lowered to that, and then costs no error of its
        own: the square is at most the sum of what the others discard. ``"full"`` keeps the
        structural bonds, capped by ``max_bond``, whatever the rank: shapes then depend on the
        specification alone.
    rtol : float, optional
        Largest relative Frobenius error of the whole matrix. Bonds are chosen for the fewest
        parameters among all for which the discarded parts of the uncut unfoldings add up to no
        more; what that bound leaves unused then lowers bonds further.
    max_params : int, optional
        Most elements that all cores together may have. Bonds are chosen for the least error by
        the same bound; no single bond could be raised by one within the budget, unless nothing
        is discarded there. Not together with ``rtol``.
    ratio : float, optional
        ``max_params`` as a share of the elements of the matrix, in (0, 1]; of each matrix where
        W is 3-D. Not together with ``rtol`` or ``max_params``.
    gauge : {"central", "left", "right", "symmetric", "identity"}
        Where the norm sits: in the central core (all others isometric), in the last core
        ("left": left-isometric cores), in the first ("right"), or in all, with the square roots
        of the singular values on both sides of a bond ("symmetric"; ``center`` is then None).
        "identity", for exact decompositions only, does no arithmetic: all cores but one are
        reshaped identities.
    metric : Array, shape (cols, cols), optional
        Symmetric (Hermitian) positive semidefinite H, such as the mean of x x^T over inputs x.
        Errors are then ‖(W - M) H^(1/2)‖ relative to ‖W H^(1/2)‖: those of the outputs W x. All
        limits mean this error, and the certificate is a :class:`MetricCertificate`. Of W's
        library and on its device, in any element type. Where one site holds all columns, as in
        ``((rows, 1), (1, cols))``, the bases are those of W H^(1/2), and for two sites the
        result is the optimum; other layouts take alternating least squares, a few seconds for
        384 x 1536, which never raise the error. What M does on inputs without metric is free:
        it is then what W does, between the bases found.
    differentiable : bool or "subgradient"
        Whether gradients reach W (torch only; gauges "central" and "identity"). First
        derivatives of everything that no gauge changes, such as functions of ``to_matrix()``,
        are right and finite, whatever values are zero or repeated among the kept or among the
        discarded ones; a second derivative through a cut is refused. Bonds without a limit are
        then structural ones, whatever the rank. ``center`` and ``certificate`` are None while
        the cores require a gradient. A cut between equal singular values (nearer than 1e-6 of
        the last kept one, 1e-10 in double precision) has no derivative: an error, or with
        "subgradient" the derivative with the kept vectors among the equal ones held fixed.
    pad : bool
        Whether sizes without balanced factors may be zero-padded.

    Returns
    -------
    MPO or MPOBatch
        With a ``certificate`` that states the actual error; for a batch, ``certificates``, one
        per matrix, and the bonds that the most demanding matrix needs under the limits.

    Raises
    ------
    ShapeError
        If W is neither 2-D nor 3-D or the shape does not fit it.
    BondError
        If a bond is no positive integer or a list has the wrong length.
    ToleranceError
        If ``rtol`` is not in (0, 1), below what the element type can keep, or cannot be met
        under the caps; the message says what can.
    RangeError
        If a core does not fit the range of the element type.
    OptionError
        If the gauge is unknown, options contradict each other, ``max_params`` is no integer,
        ``ratio`` is not in (0, 1], one of them is too small for any chain (the message says what
        the smallest takes), or the metric is not symmetric and positive semidefinite up to
        rounding.
    NonFiniteError
        If W holds NaN or infinity; says how many and where.
    ArrayTypeError, DTypeError
        If W is no dense array of a supported element type, or has no gradients to offer.
    DerivativeError
        If ``differentiable`` and a cut splits equal singular values; names bond and values.

    References
    ----------
    Oseledets 2010 (matrices in TT format); Oseledets 2011, algorithm 1 (TT-SVD), swept here
    from both ends on small Gram matrices. In a metric: Eckart and Young 1936 on W H^(1/2);
    Holtz, Rohwedder and Schneider 2012 (alternating least squares).

    Examples
    --------
    >>> W = np.exp(-np.linspace(0, 1, 64)[:, None] * np.linspace(0, 1, 64))
    >>> m = mpo(W, ((8, 8), (8, 8)), rtol=1e-3)
    >>> m.bond_dims, m.n_params
    ((1, 3, 1), 384)
    >>> bool(np.linalg.norm(m.to_matrix() - W) < 1e-3 * np.linalg.norm(W))
    True
    """
    choice("gauge", gauge, GAUGES)
    many = getattr(W, "ndim", 2) == 3
    remedy = "A stack of matrices has 3, and tensors of any number go to tn.tt."
    backend, matrix = array("W", W, 3 if many else 2, remedy)
    rows, cols = (int(d) for d in matrix.shape[-2:])
    layout = matrix_layout(rows, cols, shape, pad=pad)
    most = allowance(max_params, ratio, rtol, rows * cols, layout.site_dims)
    request = Request(max_bond, bonds, rtol, gauge, most, ratio)
    if many:
        single_only(metric=metric is not None, differentiable=differentiable is not False)
        batch = decompose_batch(matrix, layout, request, backend)
        stacks = at_home(batch.cores, W)
        return MPOBatch._from(stacks, layout, batch.center, batch.certificates)
    if metric is not None:
        made = _in_metric(W, metric, layout, request, differentiable)
    elif differentiable is False:
        made = decompose_tensor(layout.fold(matrix), request, backend, fresh=True)
    else:
        made = differentiable_tensor(layout.fold(W), request, differentiable, backend)
    cores, certificate = split(made.cores, layout), made.certificate
    if layout.padded and metric is None:
        certificate = without_padding(certificate, distance_to(cores, layout, matrix))
    return MPO._from(at_home(cores, W), layout, made.center, certificate)


def _in_metric(
    W: Array, metric: Array, layout: MatrixLayout, request: Request, differentiable: Differentiable
) -> Made:
    if differentiable is not False:
        given, remedy = f"differentiable={differentiable!r}", "Leave one of them out."
        raise OptionError(complaint("metric", "be left out where gradients flow", given, remedy))
    backend, matrix = array("W", W, 2)
    checked = checked_metric(metric, W, matrix, backend)
    return decompose_metric(matrix, checked, layout, request, backend)


def tt(
    T: Array,
    *,
    max_bond: int | None = None,
    bonds: Bonds = None,
    rtol: float | None = None,
    max_params: int | None = None,
    ratio: float | None = None,
    gauge: Gauge = "central",
    differentiable: Differentiable = False,
) -> TensorTrain:
    """Return a tensor as a tensor train: a chain of cores (left bond, d_k, right bond).

    Parameters
    ----------
    T : Array, shape (d_1, ..., d_n)
        numpy array or torch tensor of at least one dimension; element types as in :func:`mpo`.
    max_bond, bonds, rtol, max_params, ratio, gauge, differentiable
        As in :func:`mpo`; the ratio is a share of the elements of the tensor.

    Returns
    -------
    TensorTrain
        With a ``certificate`` that states the actual error.

    Raises
    ------
    ShapeError, BondError, ToleranceError, OptionError, NonFiniteError, ArrayTypeError, DTypeError
        As in :func:`mpo`.

    References
    ----------
    Oseledets 2011, algorithm 1.

    Examples
    --------
    >>> i = np.arange(32.0)
    >>> T = 1 / (1 + i[:, None, None] + i[:, None] + i)
    >>> t = tt(T, max_bond=3)
    >>> t.n_params, round(t.certificate.relative_error, 7)
    (480, 0.0131867)
    """
    choice("gauge", gauge, GAUGES)
    backend, tensor = array("T", T)
    sites = tuple(int(d) for d in tensor.shape)
    most = allowance(max_params, ratio, rtol, math.prod(sites), sites)
    request = Request(max_bond, bonds, rtol, gauge, most, ratio)
    if differentiable is False:
        made = decompose_tensor(tensor, request, backend)
    else:
        made = differentiable_tensor(T, request, differentiable, backend)
    return TensorTrain._from(at_home(made.cores, T), made.center, made.certificate)
