"""What both value classes do with their cores: validation, sealing, gauges, rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, backend_of, dtype_name, work_dtype
from tensornet.bonds import requested_bonds
from tensornet.canonical import bond_spectrum, move_center
from tensornet.certificate import Certificate
from tensornet.checks import array, describe, integer, same_kind
from tensornet.contract.chain import fuse
from tensornet.errors import (
    BondError,
    DTypeError,
    OptionError,
    ShapeError,
    ToleranceError,
    complaint,
)
from tensornet.layout import MatrixLayout
from tensornet.limits import certify, make_limits, within
from tensornet.rounding import round_cores
from tensornet.typing import Array, Bonds, Cores


class Rounded(NamedTuple):
    """Cores in their own element type, where the norm sits, and the certificate."""

    cores: Cores
    center: int | None
    certificate: Certificate


def validate(cores: object, n_dims: int) -> Cores:
    """Return cores as a tuple after checking that they form a chain."""
    if isinstance(cores, str) or not isinstance(cores, Sequence) or not cores:
        raise ShapeError(complaint("cores", "be a sequence of at least one array", describe(cores)))
    for k, core in enumerate(cores):
        backend, _ = array(f"cores[{k}]", core, n_dims)
        same_kind(f"cores[{k}]", core, cores[0], backend)
        if dtype_name(core) != dtype_name(cores[0]):
            expected = f"have the first core's element type {dtype_name(cores[0])}"
            raise DTypeError(complaint(f"cores[{k}]", expected, dtype_name(core)))
    _check_bonds(cores)
    return seal(tuple(_own_numpy(core) for core in cores))


def _own_numpy(core: Array) -> Array:
    return np.array(core, order="C", copy=True) if isinstance(core, np.ndarray) else core


def _check_bonds(cores: Sequence[Array]) -> None:
    for name, bond in (("first", cores[0].shape[0]), ("last", cores[-1].shape[-1])):
        if int(bond) != 1:
            raise BondError(complaint("cores", f"have 1 as {name} bond", int(bond)))
    for k in range(len(cores) - 1):
        left, right = int(cores[k].shape[-1]), int(cores[k + 1].shape[0])
        if left != right:
            given = f"{left} and {right} between cores {k} and {k + 1}"
            raise BondError(complaint("cores", "agree in the bond between neighbours", given))


def seal(cores: Cores) -> Cores:
    """Return the cores; numpy ones are made read-only."""
    for core in cores:
        if isinstance(core, np.ndarray):
            core.flags.writeable = False
    return cores


def trusted(cores: Cores, center: int | None) -> int | None:
    """Return the center where the cores are isometric to better than single precision.

    Rounded to half precision, isometric cores are so to three digits only: fine for training,
    not for computing with.
    """
    return None if dtype_name(cores[0]) in ("float16", "bfloat16") else center


def widened(cores: Cores) -> tuple[Backend, Cores]:
    """Return the backend, and the cores detached and in double precision."""
    backend = backend_of(*cores)
    work = work_dtype(dtype_name(cores[0]))
    plain = (c.detach() if backend.name == "pytorch" else c for c in cores)
    return backend, tuple(backend.cast(c, work) for c in plain)


def narrowed(
    cores: Cores, dtype: str, backend: Backend, factors: Sequence[float] = ()
) -> tuple[Cores, float]:
    """Return the cores in an element type, each owning its memory, and the storage error.

    Each core is multiplied by its factor, if factors are given. The error is relative and an
    estimate: core by core the relative rounding error, added in squares. It holds in every
    gauge because rounding errs by the same share of every entry.

    Raises
    ------
    ToleranceError
        If a core has entries beyond the range of the element type.
    """
    stored, squares = [], 0.0
    for k, (core, factor) in enumerate(zip(cores, factors or (1.0,) * len(cores), strict=True)):
        small = backend.cast(core * factor, dtype)
        if not backend.all_finite(small):
            remedy = "Use gauge='symmetric', which spreads the norm, or a wider element type."
            raise ToleranceError(
                complaint(f"core {k}", f"fit the range of {dtype}", "larger entries", remedy)
            )
        lost = divided(backend.cast(small, work_dtype(dtype)), factor) - core
        squares += weight(lost, backend) / (weight(core, backend) or 1.0)
        stored.append(backend.own(small))
    return tuple(stored), math.sqrt(squares)


def weight(a: Array, backend: Backend) -> float:
    """Return the squared Frobenius norm."""
    return float(backend.numbers(backend.tl.sum(backend.tl.abs(a) ** 2)))


def scaled(a: Array, backend: Backend) -> tuple[float, Array]:
    """Return a power of four and the array divided by it, so that its entries are near 1.

    This keeps squares of very large or small data inside the range of numbers; a power of
    four, and its square root, multiply without rounding.
    """
    largest = float(backend.numbers(backend.tl.max(backend.tl.abs(a))))
    if largest == 0.0:
        return 1.0, a
    scale = math.ldexp(1.0, 2 * ((math.frexp(largest)[1] - 1) // 2))
    return scale, divided(a, scale)


def divided(a: Array, power: float) -> Array:
    """Return an array divided by a power of two, however small that is.

    In two steps, because the inverse of a subnormal number overflows, and so does the division
    of complex numbers by one.
    """
    half = math.ldexp(1.0, math.frexp(power)[1] // 2)
    return a * (1.0 / half) * (half / power)


def spectrum(cores: Cores, center: int | None, bond: int) -> np.ndarray[Any, Any]:
    """Return the singular values of a chain across an inner bond."""
    backend, wide = widened(cores)
    flat = tuple(fuse(c, backend) if c.ndim == 4 else c for c in wide)
    return bond_spectrum(flat, trusted(cores, center), bond, backend)


def norm(cores: Cores, center: int | None) -> float:
    """Return the Frobenius norm of a chain."""
    backend, wide = widened(cores)
    flat = tuple(fuse(c, backend) if c.ndim == 4 else c for c in wide)
    site = 0 if center is None else center
    middle = move_center(flat, trusted(cores, center), site, backend)[site]
    scale, near_one = scaled(middle, backend)
    return scale * math.sqrt(weight(near_one, backend))


def fused(cores: Cores) -> Cores:
    """Return cores (left, i, j, right) as (left, i * j, right)."""
    backend = backend_of(*cores)
    return tuple(fuse(core, backend) for core in cores)


def split(cores: Cores, layout: MatrixLayout) -> Cores:
    """Return cores (left, i * j, right) as (left, i, j, right)."""
    tl = backend_of(*cores).tl
    return tuple(
        tl.reshape(core, (int(core.shape[0]), i, j, int(core.shape[2])))
        for core, i, j in zip(cores, layout.row_dims, layout.col_dims, strict=True)
    )


def transpose(cores: Cores) -> Cores:
    """Return cores (left, i, j, right) as (left, j, i, right), each owning its memory."""
    backend = backend_of(*cores)
    return tuple(backend.tl.transpose(core, (0, 2, 1, 3)) for core in cores)


def conjugate(cores: Cores) -> Cores:
    """Return the complex conjugates of the cores."""
    backend = backend_of(*cores)
    return tuple(backend.resolve(backend.conj(core)) for core in cores)


def operand(name: str, x: object, core: Array, size: int, axis: int) -> None:
    """Raise unless ``x`` is a vector or matrix of the network's kind and the right size."""
    backend, a = array(name, x)
    same_kind(name, a, core, backend)
    if dtype_name(a) != dtype_name(core):
        expected = f"have an operand of the network's element type {dtype_name(core)}"
        raise DTypeError(complaint(name, expected, dtype_name(a), "Convert one of the two."))
    if a.ndim not in (1, 2) or int(a.shape[axis]) != size:
        where = "first" if axis == 0 else "last"
        expected = f"have a vector or matrix whose {where} dimension is {size}"
        raise ShapeError(complaint(name, expected, f"shape {tuple(a.shape)}"))


