"""Checks at the door: every argument is examined before any work is done."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from tensornet.backend import Backend, backend_of, eps, library_of, traced, working
from tensornet.errors import (
    ArrayTypeError,
    BondError,
    NonFiniteError,
    OptionError,
    ShapeError,
    ToleranceError,
    complaint,
    counted,
)
from tensornet.typing import Array


def integer(argument: str, value: object, least: int, error: type[Exception]) -> int:
    """Return ``value`` as a Python integer of at least ``least``.

    Raises
    ------
    error
        If the value is no integer (floats, strings and booleans are none) or too small.

    Examples
    --------
    >>> integer("max_bond", np.int64(3), 1, ShapeError)
    3
    """
    kind = f"be an integer of at least {least}"
    if isinstance(value, bool | np.bool_):
        raise error(complaint(argument, kind, repr(bool(value))))
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(complaint(argument, kind, repr(value))) from None
    if number < least:
        raise error(complaint(argument, kind, number))
    return number


def integers(argument: str, values: object, error: type[Exception]) -> tuple[int, ...]:
    """Return a sequence of positive integers as a tuple.

    Raises
    ------
    error
        If it is no sequence or an entry is not a positive integer; the entry is named.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise error(complaint(argument, "be a sequence of integers", repr(values)))
    return tuple(integer(f"{argument}[{k}]", v, 1, error) for k, v in enumerate(values))


def one_cap(max_bond: object) -> None:
    """Raise BondError where a cap for every bond is a list of caps."""
    if isinstance(max_bond, str | bytes) or not isinstance(max_bond, Sequence | np.ndarray):
        return
    if isinstance(max_bond, np.ndarray) and max_bond.ndim == 0:
        return  # a number
    given = repr(max_bond) if len(max_bond) <= 8 else f"{len(max_bond)} values"
    remedy = "Caps of single bonds are given as bonds=."
    raise BondError(complaint("max_bond", "be one integer for every bond", given, remedy))


