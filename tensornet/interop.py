"""Networks to and from other libraries: TensorLy, quimb, and plain lists of arrays.

The order of sites is the same everywhere, most significant first, and so is the matrix: rows are
TensorLy's left shape and quimb's upper indices. Padding is not known elsewhere: what other
libraries get is the padded matrix, and ``rows`` and ``cols`` give the true size back.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

from tensornet.backend import backend_of, tensorly_chains
from tensornet.checks import describe
from tensornet.errors import (
    ArrayTypeError,
    BondError,
    MissingLibraryError,
    OptionError,
    ShapeError,
    complaint,
    counted,
)
from tensornet.network import MPO, TensorTrain
from tensornet.typing import Array

__all__ = ["from_arrays", "from_quimb", "from_tensorly", "to_arrays", "to_quimb", "to_tensorly"]

_OWN = {4: "lijr", 3: "lir"}


def to_arrays(network: MPO | TensorTrain, axes: str | None = None) -> list[Array]:
    """Return the cores as a plain list, with their axes in an order of your choice.

    Parameters
    ----------
    network : MPO or TensorTrain
        What to convert.
    axes : str, optional
        A permutation of ``"lijr"`` for an MPO or ``"lir"`` for a tensor train: left bond, row
        or site, column, right bond. The default is that order, which TensorLy and torchTT use.

    Returns
    -------
    list of Array
        In the cores' library. In the default order these are the cores themselves.

    Raises
    ------
    ArrayTypeError
        If ``network`` is no MPO or TensorTrain.
    OptionError
        If ``axes`` is no permutation of the letters.

    Examples
    --------
    >>> m = MPO([np.ones((1, 2, 3, 1))])
    >>> to_arrays(m, "lrij")[0].shape
    (1, 1, 2, 3)
    """
    cores = _network(network).cores
    own = _OWN[cores[0].ndim]
    if axes is None or axes == own:
        return list(cores)
    backend = backend_of(*cores)
    order = [own.index(letter) for letter in _permutation(axes, own)]
    return [backend.copy(backend.tl.transpose(core, order)) for core in cores]


def from_arrays(
    arrays: Sequence[Array],
    axes: str | None = None,
    *,
    rows: int | None = None,
    cols: int | None = None,
) -> MPO | TensorTrain:
    """Return a network of a plain list of arrays.

    Parameters
    ----------
    arrays : sequence of Array
        The cores. The two outer bonds may be left out: the end arrays then have an axis fewer.
    axes : str, optional
        Their axes, as in :func:`to_arrays`; by default ``"lijr"`` where the largest array has
        four axes and ``"lir"`` where it has three.
    rows, cols : int, optional
        True size of a zero-padded matrix.

    Returns
    -------
    MPO or TensorTrain
        As many letters as ``axes`` has decide which.

    Raises
    ------
    OptionError
        If ``axes`` is no permutation of the letters.
    ShapeError, BondError, ArrayTypeError, DTypeError, NonFiniteError
        If the arrays form no chain, as for :class:`tensornet.MPO`.

    Examples
    --------
    >>> from_arrays([np.ones((2, 3, 4)), np.ones((2, 5, 6))], "lrij").shape
    (15, 24)
    """
    if not isinstance(cast(object, arrays), Sequence) or isinstance(arrays, str) or not arrays:
        given = describe(arrays)
        raise ShapeError(complaint("arrays", "be a sequence of at least one array", given))
    backend = backend_of(*arrays, argument="arrays")
    if axes is None:
        axes = _OWN.get(max(a.ndim for a in arrays), "lijr")
    own = "lijr" if "j" in axes else "lir"
    order, tl = _permutation(axes, own), backend.tl
    back = [order.index(letter) for letter in own]
    full = (tl.reshape(a, _with_ends(a, k, len(arrays), order)) for k, a in enumerate(arrays))
    cores = [a if axes == own or a.ndim != len(own) else tl.transpose(a, back) for a in full]
    return _made(cores, own, rows, cols)


def to_tensorly(network: MPO | TensorTrain) -> Any:
    """Return TensorLy's ``TTMatrix`` of an MPO or ``TTTensor`` of a tensor train.

    Parameters
    ----------
    network : MPO or TensorTrain
        What to convert; the cores are used as they are, without a copy.

    Returns
    -------
    tensorly.tt_matrix.TTMatrix or tensorly.tt_tensor.TTTensor
        To compute with it, TensorLy's backend must be that of the cores' library.

    Raises
    ------
    ArrayTypeError
        If ``network`` is no MPO or TensorTrain.

    Examples
    --------
    >>> to_tensorly(MPO([np.ones((1, 2, 3, 1))])).shape
    (2, 3)
    """
    cores = list(_network(network).cores)
    matrix, tensor = tensorly_chains()
    return matrix(cores) if cores[0].ndim == 4 else tensor(cores)


def from_tensorly(
    source: Any, *, rows: int | None = None, cols: int | None = None
) -> MPO | TensorTrain:
    """Return the network of TensorLy's ``TTMatrix`` (an MPO) or ``TTTensor`` (a tensor train).

    Parameters
    ----------
    source : tensorly.tt_matrix.TTMatrix or tensorly.tt_tensor.TTTensor
        Its factors become the cores: numpy ones are copied, others used as they are.
    rows, cols : int, optional
        True size of a zero-padded matrix.

    Returns
    -------
    MPO or TensorTrain
        Without a certificate: who made the factors is not known.

    Raises
    ------
    ArrayTypeError
        If ``source`` is neither.
    ShapeError, BondError, DTypeError, NonFiniteError
        If the factors form no chain of finite numbers.

    Examples
    --------
    >>> from_tensorly(to_tensorly(MPO([np.ones((1, 2, 3, 1))]))).shape
    (2, 3)
    """
    matrix, tensor = tensorly_chains()
    if not isinstance(source, matrix | tensor):
        expected = "be a TTMatrix or a TTTensor"
        raise ArrayTypeError(complaint("source", expected, describe(source)))
    own = "lijr" if isinstance(source, matrix) else "lir"
    factors: list[Array] = list(cast(Any, source).factors)
    return _made(factors, own, rows, cols)


def to_quimb(network: MPO | TensorTrain, **options: Any) -> Any:
    """Return quimb's ``MatrixProductOperator`` of an MPO or ``MatrixProductState`` of a train.

    Parameters
    ----------
    network : MPO or TensorTrain
        What to convert. Rows become upper indices ("k0", ...), columns lower ones ("b0", ...).
    **options
        Passed on to quimb's class, such as ``upper_ind_id`` and ``tags``.

    Returns
    -------
    quimb.tensor.MatrixProductOperator or quimb.tensor.MatrixProductState
        With open ends; ``to_dense()`` gives the (padded) matrix.

    Raises
    ------
    MissingLibraryError
        If quimb is not installed.
    ArrayTypeError
        If ``network`` is no MPO or TensorTrain.

    Examples
    --------
    >>> to_quimb(MPO([np.ones((1, 2, 3, 1))])).to_dense().shape
    (2, 3)
    """
    cores, quimb = _network(network).cores, _quimb()
    tl, n = backend_of(*cores).tl, len(cores)
    arrays = []
    for k, core in enumerate(cores):
        left, *site, right = (int(d) for d in core.shape)
        shape = [*([left] if k else []), *site, *([right] if k + 1 < n else [])]
        arrays.append(tl.reshape(core, shape))
    if cores[0].ndim == 4:
        return quimb.MatrixProductOperator(arrays, shape="ludr", **options)
    return quimb.MatrixProductState(arrays, shape="lpr", **options)


def from_quimb(
    source: Any, *, rows: int | None = None, cols: int | None = None
) -> MPO | TensorTrain:
    """Return the network of quimb's ``MatrixProductOperator`` or ``MatrixProductState``.

    Parameters
    ----------
    source : quimb.tensor.MatrixProductOperator or quimb.tensor.MatrixProductState
        With open ends. Several bonds between neighbours become one, none becomes one of size 1;
        a factor that quimb keeps as an exponent goes into the first core.
    rows, cols : int, optional
        True size of a zero-padded matrix.

    Returns
    -------
    MPO or TensorTrain
        Without a certificate.

    Raises
    ------
    MissingLibraryError
        If quimb is not installed.
    ArrayTypeError
        If ``source`` is neither.
    BondError
        If it is cyclic, or tensors that are no neighbours share a bond.
    ShapeError, DTypeError, NonFiniteError
        If the tensors form no chain of finite numbers.

    Examples
    --------
    >>> from_quimb(to_quimb(MPO([np.ones((1, 2, 3, 1))]))).shape
    (2, 3)
    """
    quimb = _quimb()
    kinds = (quimb.MatrixProductOperator, quimb.MatrixProductState)
    if not isinstance(source, kinds):
        expected = "be a MatrixProductOperator or a MatrixProductState"
        raise ArrayTypeError(complaint("source", expected, describe(source)))
    operator = isinstance(source, quimb.MatrixProductOperator)
    sites = list(source.sites)
    tensors = [source[site] for site in sites]
    _check_open(source, tensors)
    cores = []
    for k, (site, tensor) in enumerate(zip(sites, tensors, strict=True)):
        names = [source.upper_ind(site), source.lower_ind(site)] if operator else []
        names = names or [source.site_ind(site)]
        left = list(tensors[k - 1].bonds(tensor)) if k else []
        right = list(tensor.bonds(tensors[k + 1])) if k + 1 < len(tensors) else []
        cores.append(_core_of(tensor, left, names, right))
    if source.exponent:
        cores[0] = cores[0] * 10.0 ** float(source.exponent)
    return _made(cores, "lijr" if operator else "lir", rows, cols)


def _core_of(tensor: Any, left: list[str], names: list[str], right: list[str]) -> Array:
    order = [*left, *names, *right]
    if set(order) != set(tensor.inds):
        given = f"indices {list(tensor.inds)}"
        raise BondError(complaint("source", f"have open ends, with {order} at a site", given))
    sizes = {name: int(tensor.ind_size(name)) for name in order}
    shape = [_product(sizes, left), *(sizes[name] for name in names), _product(sizes, right)]
    data = tensor.transpose(*order).data
    return backend_of(data, argument="source").tl.reshape(data, shape)


def _product(sizes: dict[str, int], names: list[str]) -> int:
    total = 1
    for name in names:
        total *= sizes[name]
    return total


def _check_open(source: Any, tensors: list[Any]) -> None:
    if source.cyclic:
        remedy = "Chains here have open ends; a ring of bond b is a chain of bond b * b."
        raise BondError(complaint("source", "have open ends", "a cyclic network", remedy))
    if len(source.tensors) != len(tensors) or any(isinstance(t, tuple) for t in tensors):
        given = f"{counted(len(source.tensors), 'tensor')} at {counted(len(tensors), 'site')}"
        remedy = "Contract the tensors of a site first."
        raise ShapeError(complaint("source", "have one tensor at each site", given, remedy))


def _quimb() -> Any:
    try:
        return importlib.import_module("quimb.tensor")
    except ImportError as error:
        raise MissingLibraryError(
            f"quimb is needed for this and could not be imported ({error}). "
            "Install it: pip install quimb"
        ) from error


def _permutation(axes: str, own: str) -> list[str]:
    if not isinstance(cast(object, axes), str) or sorted(axes) != sorted(own):
        raise OptionError(complaint("axes", f"be a permutation of {own!r}", repr(axes)))
    return list(axes)


def _with_ends(a: Array, k: int, n: int, order: list[str]) -> tuple[int, ...]:
    """Return the shape of an array with the outer bonds that it may lack."""
    missing = [letter for letter, there in (("l", k == 0), ("r", k == n - 1)) if there]
    sizes = [int(d) for d in a.shape]
    if len(order) - len(sizes) != len(missing):
        return tuple(sizes)
    rest = iter(sizes)
    return tuple(1 if letter in missing else next(rest) for letter in order)


def _made(cores: list[Array], own: str, rows: int | None, cols: int | None) -> MPO | TensorTrain:
    if own == "lijr":
        return MPO(cores, rows, cols)
    if rows is not None or cols is not None:
        remedy = "A tensor train has no padding."
        raise OptionError(complaint("rows and cols", "be left out", (rows, cols), remedy))
    return TensorTrain(cores)


def _network(network: MPO | TensorTrain) -> MPO | TensorTrain:
    if isinstance(cast(object, network), MPO | TensorTrain):
        return network
    expected = "be an MPO or a TensorTrain"
    raise ArrayTypeError(complaint("network", expected, describe(network)))