def moved(cores: Cores, center: int | None, site: int) -> Cores:
    """Return fused cores with the norm in core ``site``."""
    site = integer("site", site, 0, ShapeError)
    if site >= len(cores):
        raise ShapeError(complaint("site", f"be 0 to {len(cores) - 1}", site))
    backend, wide = widened(cores)
    moved_cores = move_center(wide, trusted(cores, center), site, backend)
    return narrowed(moved_cores, dtype_name(cores[0]), backend)[0]


def rounded(
    cores: Cores, center: int | None, max_bond: object, bonds: Bonds, rtol: object
) -> Rounded:
    """Return fused cores cut to smaller bonds, with the norm in the central core."""
    backend, wide = widened(cores)
    dtype, n = dtype_name(cores[0]), len(cores)
    sites = tuple(int(c.shape[1]) for c in cores)
    if isinstance(bonds, str):
        raise OptionError(complaint("bonds", "be numbers when rounding", repr(bonds)))
    caps = requested_bonds(sites, max_bond, bonds)
    site = 0 if center is None else center
    wide = move_center(wide, trusted(cores, center), site, backend)
    scale, near_one = scaled(wide[site], backend)
    wide = (*wide[:site], near_one, *wide[site + 1 :])
    total = weight(near_one, backend)
    limits = make_limits(caps, rtol, dtype, total, forced=False)
    swept = within(limits, lambda rule: round_cores(wide, site, rule, backend), rtol, total)
    middle = move_center(swept.cores, swept.center, n // 2, backend)
    factors = [scale if k == n // 2 else 1.0 for k in range(n)]
    stored, storage = narrowed(middle, dtype, backend, factors)
    return Rounded(stored, n // 2, certify(swept, total, storage, scale))