def choice(argument: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of the allowed words.

    Raises
    ------
    OptionError
        If it is not; the allowed words are listed.
    """
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(word) for word in allowed)
        raise OptionError(complaint(argument, f"be one of {listed}", repr(value)))
    return value


def tolerance(rtol: object, dtype: str, n_sites: int, solver: float = 0.0) -> float:
    """Return a relative tolerance as a float in (0, 1) that the element type can keep.

    ``solver`` is the relative error of the SVD itself.

    Raises
    ------
    ToleranceError
        If it is no number in (0, 1), or lies below what storing the cores costs by itself.
    """
    remedy = "It is the relative Frobenius error of the whole matrix; leave it out for exact."
    if isinstance(rtol, bool | np.bool_) or not isinstance(rtol, Real):
        raise ToleranceError(complaint("rtol", "be a number in (0, 1)", repr(rtol), remedy))
    value = float(rtol)
    if not 0.0 < value < 1.0:
        raise ToleranceError(complaint("rtol", "be a number in (0, 1)", value, remedy))
    floor = 2.0 * storage_error(dtype, n_sites) + 2.0 * solver
    if value < floor:
        remedy = (
            f"{counted(n_sites, 'core')} in {dtype} cannot come closer; leave rtol out for exact."
        )
        raise ToleranceError(
            complaint("rtol", f"be at least {upward(floor)}", f"{value:g}", remedy)
        )
    return value


def upward(value: float) -> str:
    """Return a positive number in two digits, none of which makes it smaller.

    Examples
    --------
    >>> upward(0.01203), upward(0.25), upward(3.61e-5)
    ('0.013', '0.25', '3.7e-05')
    """
    text = f"{value:.2g}"
    if float(text) < value:
        text = f"{float(text) + 10.0 ** (math.floor(math.log10(value)) - 1):.2g}"
    return text


def fraction(argument: str, value: object) -> float:
    """Return a number stored / dense as a float in (0, 1].

    Raises
    ------
    OptionError
        If it is no number, or out of range.

    Examples
    --------
    >>> fraction("ratio", 1)
    1.0
    """
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    # Compared as it is: a large integer is no float.
    if not number or not 0.0 < value <= 1.0:  # type: ignore[operator]
        remedy = "It is stored / dense."
        raise OptionError(complaint(argument, "be a number in (0, 1]", repr(value), remedy))
    return float(value)  # type: ignore[arg-type]


def positives(argument: str, values: object, names: Sequence[str]) -> list[float]:
    """Return one positive float for each name, from a sequence or array of any library.

    Raises
    ------
    OptionError
        If they are no flat sequence, of another length, or one is no positive number; it is named.

    Examples
    --------
    >>> positives("weights", np.array([1, 2]), ["a", "b"])
    [1.0, 2.0]
    """
    values = _values(argument, values)
    if isinstance(values, Mapping | str | bytes) or not isinstance(values, Iterable):
        expected = f"be {counted(len(names), 'positive number')}, one for each matrix"
        raise OptionError(complaint(argument, expected, repr(values)))
    given = list(values)
    if len(given) != len(names):
        expected = f"have {counted(len(names), 'value')}, one for each matrix"
        raise OptionError(complaint(argument, expected, len(given)))
    # What stands in a sequence has its place for a name.
    keys = [name if name == str(k) else repr(name) for k, name in enumerate(names)]
    return [_positive(f"{argument}[{key}]", value) for key, value in zip(keys, given, strict=True)]


def _values(argument: str, given: Any) -> Any:
    """Return an array's values as Python's own; anything else as it is."""
    if not hasattr(given, "tolist"):
        return given
    try:
        return given.tolist()
    except (RuntimeError, TypeError):  # on torch's meta device, sparse, or traced by jax
        remedy = "Pass plain numbers."
        raise OptionError(complaint(argument, "hold values", describe(given), remedy)) from None


def _positive(argument: str, value: Any) -> float:
    if getattr(value, "shape", None) == ():
        # Python's own number: float32 is not compared with what only float64 holds.
        value = _values(argument, value)
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    # Compared as it is: a large integer is no float.
    if not number or not 0.0 < value <= sys.float_info.max:
        large = isinstance(value, int) and abs(value) >= 1e18
        given = "a larger one" if large else repr(value)
        raise OptionError(complaint(argument, "be a positive number", given))
    return float(value)


def storage_error(dtype: str, n_sites: int) -> float:
    """Return about what storing the cores costs (relative).

    Rounding to nearest errs by eps / sqrt(12) at most in the mean; n cores add in squares.
    """
    return eps(dtype) * math.sqrt(n_sites / 12.0)


def array(
    argument: str, value: object, n_dims: int | None = None, remedy: str = ""
) -> tuple[Backend, Array]:
    """Return where an array is computed on and the array there, detached from any graph.

    Parameters
    ----------
    argument : str
        Name of the argument, for messages.
    value : object
        What the user passed.
    n_dims : int, optional
        The number of dimensions it must have.
    remedy : str
        What to do where it has another.

    Raises
    ------
    ArrayTypeError
        If it is no array, or has no data (torch's meta device).
    DTypeError
        If its element type is not supported.
    ShapeError
        If the number of dimensions differs or a dimension is empty.
    NonFiniteError
        If an entry is NaN or infinite; says how many and where the first one is.
    """
    a: Array = value
    backend = backend_of(a, argument=argument)
    shape = tuple(int(d) for d in a.shape)
    if n_dims is not None and len(shape) != n_dims:
        given = f"shape {shape} with {len(shape)}"
        raise ShapeError(complaint(argument, f"have {n_dims} dimensions", given, remedy))
    if 0 in shape or not shape:
        raise ShapeError(complaint(argument, "have at least one element", f"shape {shape}"))
    if backend.place(a) == "meta":
        raise ArrayTypeError(complaint(argument, "have data", "a tensor on the meta device"))
    if traced(a):
        given = "an array that jax is tracing (in jit, grad or vmap)"
        remedy = "Decompose outside of the traced function."
        raise ArrayTypeError(complaint(argument, "have values", given, remedy))
    finite(argument, a, backend)
    return working(_plain(a, backend), backend)


def _plain(a: Array, backend: Backend) -> Array:
    if backend.name != "numpy":
        return a.detach() if backend.name == "pytorch" else a
    plain = np.asarray(a)
    # Byte order is how a file was written, not what the numbers are.
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))


def finite(argument: str, a: Array, backend: Backend) -> None:
    """Raise NonFiniteError if an entry is NaN or infinite."""
    if backend.all_finite(a):
        return
    wide = backend.cast(_plain(a, backend), "complex128")
    bad = np.argwhere(~np.isfinite(backend.numbers(wide)))
    first = tuple(int(i) for i in bad[0])
    raise NonFiniteError(
        complaint(
            argument,
            "be finite",
            f"{len(bad)} non-finite value{'s' if len(bad) > 1 else ''}, the first at index {first}",
            "Find where NaN or infinity entered.",
        )
    )


def alike(a: object, b: Array) -> bool:
    """Return whether an array is certainly of the library, device and element type of another.

    Quickly, for arrays that go through at every step; others may be alike too.

    Examples
    --------
    >>> alike(np.zeros(2), np.ones(3)), alike(np.zeros(2), np.ones(3, dtype=int))
    (True, False)
    """
    if type(a) is np.ndarray:
        return type(b) is np.ndarray and a.dtype == b.dtype
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return bool(a.dtype == b.dtype and a.device == b.device and a.layout == torch.strided)


def same_kind(argument: str, a: Array, reference: Array, backend: Backend) -> None:
    """Raise unless ``a`` has the library, element type and device of ``reference``."""
    if library_of(a) != library_of(reference):
        given = f"{library_of(a)} with a {library_of(reference)} network"
        raise ArrayTypeError(complaint(argument, "be of the network's library", given))
    if not (traced(a) or traced(reference)) and backend.place(a) != backend.place(reference):
        given = f"{backend.place(a)} with a network on {backend.place(reference)}"
        raise ArrayTypeError(complaint(argument, "be on the network's device", given))


def describe(value: Any) -> str:
    """Return a short text for a value of unknown type, for messages."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
