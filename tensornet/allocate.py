"""One budget for many matrices: each gets the bonds that serve the whole best.

Which size each matrix gets is a multiple-choice knapsack over what all its chains cost and discard.
Dynamic programming solves it: fronts are merged two by two (Nemhauser and Ullmann 1969), with what
a price for error rules out left out of them (Everett 1963). The result is the best of all choices
while the fronts stay below some thousands of points, else it is never worse than a walk along the
convex hulls and than one cap for all bonds, each filled up bond by bond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from tensornet.allocation import Allocation, Allotment, root
from tensornet.backend import where_shared
from tensornet.checks import array, choice, describe, integer, positives, tolerance
from tensornet.errors import OptionError, ShapeError, complaint
from tensornet.fitting import below_ratio, ratio_budget
from tensornet.fronts import ONE, SHARE, Choice, Copies, Front, front_of, front_of_mpo, mean_front
from tensornet.layout import matrix_layout
from tensornet.network import MPO
from tensornet.shares import Shares, least_params, within_budget, within_error
from tensornet.threads import side_by_side
from tensornet.typing import Array, ShapeSpec

_Named = list[tuple[str, Any]]
_LEAST = 1e-200


def allocate(
    Ws: Mapping[str, Array | MPO] | Sequence[Array | MPO],
    *,
    max_params: int | None = None,
    ratio: float | None = None,
    rtol: float | None = None,
    shape: ShapeSpec | Mapping[str, ShapeSpec] = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    keep_dense: bool = True,
    measure: str = "relative",
    copies: Mapping[str, tuple[int, int, int]] | None = None,
) -> Allocation:
    """Return bonds for many matrices that serve one budget, or one tolerance, best.

    Only spectra are computed and kept. A mapping other than a dict may load its matrices when
    they are asked for, one at a time; those of a dict or a list are looked at side by side, on
    as many threads as the linear algebra library has. :func:`mpo` then makes the networks::

        for a in allocation:
            network = Ws[a.name] if a.dense else tn.mpo(Ws[a.name], a.layout, bonds=a.bonds)

    Parameters
    ----------
    Ws : mapping of str to Array, or sequence of Array, shape (rows, cols) each
        Matrices of any sizes, libraries and element types. An :class:`MPO` stands for the matrix
        it represents: its spectra are then had from its cores, and its bonds are the largest it
        can get. An array (k, rows, cols) stands for matrices that get the same bonds, by the
        means of their shares.
    max_params : int, optional
        Most elements that all networks, and the matrices that stay as they are, may have
        together. The ``error`` is the least within it, as the spectra of the uncut matrices tell
        it; see the notes. No bond of the result could be raised by one within the budget,
        unless that would discard no less.
    ratio : float, optional
        The budget as a share of the elements of all matrices, in (0, 1].
    rtol : float, optional
        Largest ``error`` of the allocation, as defined below; it is met with the fewest
        parameters; see the notes. Exactly one of the three must be given.
    shape : None, int, (row_dims, col_dims), MatrixLayout or mapping of str to these
        As in :func:`mpo`, for all matrices or by name. Not for an MPO.
    weights : mapping of str to float, or sequence of float, optional
        Positive weights of the squared errors; 1 by default.
    keep_dense : bool
        Whether a matrix may stay as it is where that serves better.
    measure : {"relative", "absolute", "retained"}
        Whose squares are added up. "relative": each matrix' error relative to its own norm.
        "absolute": errors as they are, so that a matrix of small norm may be given up; in a
        neural network that can ruin everything that comes after. "retained": the shares of the
        squares that bonds keep are multiplied, over all bonds of all matrices, so that no matrix
        is given up for others; the ``error`` is the root of one minus their weighted geometric
        mean. Where cuts are deep this is nearer to what a chain of layers loses.

    copies : mapping of str to (int, int, int), optional
        How many side cores, central cores and dense matrices are stored for a name; 1 of each by
        default. (k, 1, k) counts k matrices that share their central core.

    Returns
    -------
    Allocation
        With a bound on every error, and on the whole: a sum over the bonds, where both bonds of a
        site of 1, which are one cut, count once. Bonds and bounds for an MPO are those of its
        ``round``. They are those of ``mpo`` of its matrix too, unless it is padded and was cut
        before: it then has entries in its padding, which belong to what ``round`` cuts, where
        ``mpo`` begins with zeros.

    Raises
    ------
    OptionError
        If there are no matrices or not exactly one of the limits, the budget is below what the
        smallest networks need (which is stated), or weights or copies are not positive or of
        other names.
    ToleranceError
        If ``rtol`` is not in (0, 1).
    ShapeError, NonFiniteError, ArrayTypeError, DTypeError
        As in :func:`mpo`; the matrix is named.

    Notes
    -----
    Choices are merged by dynamic programming over bonds and over matrices, which is exact. Where
    more than some thousands of sums are of use, as with a hundred large matrices, those nearest
    to the best price in each box of parameters stay. With 144 matrices of 768 x 3072 in five
    sites the squared error was then within 0.002 % of a lower bound.

    References
    ----------
    Everett 1963, theorem 1. Nemhauser and Ullmann 1969.

    Examples
    --------
    >>> i = np.arange(16.0)
    >>> smooth, rough = 1 / (1 + i[:, None] + i), np.cos(np.outer(i, i))
    >>> print(allocate({"smooth": smooth, "rough": rough}, max_params=200, shape=2))
    matrix    shape    bonds  parameters   ratio  error at most
    -----------------------------------------------------------
    smooth    16 x 16  1              32  0.1250         0.2122
    rough     16 x 16  5             160  0.6250         0.5165
    -----------------------------------------------------------
    together                         192  0.3750         0.3948
    """
    choice("measure", measure, ("relative", "absolute", "retained"))
    if not isinstance(keep_dense, bool):
        raise OptionError(complaint("keep_dense", "be True or False", repr(keep_dense)))
    _one_limit(max_params=max_params, ratio=ratio, rtol=rtol)
    names = _names(Ws)
    factors = _weights(weights, names)
    target = 1.0 if rtol is None else tolerance(rtol, "float64", 1)
    share = min(SHARE, target**2 / 10)
    stored = _copies(copies, names)
    made = _fronts(names, Ws, shape, share)
    fronts = [f.copied(stored.get(name, ONE)) for name, f in zip(names, made, strict=True)]
    scaled, products = _scaled(fronts, factors, measure), measure == "retained"
    counted = [front.retained() for front in fronts] if products else fronts
    if rtol is not None:
        allowed = -math.log1p(-(target**2)) if products else target**2
        found = within_error(counted, scaled, allowed, keep_dense=keep_dense)
    else:
        max_params = _budget(max_params, ratio, fronts, keep_dense=keep_dense)
        found = within_budget(counted, scaled, max_params, keep_dense=keep_dense)
    error = -math.expm1(-found.error) if products else found.error
    rows = _allotments(names, fronts, factors, found)
    return Allocation(rows, measure, max_params, rtol, root(error))


def _allotments(
    names: Sequence[str], fronts: Sequence[Front], weights: Sequence[float], found: Shares
) -> tuple[Allotment, ...]:
    return tuple(
        Allotment(name, front.layout, c.bonds, c.params, _bound(front, c), weight, front.copies)
        for name, front, c, weight in zip(names, fronts, found.choices, weights, strict=True)
    )


def _bound(front: Front, made: Choice) -> float:
    """Return the largest relative error of a choice."""
    return 0.0 if made.bonds is None else root(front.choice(made.bonds).loss)


def _one_limit(**limits: object) -> None:
    given = [name for name, value in limits.items() if value is not None]
    if len(given) != 1:
        text = " and ".join(given) or "none of them"
        expected = "be given, or ratio, or rtol, exactly one of the three"
        raise OptionError(complaint("max_params", expected, text))


def _names(Ws: object) -> list[str]:
    if isinstance(Ws, Mapping):
        names = list(Ws)
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong:
            raise OptionError(complaint("Ws", "have names as keys", repr(wrong[0])))
    elif isinstance(Ws, Sequence) and not isinstance(Ws, str):
        names = [str(k) for k in range(len(Ws))]
    elif getattr(Ws, "ndim", 0) == 3:
        names = [str(k) for k in range(int(Ws.shape[0]))]  # type: ignore[attr-defined]
    else:
        expected = "be a mapping or a sequence of matrices"
        raise OptionError(complaint("Ws", expected, describe(Ws)))
    if not names:
        raise OptionError(complaint("Ws", "hold at least one matrix", "none"))
    return names


def _weights(weights: Any, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        if unknown:
            remedy = "Their names are those of Ws."
            raise OptionError(complaint("weights", "name matrices", repr(unknown[0]), remedy))
        weights = [weights.get(name, 1.0) for name in names]
    elif isinstance(weights, Real):
        weights = [weights]
    return positives("weights", weights, names)


def _fronts(names: Sequence[str], Ws: Any, shape: Any, share: float) -> list[Front]:
    """Return the fronts of all matrices, on several threads where all are in memory already."""

    def work(name: str) -> Front:
        return _front(name, Ws, shape, share)

    # What only looks like these may load its matrices when they are asked for.
    if type(Ws) not in (dict, list, tuple):
        return [work(name) for name in names]
    held = list(Ws.values() if isinstance(Ws, dict) else Ws)
    if all(_on_the_host(W) for W in held):
        return side_by_side(work, names, size=max(math.prod(W.shape) for W in held))
    return [work(name) for name in names]


def _on_the_host(W: Any) -> bool:
    shape = getattr(W, "shape", None)
    known = isinstance(shape, tuple) and all(isinstance(d, int) for d in shape)
    return known and "cpu" in str(getattr(W, "device", "cpu")).lower()


def _front(name: str, Ws: Any, shape: Any, share: float) -> Front:
    given = Ws[name] if isinstance(Ws, Mapping) else Ws[int(name)]
    own = shape.get(name) if isinstance(shape, Mapping) else shape
    if isinstance(given, MPO):
        if own is not None:
            expected = "be left out for an MPO, which has one"
            raise ShapeError(complaint("shape", expected, repr(own)))
        return front_of_mpo(given)
    several = getattr(given, "ndim", 2) == 3
    argument = f"Ws[{name!r}]" if isinstance(Ws, Mapping) else f"Ws[{name}]"
    backend, matrix = array(argument, given, 3 if several else 2)
    rows, cols = (int(d) for d in matrix.shape[-2:])
    layout = matrix_layout(rows, cols, own)
    matrix, backend = where_shared(matrix, backend)
    if not several:
        return front_of(matrix, layout, backend, share)
    return mean_front([front_of(one, layout, backend, share) for one in matrix])


def _copies(copies: Any, names: Sequence[str]) -> dict[str, Copies]:
    if copies is None:
        return {}
    if not isinstance(copies, Mapping):
        expected = "map names to numbers of side cores, central cores and matrices"
        raise OptionError(complaint("copies", expected, describe(copies)))
    found = {}
    for name, given in copies.items():
        if name not in names:
            raise OptionError(complaint("copies", "name matrices", repr(name)))
        numbers = tuple(given) if isinstance(given, Sequence) else ()
        if len(numbers) != 3 or not all(type(k) is int and k >= 1 for k in numbers):
            expected = "be three positive integers (side cores, central cores, matrices)"
            raise OptionError(complaint(f"copies[{name!r}]", expected, repr(given)))
        found[name] = (numbers[0], numbers[1], numbers[2])
    return found


def _scaled(fronts: Sequence[Front], weights: Sequence[float], measure: str) -> list[float]:
    """Return what a matrix' discarded share counts, so that all shares of 1 add up to 1."""
    # Only ratios of weights count, and their sum must not leave the range of numbers.
    most = max(weights)
    weights = [weight / most for weight in weights]
    if measure != "absolute":
        sizes = [
            weight if front.norm else 0.0 for front, weight in zip(fronts, weights, strict=True)
        ]
    else:
        largest = max(front.norm for front in fronts) or 1.0
        sizes = [w * (f.norm / largest) ** 2 for f, w in zip(fronts, weights, strict=True)]
    total = math.fsum(sizes) or 1.0
    # What counts less than any rounding of the others' errors would make prices infinite.
    return [size / total if size / total > _LEAST else 0.0 for size in sizes]


def _budget(max_params: object, ratio: object, fronts: Sequence[Front], *, keep_dense: bool) -> int:
    if max_params is not None:
        return integer("max_params", max_params, 1, OptionError)
    dense, smallest = sum(f.dense.params for f in fronts), least_params(fronts, keep_dense)
    if (number := ratio_budget(ratio, dense)) < smallest:
        raise below_ratio(ratio, smallest, dense)
    return number
