"""What both value classes do with a chain of cores: norm, spectra, gauges, rounding."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, at_home, dtype_name
from tensornet.bonds import requested_bonds
from tensornet.canonical import bond_spectrum, move_center, move_right
from tensornet.certificate import Certificate
from tensornet.checks import integer
from tensornet.contract.chain import fuse
from tensornet.errors import OptionError, ShapeError, ToleranceError, complaint
from tensornet.limits import certify, make_limits, within
from tensornet.rounding import round_cores
from tensornet.storage import in_double, narrowed, scaled, weight
from tensornet.typing import Bonds, Cores


class Moved(NamedTuple):
    """Cores in their own element type, and what storing them cost (relative)."""

    cores: Cores
    storage_error: float


class Rounded(NamedTuple):
    """Cores in their own element type, where the norm sits, and the certificate."""

    cores: Cores
    center: int
    certificate: Certificate


def trusted(cores: Cores, center: int | None) -> int | None:
    """Return the center where the cores are isometric to better than single precision.

    Rounded to half precision, isometric cores are so to three digits only: fine for training,
    not for computing with.
    """
    return None if dtype_name(cores[0]) in ("float16", "bfloat16") else center


def widened(cores: Cores) -> tuple[Backend, Cores]:
    """Return the backend, and the cores fused to three axes, detached, in double precision."""
    backend, wide = in_double(cores)
    return backend, tuple(fuse(c, backend) if c.ndim == 4 else c for c in wide)


def spectrum(cores: Cores, center: int | None, bond: int) -> np.ndarray[Any, Any]:
    """Return the singular values of a chain across an inner bond."""
    backend, wide = _centered(cores, center, bond - 1)
    return bond_spectrum(wide, bond - 1, bond, backend)


def norm(cores: Cores, center: int | None) -> float:
    """Return the Frobenius norm of a chain; infinity where it exceeds the range of numbers.

    The sweep keeps its factors near one and their binary exponents apart, so that only the
    result can overflow, however long the chain is.
    """
    backend, wide = widened(cores)
    center = trusted(cores, center)
    if center is not None:
        wide = (wide[center],)
    exponent = 0
    for k in range(len(wide)):
        scale, near_one = scaled(wide[k], backend)
        exponent += math.frexp(scale)[1] - 1
        wide = (*wide[:k], near_one, *wide[k + 1 :])
        if k + 1 < len(wide):
            wide = move_right(wide, k, backend)
    try:
        return math.ldexp(math.sqrt(weight(wide[-1], backend)), exponent)
    except OverflowError:
        return math.inf


def moved(cores: Cores, center: int | None, site: int) -> Moved:
    """Return fused cores with the norm in core ``site``."""
    site = integer("site", site, 0, ShapeError)
    if site >= len(cores):
        raise ShapeError(complaint("site", f"be 0 to {len(cores) - 1}", site))
    backend, wide = _centered(cores, center, site)
    stored, storage = narrowed(wide, dtype_name(cores[0]), backend)
    return Moved(at_home(stored, cores[0]), storage)


def rounded(
    cores: Cores,
    center: int | None,
    limits: tuple[object, Bonds, object],
    true_norm: float | None = None,
) -> Rounded:
    """Return fused cores cut to smaller bonds, with the norm in the central core.

    ``limits`` are max_bond, bonds and rtol. Errors are relative to ``true_norm`` where that is
    given: the norm of a matrix without its padding.
    """
    max_bond, bonds, rtol = limits
    dtype, n = dtype_name(cores[0]), len(cores)
    if isinstance(bonds, str):
        raise OptionError(complaint("bonds", "be numbers when rounding", repr(bonds)))
    site = 0 if center is None else center
    backend, wide = _centered(cores, center, site)
    caps = requested_bonds(tuple(int(c.shape[1]) for c in wide), max_bond, bonds)
    scale, near_one = scaled(wide[site], backend)
    wide = (*wide[:site], near_one, *wide[site + 1 :])
    total = weight(near_one, backend) if true_norm is None else (true_norm / scale) ** 2
    rules = make_limits(caps, rtol, dtype, total, forced=False)
    swept = within(rules, lambda rule: round_cores(wide, site, rule, backend), rtol, total)
    middle = move_center(swept.cores, swept.center, n // 2, backend)
    factors = [scale if k == n // 2 else 1.0 for k in range(n)]
    stored, storage = narrowed(middle, dtype, backend, factors)
    return Rounded(at_home(stored, cores[0]), n // 2, certify(swept, total, storage, scale))


def _centered(cores: Cores, center: int | None, site: int) -> tuple[Backend, Cores]:
    """Return fused cores in double precision with the norm in core ``site``."""
    backend, wide = widened(cores)
    with np.errstate(over="ignore", invalid="ignore"):  # looked for in the next line
        wide = move_center(wide, trusted(cores, center), site, backend)
    if not backend.all_finite(wide[site]):
        expected = "have a norm within the range of double precision"
        remedy = "Scale its cores down first."
        raise ToleranceError(complaint("the network", expected, "a larger one", remedy))
    return backend, wide
