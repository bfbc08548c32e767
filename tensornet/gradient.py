"""A decomposition that can be differentiated: fixed bases, and their first-order response.

The bases are computed without a graph, as always. A cut basis U then gets a term that is zero in
value and has the derivative of the kept subspace. With the singular triplets (u, s, v) of the
unfolding A, j kept and k discarded,

    dU_j = sum_k u_k (s_j u_k^H dA v_j + s_k conj(u_j^H dA v_k)) / (s_j^2 - s_k^2).

Kept values never meet kept ones in a denominator, because what happens inside the kept subspace
is a choice of gauge that no matrix shows: equal and zero values do no harm there.
Source: Stewart and Sun 1990, section V.2.2 (perturbation of singular subspaces).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name, eps, library_of, work_dtype
from tensornet.bonds import late_bonds
from tensornet.checks import finite
from tensornet.errors import ArrayTypeError, DerivativeError, OptionError, complaint, counted
from tensornet.gram import divided
from tensornet.linalg import thin_svd
from tensornet.single import Made, Request, decompose_tensor, requested_caps
from tensornet.storage import scaled
from tensornet.sweep import identity_cores, meeting_site
from tensornet.typing import Array, Cores

_EPS = 2.0**-52
_GAUGES = ("central", "identity")
# Nearer than this (relative to the last kept value) two singular values count as equal: by what
# the element type can tell apart.
_TIE = {"float64": 1e-10, "complex128": 1e-10}
_TIE_NARROW = 1e-6


class _Rule(NamedTuple):
    """How many values a bond keeps, and what counts as a tie and leads to what."""

    bond: int
    kept: int
    tie: float
    noise: float
    subgradient: bool
    scale: float


def differentiable_tensor(
    tensor: Array, request: Request, mode: bool | str, backend: Backend
) -> Made:
    """Return fused cores (left, site, right) through which gradients reach ``tensor``.

    Parameters
    ----------
    tensor : Array, shape (p_1, ..., p_n)
        A torch tensor, in its graph.
    request : Request
        Limits and gauge; "central" puts the norm where both sides are small.
    mode : True or "subgradient"
        What a cut through equal singular values leads to: an error, or a derivative with the
        kept vectors among the equal ones held fixed.
    backend : Backend
        torch's.

    Raises
    ------
    ArrayTypeError
        If the library has no gradients.
    OptionError
        If the gauge has no derivative or the mode is unknown.
    DerivativeError
        If a cut splits equal singular values and no subgradient was asked for.
    """
    _check(library_of(tensor), request.gauge, mode)
    plain = tensor.detach()
    made = decompose_tensor(plain, request, backend)
    if request.gauge == "identity":
        cores, center = identity_cores(tensor, backend)
        return Made(tuple(backend.copy(core) for core in cores), center, made.certificate)
    dtype, sites = dtype_name(tensor), tuple(int(d) for d in tensor.shape)
    scale, _ = scaled(backend.cast(plain, work_dtype(dtype)), backend)
    tie, meeting = _TIE.get(dtype, _TIE_NARROW), meeting_site(sites)
    noise = {1e-10: _EPS}.get(tie, eps(dtype))
    late, bonds = late_bonds(sites, _bonds(made, request, sites), meeting)
    rules = [
        _Rule(bond, kept, tie, noise, mode == "subgradient", scale)
        for bond, kept in enumerate(bonds)
    ]
    near_one = divided(backend.cast(tensor, work_dtype(dtype)), scale)
    cores = _without_late(_sweep(near_one, rules, meeting, backend), late, meeting, backend)
    stored = []
    for k, core in enumerate(cores):
        small = backend.cast(core * scale if k == meeting else core, dtype)
        finite(f"core {k} in {dtype}", small, backend)
        stored.append(backend.copy(small))
    return Made(tuple(stored), None if late else meeting, made.certificate)


def _check(library: str, gauge: str, mode: bool | str) -> None:
    if library != "pytorch":
        given = f"an array of {library}"
        remedy = "Convert it with torch.as_tensor, or leave differentiable out."
        raise ArrayTypeError(
            complaint("W with differentiable=True", "be a torch tensor", given, remedy)
        )
    if not (mode is True or mode == "subgradient"):
        raise OptionError(
            complaint("differentiable", "be False, True or 'subgradient'", repr(mode))
        )
    if gauge not in _GAUGES:
        remedy = "What has a derivative depends on no gauge; other gauges divide by zero values."
        raise OptionError(
            complaint(
                "gauge", "be 'central' or 'identity' with differentiable", repr(gauge), remedy
            )
        )


def _bonds(made: Made, request: Request, sites: tuple[int, ...]) -> list[int]:
    """Return the n + 1 bonds: those found, and the structural ones where no limit cuts.

    An exact decomposition follows every change of the matrix, so a bond without a limit cannot
    have the rank of the moment.
    """
    found = [*(int(core.shape[0]) for core in made.cores), 1]
    caps, _ = requested_caps(sites, request)
    if request.rtol is not None or getattr(request, "max_params", None) is not None:
        return found
    meeting, bonds = meeting_site(sites), list(found)
    for k in range(1, meeting + 1):
        side = bonds[k - 1] * sites[k - 1]
        bonds[k] = side if caps[k] >= side else found[k]
    for k in range(len(sites) - 1, meeting, -1):
        side = bonds[k + 1] * sites[k]
        bonds[k] = side if caps[k] >= side else found[k]
    return bonds


def _sweep(tensor: Array, rules: list[_Rule], meeting: int, backend: Backend) -> Cores:
    """Return cores with the norm at ``meeting``: the sweep of the decomposition, in the graph."""
    tl, sites = backend.tl, tuple(int(d) for d in tensor.shape)
    lefts, rights = [], []
    for k in range(meeting):
        rest = tl.reshape(tensor, (rules[k].kept * sites[k], -1))
        basis = _basis(rest, rules[k + 1], backend)
        tensor = backend.adjoint(basis) @ rest
        lefts.append(tl.reshape(basis, (rules[k].kept, sites[k], -1)))
    for k in range(len(sites) - 1, meeting, -1):
        right = rules[k + 1].kept
        rest = backend.matrix_transpose(tl.reshape(tensor, (-1, sites[k] * right)))
        basis = _basis(rest, rules[k], backend)
        tensor = backend.matrix_transpose(backend.adjoint(basis) @ rest)
        rights.append(tl.reshape(backend.matrix_transpose(basis), (-1, sites[k], right)))
    shape = (rules[meeting].kept, sites[meeting], rules[meeting + 1].kept)
    return (*lefts, tl.reshape(tensor, shape), *rights[::-1])


def _without_late(cores: Cores, late: tuple[int, ...], meeting: int, backend: Backend) -> Cores:
    """Return the chain with the late bonds as small as a neighbour makes them, without a cut.

    The two cores at such a bond are multiplied, and the one on the side of the neighbour becomes
    a reshaped identity. Nothing is divided, so derivatives are finite; no gauge is claimed.
    """
    made = list(cores)
    for k in [*(k for k in reversed(late) if k <= meeting), *(k for k in late if k > meeting)]:
        (a, i, bond), (_, j, b) = made[k - 1].shape, made[k].shape
        both = made[k - 1].reshape((a * i, bond)) @ made[k].reshape((bond, j * b))
        if k <= meeting:
            made[k - 1] = both.reshape((a, i, j * b))
            made[k] = backend.identity(j * b, both).reshape((j * b, j, b))
        else:
            made[k - 1] = backend.identity(a * i, both).reshape((a, i, a * i))
            made[k] = both.reshape((a * i, j, b))
    return tuple(made)


def _basis(a: Array, rule: _Rule, backend: Backend) -> Array:
    """Return the kept left basis (m, kept) of ``a`` with the derivative of its subspace."""
    m, r = int(a.shape[0]), rule.kept
    plain = a.detach()
    if r >= m:
        return backend.identity(m, plain)
    u, s, vh = thin_svd(plain, backend)
    first, second = _response(s, rule)
    change = backend.first_order(a - plain)  # zero in value
    kept, v = u[:, :r], backend.adjoint(vh)
    moved = change @ v[:, :r]
    inside = backend.adjoint(u) @ moved
    across = backend.adjoint(backend.adjoint(kept) @ change @ v[:, r:])
    outside = (moved - u @ inside) * backend.like(_inverse(s[:r], rule.noise * s[0]), moved)
    turned = backend.like(first, moved) * inside[r:] + backend.like(second, moved) * across
    return kept + u[:, r:] @ turned + outside


def _response(
    s: np.ndarray[Any, Any], rule: _Rule
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return s_j / (s_j^2 - s_k^2) and s_k / (s_j^2 - s_k^2) for k discarded and j kept.

    Both are zero where the two are equal: both zero up to rounding, or split with leave.
    """
    kept, cut = s[None, : rule.kept], s[rule.kept :, None]
    zero = rule.noise * math.sqrt(len(s)) * 4.0 * s[0]
    tied = kept - cut <= np.maximum(rule.tie * kept, 4.0 * len(s) * _EPS * s[0])
    if not rule.subgradient and bool((tied & (kept > zero)).any()):
        raise _split(s, rule)
    both = tied | (kept <= zero)
    gap = np.where(both, 1.0, (kept - cut) * (kept + cut))
    return np.where(both, 0.0, kept / gap), np.where(both, 0.0, cut / gap)


def _split(s: np.ndarray[Any, Any], rule: _Rule) -> DerivativeError:
    r = rule.kept
    spread = rule.tie * s[r - 1]
    group = np.flatnonzero(np.abs(s - s[r - 1]) <= spread)
    last, first = int(group[-1]) + 1, int(group[0])
    remedy = f"Keep {counted(last, 'value')} there" + (f" or {first}" if first else "")
    remedy += ", or take differentiable='subgradient'."
    given = f"{rule.scale * s[r - 1]:.9g} and {rule.scale * s[r]:.9g}"
    return DerivativeError(
        complaint(
            f"bond {rule.bond}", f"not be cut to {r} between equal singular values", given, remedy
        )
    )


def _inverse(s: np.ndarray[Any, Any], zero: float) -> np.ndarray[Any, Any]:
    return np.asarray(np.divide(1.0, s, out=np.zeros_like(s), where=s > zero))
