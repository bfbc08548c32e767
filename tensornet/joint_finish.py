"""From fitted cores to those of the networks: balanced, with all sites, in their own type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensornet.backend import Backend
from tensornet.host import eigh
from tensornet.joint import Joint
from tensornet.joint_starts import Merged
from tensornet.typing import Array, Cores

# Share of the largest mean eigenvalue below which a direction counts as unused.
_UNUSED = 1e-14


def balanced(cores: Cores, middle: int, problem: Joint) -> Cores:
    """Return cores of the same networks whose sides are isometric in the mean over the networks.

    The same change of basis for all networks keeps common cores common; the norms go to the
    site ``middle``.
    """
    reshape, made = problem.backend.tl.reshape, list(cores)
    for k in range(middle):
        batch, left, site, right = (int(d) for d in made[k].shape)
        flat = reshape(made[k], (batch, left * site, right))
        root, inverse = _root(problem.backend.adjoint(flat) @ flat, problem)
        made[k] = reshape(flat @ inverse, (batch, left, site, right))
        made[k + 1] = _from_left(root, made[k + 1], problem)
    for k in range(len(cores) - 1, middle, -1):
        batch, left, site, right = (int(d) for d in made[k].shape)
        flat = reshape(made[k], (batch, left, site * right))
        root, inverse = _root(flat @ problem.backend.adjoint(flat), problem)
        made[k] = _from_left(inverse, made[k], problem)
        batch, before, site, bond = (int(d) for d in made[k - 1].shape)
        ahead = reshape(made[k - 1], (batch, before * site, bond)) @ root
        made[k - 1] = reshape(ahead, (batch, before, site, bond))
    return tuple(made)


def _from_left(factor: Array, core: Array, problem: Joint) -> Array:
    batch, left, site, right = (int(d) for d in core.shape)
    product = factor @ problem.backend.tl.reshape(core, (batch, left, site * right))
    return problem.backend.tl.reshape(product, (batch, left, site, right))


def _root(grams: Array, problem: Joint) -> tuple[Array, Array]:
    """Return the square root of the mean Gram matrix and its inverse."""
    backend = problem.backend
    mean = backend.numbers(backend.tl.sum(grams, axis=0)) / int(grams.shape[0])
    values, vectors = eigh(mean)
    roots = np.sqrt(np.maximum(values, _UNUSED * values[-1])) if values[-1] > 0 else values + 1.0
    adjoint = vectors.conj().T
    return (
        backend.like((vectors * roots) @ adjoint, grams),
        backend.like((vectors / roots) @ adjoint, grams),
    )


def split_sites(
    cores: Cores,
    merged: Sequence[Merged],
    site_dims: tuple[int, ...],
    batches: Sequence[int],
    backend: Backend,
) -> Cores:
    """Return the cores (batch or 1, left, site, right) of all sites from those of merged ones.

    ``batches`` are the numbers of cores at each site: 1 where they are common.
    """
    made: list[Array] = []
    for core, (sites, free) in zip(cores, merged, strict=True):
        dims = [site_dims[k] for k in sites]
        batch, left, _, right = (int(d) for d in core.shape)
        before = math.prod(dims[: free - sites.start])
        after = math.prod(dims[free - sites.start + 1 :])
        for k in sites:
            if k == free:
                shape = (batch, left * before, site_dims[k], right * after)
                made.append(backend.tl.reshape(core, shape))
                continue
            inner = math.prod(
                site_dims[sites.start : k + 1] if k < free else site_dims[k : sites.stop]
            )
            outer = inner // site_dims[k]
            ends = (outer, site_dims[k], inner) if k < free else (inner, site_dims[k], outer)
            eye = backend.tl.reshape(backend.identity(inner, core), (1, *ends))
            made.append(eye * backend.like(np.ones((batches[k], 1, 1, 1)), core))
    return tuple(made)
