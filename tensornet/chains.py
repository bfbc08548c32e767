"""What both value classes do with a chain of cores: spectra, gauges, rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, at_home, dtype_name
from tensornet.bonds import requested_bonds
from tensornet.canonical import bond_spectrum, gather_first, move_center
from tensornet.certificate import Certificate
from tensornet.chain_grams import Gathered, gathered
from tensornet.checks import integer
from tensornet.contract.chain import fuse
from tensornet.errors import OptionError, ShapeError, ToleranceError, complaint
from tensornet.fitting import ChainSource, fitted, one_budget
from tensornet.limits import DOUBLE, certify, make_limits, noise
from tensornet.storage import in_double, narrowed, scaled, weight
from tensornet.typing import Array, Bonds, Cores

# More noise than this (relative) and a network is taken for zero; more growth than this, and
# parts cancelled.
_NOTHING_LEFT = 0.1
_CANCELLED = 4.0


class Cutting(NamedTuple):
    """What the user asked of a rounding."""

    max_bond: int | None = None
    bonds: Bonds = None
    rtol: float | None = None
    max_params: int | None = None


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
    limits: Cutting,
    true_norm: float | None = None,
) -> Rounded:
    """Return fused cores cut to smaller bonds, with the norm in the central core.

    Errors are relative to ``true_norm`` where that is given: the norm of a matrix without its
    padding.
    """
    dtype, n = dtype_name(cores[0]), len(cores)
    if isinstance(limits.bonds, str):
        raise OptionError(complaint("bonds", "be numbers when rounding", repr(limits.bonds)))
    one_budget(limits.rtol, limits.max_params)
    backend, ready = _ready(cores, center)
    scale = ready.scale
    caps = requested_bonds(
        tuple(int(c.shape[1]) for c in ready.cores), limits.max_bond, limits.bonds
    )
    total = ready.weight if true_norm is None else (true_norm / scale) ** 2
    rules = make_limits(caps, limits.rtol, dtype, total, forced=False)
    rules = replace(rules, noise=max(rules.noise, ready.cancelled**2 * total))
    source = ChainSource(ready.cores, ready.center, total, backend, ready.found)
    swept = fitted(source, rules, limits.rtol, limits.max_params)
    middle = move_center(swept.cores, swept.center, n // 2, backend)
    factors = [scale if k == n // 2 else 1.0 for k in range(n)]
    stored, storage = narrowed(middle, dtype, backend, factors)
    return Rounded(at_home(stored, cores[0]), n // 2, certify(swept, total, storage, scale))


class _Ready(NamedTuple):
    """A chain to be cut, divided by ``scale``, and what is known of it."""

    cores: Cores
    center: int | None
    scale: float
    weight: float
    cancelled: float
    found: Gathered | None


def _ready(cores: Cores, center: int | None) -> tuple[Backend, _Ready]:
    """Return a chain in double precision, gathered in one core where its Gram matrices fail."""
    backend, wide = widened(cores)
    found = None if dtype_name(cores[0]) in DOUBLE else gathered(wide, backend)
    if found is not None and found.growth <= _CANCELLED:
        return backend, _Ready(found.cores, found.meeting, 1.0, found.weight, 0.0, found)
    site = 0 if center is None else center
    backend, wide, cancelled = _gathered(cores, center, site)
    scale, near_one = scaled(wide[site], backend)
    wide = (*wide[:site], near_one, *wide[site + 1 :])
    return backend, _Ready(wide, site, scale, weight(near_one, backend), cancelled, None)


def _gathered(cores: Cores, center: int | None, site: int) -> tuple[Backend, Cores, float]:
    """Return fused cores with the norm in core ``site``, and the share of it that is noise.

    Where terms cancel, as in a difference of two equal networks, what remains may be nothing
    but their rounding errors: then a zero network comes back.
    """
    backend, wide = widened(cores)
    if trusted(cores, center) is not None or site != 0:
        return (*_centered(cores, center, site), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # looked for in the next line
        wide, growth = gather_first(wide, backend)
    _check_range(wide[0], backend)
    share = growth * noise("float64", max(int(c.shape[0]) for c in cores))
    if share > _NOTHING_LEFT:
        wide = tuple(backend.zeros((1, int(c.shape[1]), 1), c) for c in wide)
    return backend, wide, share if growth > _CANCELLED else 0.0


def _centered(cores: Cores, center: int | None, site: int) -> tuple[Backend, Cores]:
    """Return fused cores in double precision with the norm in core ``site``."""
    backend, wide = widened(cores)
    with np.errstate(over="ignore", invalid="ignore"):  # looked for in the next line
        wide = move_center(wide, trusted(cores, center), site, backend)
    _check_range(wide[site], backend)
    return backend, wide


def _check_range(core: Array, backend: Backend) -> None:
    if not backend.all_finite(core):
        expected = "have a norm within the range of double precision"
        remedy = "Scale its cores down first."
        raise ToleranceError(complaint("the network", expected, "a larger one", remedy))
