"""Bonds that suit many matrices of one shape together, as far as their spectra tell."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet.backend import Backend, dtype_name, where_shared
from tensornet.checks import array, describe
from tensornet.errors import OptionError, ShapeError, ToleranceError, complaint
from tensornet.fitting import allowance
from tensornet.layout import matrix_layout
from tensornet.single import Request, decompose_tensor
from tensornet.stack_bonds import Job, each_of, with_common_bonds
from tensornet.typing import Array, Bonds, ShapeSpec


def common_bonds(
    Ws: Array | Sequence[Array],
    shape: ShapeSpec = None,
    *,
    rtol: float | None = None,
    max_params: int | None = None,
    max_bond: int | None = None,
    bonds: Bonds = None,
) -> tuple[int, ...]:
    """Return the bonds that ``mpo`` of a stack gives all of it, without keeping its cores.

    Matrices are looked at one at a time, and need not lie together.

    Parameters
    ----------
    Ws : Array, shape (batch, rows, cols), or sequence of Array, shape (rows, cols) each
        Matrices of one shape, library and element type, as for :func:`mpo`.
    shape : None, int, (row_dims, col_dims) or MatrixLayout
        As in :func:`mpo`.
    rtol : float, optional
        Relative error (Frobenius) that no matrix passes; met with the fewest parameters.
    max_params : int, optional
        Most parameters of each network; the sum of the squared relative errors is least. Exactly
        one of the two must be given.
    max_bond, bonds
        Largest bonds, as in :func:`mpo`.

    Returns
    -------
    tuple of int
        The n + 1 bond dimensions; first and last are 1.

    Raises
    ------
    OptionError
        If there are no matrices, or not exactly one of the two limits.
    ShapeError
        If the matrices are of several shapes, or the shape does not fit them.
    ArrayTypeError, BondError, DTypeError, NonFiniteError, ToleranceError
        As in :func:`mpo`; the matrix is named.

    Examples
    --------
    >>> i = np.arange(16.0)
    >>> smooth, rough = 1 / (1 + i[:, None] + i), np.cos(np.outer(i, i))
    >>> common_bonds([smooth], 2, rtol=0.1), common_bonds([smooth, rough], 2, rtol=0.1)
    ((1, 2, 1), (1, 12, 1))
    """
    if (rtol is None) == (max_params is None):
        given = "none of them" if rtol is None else "both"
        raise OptionError(complaint("rtol", "be given, or max_params, one of the two", given))
    matrices, backend = _checked(Ws)
    rows, cols = (int(d) for d in matrices[0].shape)
    layout = matrix_layout(rows, cols, shape)
    most = allowance(max_params, None, rtol, rows * cols, layout.site_dims)
    request = Request(max_bond, bonds, rtol, "central", most, None)
    stacked = "cpu" not in backend.place(matrices[0]).lower()
    job = Job(layout, request, dtype_name(matrices[0]), backend)
    if len(matrices) > 1:
        job = job._replace(request=with_common_bonds(matrices, job, None, stacked=stacked))
    return _needed(matrices, job)


def _needed(matrices: list[Array], job: Job) -> tuple[int, ...]:
    """Return what cuts leave of bonds that spectra allow: those bound errors, and hide ranks."""

    def work(k: int) -> tuple[int, ...]:
        try:
            cores = decompose_tensor(job.layout.fold(matrices[k]), job.request, job.backend).cores
        except ToleranceError as error:
            raise ToleranceError(f"Ws[{k}]: {error}") from None
        return (*(int(core.shape[0]) for core in cores), 1)

    return tuple(map(max, zip(*each_of(work, range(len(matrices)), matrices), strict=True)))


def _checked(Ws: object) -> tuple[list[Array], Backend]:
    """Return the matrices, each looked at, and the operations for them."""
    if not (isinstance(Ws, Sequence) or getattr(Ws, "ndim", 0) == 3) or isinstance(Ws, str):
        expected = "be a 3-D array or a sequence of matrices"
        raise OptionError(complaint("Ws", expected, describe(Ws)))
    given = [array(f"Ws[{k}]", W, 2) for k, W in enumerate(Ws)]  # type: ignore[arg-type,var-annotated]
    if not given:
        raise OptionError(complaint("Ws", "hold at least one matrix", "none"))
    kinds = [(tuple(m.shape), b.name, dtype_name(m), b.place(m)) for b, m in given]
    for k, kind in enumerate(kinds):
        if kind != kinds[0]:
            first, other = (" ".join(map(str, one)) for one in (kinds[0], kind))
            expected = f"be of one shape, library, element type and device, as Ws[0] is ({first})"
            raise ShapeError(complaint(f"Ws[{k}]", expected, other))
    # They come without a graph and are of one kind: numpy reads all of them, or none.
    found = [where_shared(matrix, backend) for backend, matrix in given]
    return [matrix for matrix, _ in found], found[0][1]
