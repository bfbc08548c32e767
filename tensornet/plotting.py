"""Pictures: spectra of bonds, error against parameters, cost against batch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensornet.accounting import account
from tensornet.backend import dtype_name
from tensornet.checks import array, describe, integers
from tensornet.decompose import mpo
from tensornet.errors import (
    ArrayTypeError,
    MissingLibraryError,
    OptionError,
    ShapeError,
    complaint,
)
from tensornet.network import MPO
from tensornet.search import search_shape
from tensornet.train import TensorTrain
from tensornet.typing import Array, ShapeSpec

_BONDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def plot_spectra(
    networks: MPO | TensorTrain | Mapping[str, MPO | TensorTrain], ax: Any = None
) -> Any:
    """Return a figure with the singular values across every bond, as shares of the norm.

    Parameters
    ----------
    networks : MPO, TensorTrain, or mapping of label to network
        Each bond of each network is a line.
    ax : matplotlib axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.figure.Figure
        The figure that holds the axes. Nothing is shown or registered anywhere.

    Raises
    ------
    ArrayTypeError
        If something is no network.
    ShapeError
        If no network has a bond.
    MissingLibraryError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tensornet as tn
    >>> figure = plot_spectra(tn.mpo(np.diag([4.0, 3.0, 2.0, 1.0]), 2))
    >>> figure.axes[0].get_yscale()
    'log'
    """
    named = networks if isinstance(networks, Mapping) else {"": networks}
    lines = [line for label, network in named.items() for line in _spectra(label, network)]
    if not lines:
        raise ShapeError(complaint("networks", "have at least one inner bond", "none"))
    ax = _axes(ax)
    for label, values in lines:
        ax.plot(np.arange(1, len(values) + 1), values, label=label)
    ax.set(xlabel="number of the singular value", ylabel="share of the norm")
    if any((values > 0.0).any() for _, values in lines):  # a zero matrix has no logarithms
        ax.set_yscale("log")
    ax.set_title("Singular values across the bonds")
    ax.legend()
    return ax.figure


def plot_error(
    W: Array, shape: ShapeSpec = None, *, ratios: Sequence[float] = (), ax: Any = None
) -> Any:
    """Return a figure with the error of a matrix against the parameters stored for it.

    Three lines: the truncated SVD by rank, an MPO by growing bonds, and the best of
    :func:`tensornet.search_shape` at the given ratios.

    Parameters
    ----------
    W : Array, shape (rows, cols)
        The matrix.
    shape : None, int or (row_dims, col_dims)
        Sites of the MPO, as in :func:`tensornet.mpo`.
    ratios : sequence of float
        Stored / dense at which shapes are searched; none without it, since it takes time.
    ax : matplotlib axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.figure.Figure
        The figure that holds the axes. Errors are relative, in the Frobenius norm.

    Raises
    ------
    ShapeError, ArrayTypeError, DTypeError, NonFiniteError
        If W is no matrix of finite numbers, or the shape does not fit it.
    OptionError
        If a ratio is not in (0, 1].
    MissingLibraryError
        If matplotlib is not installed.

    Examples
    --------
    >>> figure = plot_error(np.exp(-np.arange(64.0).reshape(8, 8)), 2)
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['SVD', 'MPO', 'dense']
    """
    _check_ratios(ratios)
    backend, matrix = array("W", W, 2)
    wide = "complex128" if dtype_name(matrix).startswith("complex") else "float64"
    host = np.asarray(backend.numbers(backend.cast(matrix, wide)))
    lines = {"SVD": _svd_line(host), "MPO": _mpo_line(host, shape)}
    if ratios:
        lines["search"] = _search_line(host, ratios)
    ax = _axes(ax)
    for label, (params, errors) in lines.items():
        ax.plot(params, errors, marker="o", markersize=3, label=label)
    ax.axvline(host.size, color="grey", linestyle=":", label="dense")
    ax.set(xlabel="stored parameters", ylabel="relative error", xscale="log")
    ax.set_title(f"Error against parameters, {host.shape[0]} x {host.shape[1]}")
    ax.legend()
    return ax.figure


def plot_cost(
    m: MPO, batches: Sequence[int] = (1, 4, 16, 64, 256, 1024, 4096), ax: Any = None
) -> Any:
    """Return a figure with the multiply-adds of a product against the number of vectors.

    Parameters
    ----------
    m : MPO
        The matrix.
    batches : sequence of int
        Numbers of vectors.
    ax : matplotlib axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.figure.Figure
        Lines for the product with the matrix, for each way with the cores ("dense" builds the
        matrix first, "left" and "right" apply core after core), and marks for the plan that
        ``m @ x`` follows, which may also join some cores first.

    Raises
    ------
    ArrayTypeError
        If ``m`` is no MPO.
    ShapeError
        If a batch is no positive integer, or there is none.
    MissingLibraryError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tensornet as tn
    >>> figure = plot_cost(tn.mpo(np.eye(16), 2), batches=(1, 8))
    >>> figure.axes[0].get_xscale()
    'log'
    """
    if not isinstance(m, MPO):
        raise ArrayTypeError(complaint("m", "be an MPO", describe(m)))
    counts = integers("batches", batches, ShapeError)
    if not counts:
        raise ShapeError(complaint("batches", "hold at least one number", "none"))
    ax = _axes(ax)
    costs = [account(m, batch=batch).multiply_adds for batch in counts]
    for name in costs[0]:
        style = {"matrix": "k:", "right": "--"}.get(name, "-")  # left may lie below right
        ax.plot(counts, [cost[name] for cost in costs], style, label=name)
    planned = [m.plan(batch).multiply_adds for batch in counts]
    ax.plot(counts, planned, "ko", markersize=4, label="plan of m @ x")
    ax.set(xlabel="number of vectors", ylabel="multiply-adds", xscale="log", yscale="log")
    ax.set_title(f"Cost of a product, bonds {list(m.bond_dims[1:-1])}")
    ax.legend()
    return ax.figure


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError(
            "matplotlib is needed for pictures. Install it: pip install matplotlib"
        ) from error
    return Figure(layout="constrained").add_subplot()


def _spectra(label: str, network: object) -> list[tuple[str, np.ndarray[Any, Any]]]:
    if not isinstance(network, MPO | TensorTrain):
        expected = "be an MPO, a TensorTrain or a mapping of labels to them"
        raise ArrayTypeError(complaint("networks", expected, describe(network)))
    norm = network.norm() or 1.0
    return [
        (f"{label} bond {bond}".strip(), network.singular_values(bond) / norm)
        for bond in range(1, network.n_sites)
    ]


def _svd_line(W: np.ndarray[Any, Any]) -> tuple[list[int], list[float]]:
    weights = np.linalg.svd(W, compute_uv=False) ** 2
    tails = np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]]) / (weights.sum() or 1.0)
    full = W.size // sum(W.shape)
    ranks = sorted({rank for rank in (*_BONDS, full) if rank <= full} or {1})
    return [rank * sum(W.shape) for rank in ranks], [float(tails[r]) ** 0.5 for r in ranks]


def _mpo_line(W: np.ndarray[Any, Any], shape: ShapeSpec) -> tuple[list[int], list[float]]:
    params: list[int] = []
    errors: list[float] = []
    for bond in _BONDS:
        m = mpo(W, shape, max_bond=bond)
        if params and m.n_params == params[-1]:
            break
        params.append(m.n_params)
        errors.append(0.0 if m.certificate is None else m.certificate.relative_error)
    return params, errors


def _search_line(W: np.ndarray[Any, Any], ratios: Sequence[float]) -> tuple[list[int], list[float]]:
    best = []
    for ratio in sorted(ratios):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the picture shows who wins
            best.append(search_shape(W, max_params=max(int(ratio * W.size), 1)).best)
    return [row.n_params for row in best], [row.relative_error for row in best]


def _check_ratios(ratios: Sequence[object]) -> None:
    for ratio in ratios:
        if not isinstance(ratio, int | float | np.floating) or not 0.0 < ratio <= 1.0:
            raise OptionError(complaint("ratios", "lie in (0, 1]", repr(ratio)))
