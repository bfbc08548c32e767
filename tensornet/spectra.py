"""The spectra of all unfoldings of a tensor, from two small Gram matrices.

The Gram matrix of the left unfolding at one bond is a partial trace of that at the next bond, so
the innermost one on each side holds them all.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend, dtype_name
from tensornet.eigen import eigenpairs, eigenvalues, single_pairs
from tensornet.gram import gram_matrix, projected
from tensornet.host import eigh
from tensornet.narrow import NARROW
from tensornet.sweep import Known, meeting_site
from tensornet.truncation import tail_weights
from tensornet.typing import Array


class Spectra(NamedTuple):
    """For each inner bond of the uncut tensor, the weight discarded by keeping r values.

    ``tails[k][r]`` is squared and absolute, for bond k + 1. ``known`` holds what the sweep need
    not compute again.
    """

    tails: tuple[np.ndarray[Any, Any], ...]
    known: dict[int, Known]


def tensor_spectra(
    tensor: Array, backend: Backend, *, single: bool, both: bool = True
) -> Spectra | None:
    """Return the spectra of all unfoldings of a tensor, or None where no driver converges.

    Parameters
    ----------
    tensor : Array, shape (p1, ..., pn)
        In the precision to work in.
    backend : Backend
        Operations for the array's library.
    single : bool
        Whether single precision is enough for data in single precision.
    both : bool
        Whether the vectors of the right side are wanted too. They are of use where the left
        side loses little.
    """
    sites = tuple(int(d) for d in tensor.shape)
    meeting = meeting_site(sites)
    weights: dict[int, np.ndarray[Any, Any]] = {}
    known: dict[int, Known] = {}
    for left in (True, False):
        bond = meeting if left else meeting + 1
        if bond in (0, len(sites)):
            continue
        side = sites[:bond] if left else sites[bond:]
        flat = backend.tl.reshape(tensor, (math.prod(sites[:bond]), -1))
        if not left and single:
            flat = _with_fewer_rows(flat, known.get(meeting), backend)
        gram = _gram(flat if left else backend.matrix_transpose(flat), single, backend)
        if left or both:
            pairs = (single_pairs if single else eigenpairs)(gram, backend)
            values = None if pairs is None else pairs[0]
            known[bond] = Known(gram, pairs)
        else:
            values = eigenvalues(gram, backend)
        if values is None:
            return None
        weights[bond] = values
        host = backend.numbers(gram)
        for depth in range(len(side) - 1, 0, -1):
            host = _traced(host, side[depth] if left else side[-1 - depth], left=left)
            outer = depth if left else len(sites) - depth
            squares, vectors = eigh(host)
            weights[outer] = np.maximum(squares[::-1], 0.0)
            known[outer] = _known(host, weights[outer], vectors[:, ::-1].copy(), gram, backend)
    tails = tuple(tail_weights(weights[bond]) for bond in range(1, len(sites)))
    return Spectra(tails, known)


def _with_fewer_rows(flat: Array, known: Known | None, backend: Backend) -> Array:
    """Return a matrix with the Gram matrix of its columns, in the basis of a side of low rank.

    The basis misses no more than what is noise in single precision.
    """
    if known is None or known.pairs is None:
        return flat
    vectors, rows = known.pairs[1], int(known.gram.shape[0])
    # A basis of more vectors takes as long to multiply with as it saves.
    if 4 * int(vectors.shape[1]) > rows:
        return flat
    columns = int(flat.shape[1])
    kept = projected(vectors, backend.tl.reshape(flat, (rows, -1)), backend)
    return backend.tl.reshape(kept, (-1, columns))


def _known(
    host: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any],
    vectors: np.ndarray[Any, Any],
    like: Array,
    backend: Backend,
) -> Known:
    """Return what is known of an outer bond, in the precision of the Gram matrix it came from."""
    outer, basis = (backend.cast(backend.like(a, like), dtype_name(like)) for a in (host, vectors))
    return Known(outer, (weights, basis))


def _gram(a: Array, single: bool, backend: Backend) -> Array:
    if single and dtype_name(a) in NARROW:
        return a @ backend.adjoint(a)
    return gram_matrix(a, backend)


def _traced(gram: np.ndarray[Any, Any], site: int, *, left: bool) -> np.ndarray[Any, Any]:
    """Return the Gram matrix of the unfolding one bond further out, in double precision.

    The site that leaves is the last factor of the rows on the left side, and the first on the
    right side.
    """
    outer = len(gram) // site
    wide = gram.astype(np.result_type(gram.dtype, np.float64))
    if left:
        return np.asarray(np.einsum("asbs->ab", wide.reshape(outer, site, outer, site)))
    return np.asarray(np.einsum("sasb->ab", wide.reshape(site, outer, site, outer)))
