"""What cuts of many tensors of one shape cost, from two stacks of small Gram matrices.

The stacked counterpart of :mod:`tensornet.spectra`, without vectors and in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tensornet.backend import Backend
from tensornet.eigen import say_failed
from tensornet.stack_storage import NearOne, Numbers
from tensornet.sweep import meeting_site
from tensornet.truncation import tail_weights
from tensornet.typing import Array


def joined_tails(
    stacks: Iterable[NearOne], join: np.ufunc, backend: Backend
) -> list[Numbers] | None:
    """Return the tails of all tensors, as shares of their squared norms, joined into one.

    Parameters
    ----------
    stacks : iterable of NearOne
        Tensors (batch, p1, ..., pn) in double precision, and their squared norms.
    join : ufunc
        Such as ``numpy.add`` or ``numpy.maximum``.
    backend : Backend
        Operations for the tensors.

    Returns
    -------
    list of ndarray, or None
        For each inner bond the share that keeping r values discards; None where no eigensolver
        converges.

    Examples
    --------
    >>> from tensornet.backend import load_backend
    >>> pair = np.stack([np.diag([2.0, 1.0, 0.0]), np.diag([1.0, 1.0, 1.0])])
    >>> stack = NearOne(pair, np.ones(2), np.array([5.0, 3.0]))
    >>> joined_tails([stack], np.maximum, load_backend("numpy"))[0].round(3)
    array([1.   , 0.667, 0.333, 0.   ])
    """
    joined: list[Numbers] | None = None
    for stack in stacks:
        tails = _tails(stack.tensors, backend)
        if tails is None:
            return None
        weights = np.where(stack.weights > 0.0, stack.weights, 1.0)[:, None]
        own = [np.asarray(join.reduce(tail / weights, axis=0)) for tail in tails]
        before = own if joined is None else joined
        joined = own if joined is None else [join(a, b) for a, b in zip(before, own, strict=True)]
    return joined


def _tails(tensors: Array, backend: Backend) -> list[Numbers] | None:
    """Return for each inner bond the squared weight beyond r values, (batch, values + 1)."""
    batch, *sites = (int(d) for d in tensors.shape)
    meeting, found = meeting_site(tuple(sites)), dict[int, Numbers]()
    for left in (True, False):
        bond = meeting if left else meeting + 1
        if bond in (0, len(sites)):
            continue
        flat = backend.tl.reshape(tensors, (batch, math.prod(sites[:bond]), -1))
        side = flat if left else backend.matrix_transpose(flat)
        gram = side @ backend.adjoint(side)
        outward = range(bond, 0, -1) if left else range(bond, len(sites))
        for place in outward:
            if place != bond:
                gone = sites[place] if left else sites[place - 1]
                gram = _traced(gram, gone, left=left, backend=backend)
            try:
                weights = backend.spectra(gram)
            except backend.no_convergence as error:
                say_failed(f"the eigensolver on {backend.place(gram)}", gram, error)
                return None
            found[place] = tail_weights(np.maximum(weights[:, ::-1], 0.0))
    return [found[bond] for bond in range(1, len(sites))]


def _traced(gram: Array, site: int, *, left: bool, backend: Backend) -> Array:
    """Return the Gram matrices one bond further out, as :func:`tensornet.spectra._traced`."""
    batch, side, _ = (int(d) for d in gram.shape)
    outer = side // site
    if left:
        parts = backend.tl.reshape(gram, (batch, outer, site, outer, site))
        return sum(parts[:, :, k, :, k] for k in range(site))
    parts = backend.tl.reshape(gram, (batch, site, outer, site, outer))
    return sum(parts[:, k, :, k] for k in range(site))
