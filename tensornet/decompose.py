"""Decomposition of a matrix into an MPO and of a tensor into a tensor train."""

from __future__ import annotations

from tensornet.backend import dtype_name, work_dtype
from tensornet.certificate import without_padding
from tensornet.checks import array, choice
from tensornet.cores import contract_wide, relative_distance, split
from tensornet.layout import matrix_layout
from tensornet.network import MPO, TensorTrain
from tensornet.single import GAUGES, Request, decompose_tensor
from tensornet.typing import Array, Bonds, Gauge, ShapeSpec


def mpo(
    W: Array,
    shape: ShapeSpec = None,
    *,
    max_bond: int | None = None,
    bonds: Bonds = None,
    rtol: float | None = None,
    gauge: Gauge = "central",
    pad: bool = True,
) -> MPO:
    """Return a matrix as an MPO: a chain of small cores (left bond, i_k, j_k, right bond).

    Without limits the MPO is exact up to rounding, and its bonds show the numerical rank of
    every unfolding: a tail of singular values is dropped only where its share of the norm is
    rounding noise (4 eps in single precision, 0.4 eps in half, 4 eps times the square root of
    the bond in double). An exact MPO of a full-rank matrix is *larger* than the matrix:
    truncate it, or share cores among matrices, to save parameters.

    Parameters
    ----------
    W : Array, shape (rows, cols)
        numpy array or torch tensor; float16, bfloat16, float32, float64, complex64 or
        complex128. Not modified; torch tensors are detached.
    shape : None, int or (row_dims, col_dims)
        Factors of rows and columns, most significant first. An integer asks for so many
        balanced sites; ``None`` for five. Sizes without balanced factors are zero-padded.
    max_bond : int, optional
        Hard cap for every bond.
    bonds : sequence of int or "full", optional
        Caps for the n - 1 inner bonds (or all n + 1 with 1 at both ends). ``"full"`` keeps the
        structural bonds, capped by ``max_bond``, whatever the rank: shapes then depend on the
        specification alone.
    rtol : float, optional
        Largest relative Frobenius error of the whole matrix. Bonds are as small as the budget
        allows, which is split over them; what one leaves goes to the next.
    gauge : {"central", "left", "right", "symmetric", "identity"}
        Where the norm sits: in the central core (all others isometric), in the last core
        ("left": left-isometric cores), in the first ("right"), or in all, with the square roots
        of the singular values on both sides of a bond ("symmetric"; ``center`` is then None).
        "identity", for exact decompositions only, does no arithmetic: all cores but one are
        reshaped identities.
    pad : bool
        Whether sizes without balanced factors may be zero-padded.

    Returns
    -------
    MPO
        With a ``certificate`` that states the actual error.

    Raises
    ------
    ShapeError
        If W is not 2-D or the shape does not fit it.
    BondError
        If a bond is no positive integer or a list has the wrong length.
    ToleranceError
        If ``rtol`` is not in (0, 1), below what the element type can keep, or cannot be met
        under the caps; the message says what can.
    OptionError
        If the gauge is unknown, or options contradict each other.
    NonFiniteError
        If W holds NaN or infinity; says how many and where.
    ArrayTypeError, DTypeError
        If W is no dense array of a supported element type.

    References
    ----------
    Oseledets 2010 (matrices in TT format); Oseledets 2011, algorithm 1 (TT-SVD), swept here
    from both ends on small Gram matrices.

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
    backend, matrix = array("W", W, 2)
    layout = matrix_layout(int(matrix.shape[0]), int(matrix.shape[1]), shape, pad=pad)
    request = Request(max_bond, bonds, rtol, gauge)
    made = decompose_tensor(layout.fold(matrix), request, backend)
    cores, certificate = split(made.cores, layout), made.certificate
    if layout.padded:
        wide = backend.cast(matrix, work_dtype(dtype_name(matrix)))
        error = relative_distance(contract_wide(cores, layout), wide)
        certificate = without_padding(certificate, error)
    return MPO._from(cores, layout, made.center, certificate)


def tt(
    T: Array,
    *,
    max_bond: int | None = None,
    bonds: Bonds = None,
    rtol: float | None = None,
    gauge: Gauge = "central",
) -> TensorTrain:
    """Return a tensor as a tensor train: a chain of cores (left bond, d_k, right bond).

    Parameters
    ----------
    T : Array, shape (d_1, ..., d_n)
        numpy array or torch tensor of at least one dimension; element types as in :func:`mpo`.
    max_bond, bonds, rtol, gauge
        As in :func:`mpo`.

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
    made = decompose_tensor(tensor, Request(max_bond, bonds, rtol, gauge), backend)
    return TensorTrain._from(made.cores, made.center, made.certificate)
