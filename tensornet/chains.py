"""What both value classes do with a chain of cores: spectra, gauges, rounding."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, at_home, dtype_name
from tensornet.bonds import requested_bonds
from tensornet.canonical import bond_spectrum, move_center
from tensornet.certificate import Certificate, magnified, raised
from tensornet.chain_grams import Gathered, gathered
from tensornet.checks import integer, one_cap, upward
from tensornet.conditioning import CANCELLED
from tensornet.contract.chain import fuse
from tensornet.errors import OptionError, ShapeError, ToleranceWarning, complaint
from tensornet.exponents import centered, gathered_first, near_one, shares
from tensornet.fitting import ChainSource, allowance, fitted, one_budget
from tensornet.limits import DOUBLE, certify, make_limits
from tensornet.storage import in_double, narrowed, weight
from tensornet.typing import Bonds, Cores

# More noise than this (relative), and a network is taken for zero.
_NOTHING_LEFT = 0.5


class Cutting(NamedTuple):
    """What the user asked of a rounding."""

    max_bond: int | None = None
    bonds: Bonds = None
    rtol: float | None = None
    max_params: int | None = None
    ratio: float | None = None


class Moved(NamedTuple):
    """Cores in their own element type, where the norm sits, and what storing them cost."""

    cores: Cores
    center: int | None
    storage_error: float


class Rounded(NamedTuple):
    """Cores in their own element type, where the norm sits, and the certificate."""

    cores: Cores
    center: int | None
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
    backend, wide, exponent = _centered(cores, center, bond - 1)
    return raised(bond_spectrum(wide, bond - 1, bond, backend), exponent)


def moved(cores: Cores, center: int | None, site: int) -> Moved:
    """Return fused cores with the norm in core ``site``, as far as that can hold it."""
    site = integer("site", site, 0, ShapeError)
    if site >= len(cores):
        raise ShapeError(complaint("site", f"be 0 to {len(cores) - 1}", site))
    backend, wide, exponent = _centered(cores, center, site)
    stored, at, storage = _stored(wide, site, exponent, dtype_name(cores[0]), backend)
    return Moved(at_home(stored, cores[0]), at, storage)


def rounded(
    cores: Cores,
    center: int | None,
    limits: Cutting,
    dense: int,
    true_norm: tuple[float, int] | None = None,
) -> Rounded:
    """Return fused cores cut to smaller bonds, with the norm in the central core.

    ``dense`` is the number of elements of the matrix or tensor. Errors are relative to
    ``true_norm``, mantissa and exponent, where that is given: the norm of a matrix without its
    padding. Where one core cannot hold the norm, all do together.
    """
    dtype, n = dtype_name(cores[0]), len(cores)
    if isinstance(limits.bonds, str):
        raise OptionError(complaint("bonds", "be numbers when rounding", repr(limits.bonds)))
    one_budget(limits.rtol, limits.max_params)
    sites = tuple(math.prod(int(d) for d in core.shape[1:-1]) for core in cores)
    most = allowance(limits.max_params, limits.ratio, limits.rtol, dense, sites)
    one_cap(limits.max_bond)
    caps = requested_bonds(sites, limits.max_bond, limits.bonds)
    backend, ready = _ready(cores, center)
    total = ready.weight
    if true_norm is not None:
        total = math.ldexp(true_norm[0], true_norm[1] - ready.exponent) ** 2
    rules = make_limits(caps, limits.rtol, dtype, total, forced=False)
    _warn_of_cancelling(limits.rtol, ready.cancelled)
    rules = replace(rules, noise=max(rules.noise, ready.cancelled**2 * total))
    source = ChainSource(ready.cores, ready.center, total, backend, ready.found)
    swept = fitted(source, rules, limits.rtol, most)
    middle = move_center(swept.cores, swept.center, n // 2, backend)
    stored, at, storage = _stored(middle, n // 2, ready.exponent, dtype, backend)
    # What is left of parts that cancelled is known no better than those were.
    storage = math.hypot(storage, ready.cancelled)
    certificate = magnified(certify(swept, total, storage, 1.0), ready.exponent)
    return Rounded(at_home(stored, cores[0]), at, certificate)


def _warn_of_cancelling(rtol: float | None, cancelled: float) -> None:
    """Say so where parts of a network cancel so far that what is left has a larger error."""
    if rtol is not None and rtol < cancelled:
        text = (
            f"rtol={rtol:g} is less than the error of about {upward(cancelled)} that is left where "
            "the parts of this network cancel, whatever is kept."
        )
        warnings.warn(text, ToleranceWarning, stacklevel=4)


def _stored(
    cores: Cores, site: int, exponent: int, dtype: str, backend: Backend
) -> tuple[Cores, int | None, float]:
    """Return cores times a power of two in an element type, where the norm sits, and the error."""
    cores, power = near_one(cores, site, backend)
    parts = shares(cores[site], site, len(cores), exponent + power, dtype, backend)
    stored, storage = narrowed(cores, dtype, backend, [math.ldexp(1.0, e) for e in parts])
    return stored, None if any(e for k, e in enumerate(parts) if k != site) else site, storage


class _Ready(NamedTuple):
    """A chain to be cut, divided by two to the ``exponent``, and what is known of it."""

    cores: Cores
    center: int | None
    exponent: int
    weight: float
    cancelled: float
    found: Gathered | None


def _ready(cores: Cores, center: int | None) -> tuple[Backend, _Ready]:
    """Return a chain in double precision, gathered in one core where its Gram matrices fail."""
    backend, wide = widened(cores)
    found = None if dtype_name(cores[0]) in DOUBLE else gathered(wide, backend)
    if found is not None and found.growth <= CANCELLED:
        return backend, _Ready(found.cores, found.meeting, 0, found.weight, 0.0, found)
    site = 0 if center is None else center
    backend, wide, exponent, cancelled = _gathered(cores, center, site)
    return backend, _Ready(wide, site, exponent, weight(wide[site], backend), cancelled, None)


def _gathered(cores: Cores, center: int | None, site: int) -> tuple[Backend, Cores, int, float]:
    """Return fused cores with the norm in core ``site``, near one, its exponent, and its noise.

    Where terms cancel, as in a difference of two equal networks, what remains may be nothing
    but their rounding errors: then a zero network comes back.
    """
    backend, wide = widened(cores)
    if trusted(cores, center) is not None or site != 0:
        return (*_centered(cores, center, site), 0.0)
    wide, exponent, share = gathered_first(wide, backend)
    if share > _NOTHING_LEFT:
        wide = tuple(backend.zeros((1, int(c.shape[1]), 1), c) for c in wide)
        return backend, wide, exponent, 0.0
    return backend, wide, exponent, share


def _centered(cores: Cores, center: int | None, site: int) -> tuple[Backend, Cores, int]:
    """Return fused cores in double precision with the norm, near one, in core ``site``."""
    backend, wide = widened(cores)
    return (backend, *centered(wide, trusted(cores, center), site, backend))
