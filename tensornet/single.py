"""The decomposition of one tensor under a request: limits, sweep, gauge, storage."""

from __future__ import annotations

import math
from typing import NamedTuple

from tensornet.backend import Backend, backend_of, dtype_name, shared_with_numpy
from tensornet.bonds import requested_bonds, structural_bonds
from tensornet.canonical import move_center, symmetric
from tensornet.certificate import Certificate
from tensornet.checks import one_cap, storage_error
from tensornet.errors import OptionError, complaint
from tensornet.evening import evened
from tensornet.fitting import Found, TensorSource, budget, fitted, one_budget
from tensornet.limits import DOUBLE, certify, make_limits
from tensornet.storage import carried, in_double, narrowed
from tensornet.sweep import identity_cores
from tensornet.typing import Array, Bonds, Cores

GAUGES = ("central", "left", "right", "symmetric", "identity")


class Request(NamedTuple):
    """What the user asked of a decomposition."""

    max_bond: int | None
    bonds: Bonds
    rtol: float | None
    gauge: str
    max_params: int | None = None
    ratio: float | None = None  # where ``max_params`` was given as one

    @property
    def budgets(self) -> dict[str, object]:
        """The tolerance or the number of parameters, under the name that the user gave it."""
        size = {"max_params": self.max_params} if self.ratio is None else {"ratio": self.ratio}
        asked = {"rtol": self.rtol, **(size if self.max_params is not None else {})}
        return {name: value for name, value in asked.items() if value is not None}


class Made(NamedTuple):
    """Fused cores in the tensor's element type, where the norm sits, and the certificate."""

    cores: Cores
    center: int | None
    certificate: Certificate


class Looked(NamedTuple):
    """A tensor as it is worked on, divided by ``scale``, and what was found out about it."""

    scale: float
    tensor: Array
    weight: float
    found: Found | None = None


def decompose_tensor(
    tensor: Array, request: Request, backend: Backend, *, fresh: bool = False
) -> Made:
    """Return fused cores (left, site, right) in the tensor's element type.

    ``fresh`` says that nobody else holds the tensor's memory: a core may keep it.
    """
    caps, forced = requested_caps(tuple(int(d) for d in tensor.shape), request)
    host = shared_with_numpy(tensor, backend)
    if host is not None:
        numpy = backend_of(host)
        made = decompose_under(host, caps, request, numpy, forced=forced, fresh=fresh)
        return made._replace(cores=tuple(backend.like(core, tensor) for core in made.cores))
    return decompose_under(tensor, caps, request, backend, forced=forced, fresh=fresh)


def decompose_under(
    tensor: Array,
    caps: tuple[int, ...],
    request: Request,
    backend: Backend,
    *,
    forced: bool,
    fresh: bool = False,
) -> Made:
    """Return fused cores under caps or, if forced, with exactly these bonds."""
    dtype = dtype_name(tensor)
    looked = Looked(*carried(tensor, backend))
    if request.gauge == "identity":
        return _identity(tensor, caps, request, looked.scale * math.sqrt(looked.weight))
    return decompose_looked(looked, caps, request, dtype, backend, forced=forced, fresh=fresh)


def decompose_looked(
    looked: Looked,
    caps: tuple[int, ...],
    request: Request,
    dtype: str,
    backend: Backend,
    *,
    forced: bool,
    fresh: bool = False,
) -> Made:
    """Return fused cores of an element type, from a tensor that may have been looked at before."""
    scale, near_one, total, found = looked
    limits = make_limits(caps, request.rtol, dtype, total, forced=forced)
    source = TensorSource(near_one, total, limits.noise, backend, found)
    swept = fitted(source, limits, request.rtol, request.max_params)
    cores, center = gauged(swept.cores, swept.center, request.gauge, backend, dtype)
    factors = scale_factors(len(cores), center, scale)
    stored, storage = narrowed(cores, dtype, backend, factors, fresh=fresh)
    if any(swept.record.discarded.values()):
        # Parts of the work may have been done in the narrow type already.
        storage = max(storage, _rounding(dtype, len(cores)))
    return Made(stored, center, certify(swept, total, storage, scale))


def requested_caps(site_dims: tuple[int, ...], request: Request) -> tuple[tuple[int, ...], bool]:
    """Return the n + 1 bonds that a request allows, and whether they are kept whatever the rank.

    Raises
    ------
    BondError, OptionError
        If bonds are invalid, or options contradict each other.
    """
    if request.max_params is not None:
        budget(request.max_params, site_dims)
    one_budget(request.rtol, request.max_params)
    one_cap(request.max_bond)
    caps = requested_bonds(site_dims, request.max_bond, request.bonds)
    forced = isinstance(request.bonds, str)
    for name, value in request.budgets.items() if forced else ():
        given = f"{name}={value}"
        remedy = "Leave one of them out."
        raise OptionError(complaint("bonds", f"not be 'full' with {name}", given, remedy))
    return caps, forced


def _identity(tensor: Array, caps: tuple[int, ...], request: Request, norm: float) -> Made:
    backend = backend_of(tensor)
    sites = tuple(int(d) for d in tensor.shape)
    budgets = list(request.budgets)
    if budgets or caps != structural_bonds(sites):
        given = budgets[0] if budgets else f"bonds {list(caps[1:-1])}"
        remedy = f"It is for exact networks, with bonds {list(structural_bonds(sites)[1:-1])}."
        raise OptionError(complaint("gauge", "not be 'identity' with limits", given, remedy))
    cores, center = identity_cores(tensor, backend)
    none = len(sites) - 1
    certificate = Certificate(norm, (0.0,) * none, 0.0, (None,) * none)
    return Made(tuple(backend.own(core) for core in cores), center, certificate)


def gauged(
    cores: Cores, center: int, gauge: str, backend: Backend, dtype: str = "float64"
) -> tuple[Cores, int | None]:
    """Return the cores in a gauge, and where the norm sits then (None: nowhere alone).

    ``dtype`` is what they will be stored in: a narrow type needs fewer digits of the spectra.
    """
    n = len(cores)
    if gauge == "symmetric":
        even = None if dtype in DOUBLE else evened(cores, center, backend)
        return even or symmetric(in_double(cores)[1], center, backend), None
    target = {"central": n // 2, "left": n - 1, "right": 0}[gauge]
    if target == center:
        return cores, center
    cores = in_double(cores)[1]
    return move_center(cores, center, target, backend), target


def _rounding(dtype: str, n_sites: int) -> float:
    return 0.0 if dtype in DOUBLE else storage_error(dtype, n_sites)


def scale_factors(n: int, center: int | None, scale: float) -> tuple[float, ...]:
    """Return by how much each core is multiplied to give the data their scale back."""
    if center is not None or n == 1:
        return tuple(scale if k == (center or 0) else 1.0 for k in range(n))
    # In the symmetric gauge half of the scale belongs to each end of the chain.
    return (math.sqrt(scale), *(1.0,) * (n - 2), math.sqrt(scale))
