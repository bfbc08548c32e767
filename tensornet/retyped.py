"""A chain in another element type, and what that costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensornet.backend import DTYPES, backend_of, dtype_name, eps, traced
from tensornet.certificate import Certificate, MetricCertificate, restored
from tensornet.cores import relative_distance
from tensornet.errors import DTypeError, RangeError, complaint
from tensornet.storage import in_double
from tensornet.typing import Array, Cores


def wanted_type(dtype: Any, like: Array) -> str:
    """Return the name of an element type that cores like ``like`` can be converted to.

    Raises
    ------
    DTypeError
        If there is none of that name here or in the library, or imaginary parts would be lost.

    Examples
    --------
    >>> wanted_type(np.float32, np.ones(2)), wanted_type("complex64", np.ones(2))
    ('float32', 'complex64')
    """
    name = _name_of(dtype)
    if name not in DTYPES:
        raise DTypeError(complaint("dtype", f"be one of {', '.join(DTYPES)}", repr(dtype)))
    own = dtype_name(like)
    if own.startswith("complex") and not name.startswith("complex"):
        given = f"{name} with a {own} network"
        remedy = "Imaginary parts would be lost; take the real part of the matrix."
        raise DTypeError(complaint("dtype", "be complex", given, remedy))
    if name == "bfloat16" and backend_of(like).name == "numpy" and not _numpy_has(name):
        remedy = "Convert the cores to torch or jax first, or take float16."
        raise DTypeError(complaint("dtype", "be a type that numpy has", name, remedy))
    return name


def converted(cores: Cores, dtype: str) -> Cores:
    """Return the cores in an element type, each with memory of its own, within torch's graph.

    Raises
    ------
    RangeError
        If a core leaves the range of the type.
    """
    backend = backend_of(*cores)
    with np.errstate(over="ignore", under="ignore"):  # looked for below, and by lost
        made = tuple(backend.copy(backend.cast(core, dtype)) for core in cores)
    for k, core in enumerate(made):
        if not traced(core) and not backend.all_finite(core) and backend.all_finite(cores[k]):
            raise _beyond(k, dtype, "larger", "down")
    return made


def lost(made: Cores, cores: Cores) -> float | None:
    """Return what a conversion cost (relative), an estimate; None for cores that jax traces.

    Core by core the relative rounding error, added in squares, as for all that is stored.

    Raises
    ------
    RangeError
        If nothing is left of a core that was not zero.
    """
    if any(map(traced, (*made, *cores))):
        return None
    pairs = zip(in_double(made)[1], in_double(cores)[1], strict=True)
    parts = [relative_distance(small, wide) for small, wide in pairs]
    for k, part in enumerate(parts):
        if part >= 1.0:
            raise _beyond(k, dtype_name(made[k]), "smaller", "up")
    return math.hypot(*parts)


def kept(center: int | None, old: str, new: str) -> int | None:
    """Return where the norm sits after a conversion, if that is known to all digits of the type.

    Examples
    --------
    >>> kept(1, "float64", "float32"), kept(1, "float32", "float64")
    (1, None)
    """
    return center if eps(new) >= eps(old) else None


def certified(certificate: Certificate | None, storage_error: float | None) -> Certificate | None:
    """Return the certificate after a conversion, or None where the error is not known any more."""
    if storage_error == 0.0 or certificate is None:
        return certificate
    # What rounding costs in a metric cannot be told without the metric.
    if storage_error is None or isinstance(certificate, MetricCertificate):
        return None
    return restored(certificate, storage_error)


def wider(a: str, b: str) -> str:
    """Return the type that keeps more of both: a complex one first, then that of more digits."""
    return max((a, b), key=lambda name: (name.startswith("complex"), -eps(name)))


def _name_of(dtype: Any) -> str:
    text = str(dtype)
    if dtype is None or text in DTYPES:
        return text
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        return text


def _numpy_has(name: str) -> bool:
    # Another library may have brought the type into numpy.
    try:
        np.dtype(name)
    except TypeError:
        return False
    return True


def _beyond(k: int, dtype: str, entries: str, way: str) -> RangeError:
    remedy = f"Scale the network {way} first, or use a wider element type."
    return RangeError(
        complaint(f"core {k}", f"fit the range of {dtype}", f"{entries} entries", remedy)
    )
