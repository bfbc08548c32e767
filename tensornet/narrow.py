"""Bases of the small side of data in single precision, in single precision where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet.backend import Backend, dtype_name
from tensornet.eigen import eigenpairs, single_pairs
from tensornet.linalg import SideBasis, fix_signs, side_basis, trace
from tensornet.truncation import Cut, Truncation
from tensornet.typing import Array

NARROW = ("float32", "complex64")
# A Gram matrix in single precision errs by about 1e-7 of its trace, and so does the weight
# that its leading eigenvectors keep. Discarded weight of this share of the trace is then the
# smallest possible one to three digits, and the error to four.
SAFE_SHARE = 3e-4
# Smaller sides cost so little that double precision, whose vectors are the same on all
# machines to more digits, is worth it.
_WORTHWHILE = 64


def narrow_basis(a: Array, rule: Truncation, lossless: bool, backend: Backend) -> SideBasis:
    """Return the leading left basis of ``a``, cut by a rule; see :func:`side_basis`.

    Vectors in single precision say that single precision was enough: a good part of the weight
    is discarded. What is discarded is then known to seven digits of the total only, and should
    be measured on the projection.

    Parameters
    ----------
    a : Array, shape (m, n)
        float32 or complex64; other precisions go to :func:`side_basis` at once.
    rule, lossless, backend
        As in :func:`side_basis`.
    """
    m, n = (int(d) for d in a.shape)
    hopeless = rule.cap >= m and (lossless or rule.forced)
    worthwhile = min(m, n) >= _WORTHWHILE or rule.coarse
    if dtype_name(a) in NARROW and not hopeless and worthwhile:
        capped = lossless or rule.forced or rule.coarse
        count = min(rule.cap, m, n) if capped else None
        found = _tall(a, rule, count, backend) if m > n else _wide(a, rule, count, backend)
        if found is not None:
            return found
    return side_basis(a, rule, lossless, backend)


def _wide(a: Array, rule: Truncation, count: int | None, backend: Backend) -> SideBasis | None:
    gram = a @ backend.adjoint(a)
    pairs = (eigenpairs if rule.forced else single_pairs)(gram, backend, count)
    return single_basis(gram, pairs, rule, backend)


def single_basis(
    gram: Array,
    found: tuple[np.ndarray[Any, Any], Array] | None,
    rule: Truncation,
    backend: Backend,
) -> SideBasis | None:
    """Return the basis that eigenpairs of a Gram matrix in single precision give, if it is safe."""
    if found is None:
        return None
    values, vectors = found
    total = trace(gram, backend)
    cut = rule.cut(values, max(total - float(values.sum()), 0.0))
    if cut.kept == int(gram.shape[0]):
        return SideBasis(None, Cut(cut.kept, 0.0), values)
    if not rule.coarse and not 0.0 < SAFE_SHARE * total < cut.discarded:
        return None
    vectors = fix_signs(polished(vectors[:, : cut.kept], backend), backend)
    return SideBasis(vectors, cut, values)


def _tall(a: Array, rule: Truncation, count: int | None, backend: Backend) -> SideBasis | None:
    # The right basis gives the left one: a v spans what it must, and QR makes it orthonormal.
    right = _wide(backend.adjoint(a), rule, count, backend)
    if right is None or right.vectors is None or right.weights is None:
        return None
    q, _ = backend.tl.qr(a @ right.vectors)
    return SideBasis(fix_signs(q, backend), right.cut, right.weights)


def polished(vectors: Array, backend: Backend) -> Array:
    """Return the columns orthonormal to the last digit, if they were nearly so.

    One Newton step towards the polar factor: it squares the deviation.
    """
    overlap = backend.adjoint(vectors) @ vectors
    k = int(overlap.shape[0])
    return vectors @ (1.5 * backend.identity(k, vectors) - 0.5 * overlap)
