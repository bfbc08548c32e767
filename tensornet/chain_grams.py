"""Re-cutting a chain of cores through small Gram matrices, without the SVD of any core.

The chain is first gathered in its meeting site, by QR factorizations of as many columns as are
independent: a sum of networks has more than that. What then follows a bond has a Gram matrix that
is cheap to carry along, and that of the unfolding's rows is M R M^H, where M is the core in whose
basis the rows are. For data in single precision, whose noise is far above the rounding of squares
in double precision, nothing is lost by it.
Source: Al Daas, Ballard and Manning 2022 (parallel tensor train rounding using Gram SVD).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensornet.backend import Backend
from tensornet.canonical import absorb_left, absorb_right, cols_matrix, rows_matrix
from tensornet.host import eigenvalues
from tensornet.linalg import (
    SideBasis,
    fix_signs,
    gram_basis,
    has_full_rank,
    positive_qr,
    revealing_qr,
    trace,
)
from tensornet.storage import weight
from tensornet.sweep import Record, Swept, meeting_site
from tensornet.truncation import Cut, Limits, Truncation, tail_weights
from tensornet.typing import Array, Cores

# Squared norms whose squares in turn are numbers of double precision with all their digits.
_RANGE = (2.0**-200, 2.0**200)


class Gathered(NamedTuple):
    """A chain with isometric cores around its meeting site, and the squared norm there.

    ``growth`` is how much larger than what they add up to the parts are that meet, at all bonds
    together.
    """

    cores: Cores
    meeting: int
    weight: float
    growth: float


def gathered(cores: Cores, backend: Backend) -> Gathered | None:
    """Return cores in double precision gathered in the meeting site; None beyond the range."""
    meeting = meeting_site(tuple(int(c.shape[1]) for c in cores))
    rest, growth = list(cores), 1.0
    for k in range(len(cores) - 1, meeting, -1):
        site, right = (int(d) for d in rest[k].shape[1:])
        columns = backend.matrix_transpose(cols_matrix(rest[k], backend))
        q, factor = revealing_qr(columns, backend)
        rest[k] = backend.tl.reshape(backend.matrix_transpose(q), (-1, site, right))
        before = rest[k - 1]
        with np.errstate(over="ignore", invalid="ignore"):  # looked for in the next line
            rest[k - 1] = absorb_right(before, backend.matrix_transpose(factor), backend)
            met = _met(rows_matrix(before, backend), factor, rest[k - 1], backend)
        if met is None:
            return None
        growth *= max(met, 1.0)
    for k in range(meeting):
        left, site = (int(d) for d in rest[k].shape[:2])
        q, factor = revealing_qr(rows_matrix(rest[k], backend), backend)
        rest[k] = backend.tl.reshape(q, (left, site, -1))
        after = rest[k + 1]
        with np.errstate(over="ignore", invalid="ignore"):  # looked for in the next line
            rest[k + 1] = absorb_left(factor, after, backend)
            ahead = backend.matrix_transpose(cols_matrix(after, backend))
            met = _met(ahead, factor, rest[k + 1], backend)
        if met is None:
            return None
        growth *= max(met, 1.0)
    return Gathered(tuple(rest), meeting, weight(rest[meeting], backend), growth)


def gathered_tails(found: Gathered, backend: Backend) -> tuple[np.ndarray[Any, Any], ...]:
    """Return for each inner bond the weight discarded by keeping r values."""
    grams = _after(found.cores, found.meeting, backend) | _before(
        found.cores, found.meeting, backend
    )
    tails = []
    for bond in range(1, len(found.cores)):
        squares = eigenvalues(backend.numbers(grams[bond]))[::-1]
        tails.append(tail_weights(np.maximum(squares, 0.0)))
    return tuple(tails)


def round_gathered(found: Gathered, limits: Limits, backend: Backend) -> Swept | None:
    """Return the chain with smaller bonds, and what was discarded, as rounding by SVDs does.

    None where a cut falls so low that Gram matrices say too little.
    """
    record, rest, meeting = Record({}, {}), list(found.cores), found.meeting
    grams, isometric = _after(found.cores, meeting, backend), True
    for k in range(meeting):
        left, site, right = (int(d) for d in rest[k].shape)
        rows = rows_matrix(rest[k], backend)
        rule = limits.rule(k + 1, record.discarded)
        basis = _basis(rows, grams[k + 1], rule, backend, isometric=isometric)
        if basis is None:
            return None
        record.note(k + 1, basis.cut, basis.weights)
        if basis.vectors is not None:
            rest[k] = backend.tl.reshape(basis.vectors, (left, site, -1))
            factor = backend.adjoint(basis.vectors) @ rows
            rest[k + 1] = absorb_left(factor, rest[k + 1], backend)
            isometric = False
    grams, isometric = _before(tuple(rest), meeting, backend), True
    for k in range(len(rest) - 1, meeting, -1):
        left, site, right = (int(d) for d in rest[k].shape)
        cols = backend.matrix_transpose(cols_matrix(rest[k], backend))
        rule = limits.rule(k, record.discarded)
        basis = _basis(cols, grams[k], rule, backend, isometric=isometric)
        if basis is None:
            return None
        record.note(k, basis.cut, basis.weights)
        if basis.vectors is not None:
            core = backend.matrix_transpose(basis.vectors)
            rest[k] = backend.tl.reshape(core, (-1, site, right))
            factor = backend.matrix_transpose(backend.adjoint(basis.vectors) @ cols)
            rest[k - 1] = absorb_right(rest[k - 1], factor, backend)
            isometric = False
    return Swept(tuple(rest), meeting, record)


def _basis(
    rows: Array, gram: Array, rule: Truncation, backend: Backend, *, isometric: bool
) -> SideBasis | None:
    """Return the kept basis of the rows of ``rows`` times all that lies beyond it.

    Without vectors, nothing is cut and the core stays as it is, which is isometric.
    """
    m, r = (int(d) for d in rows.shape)
    span = None
    if m >= r:
        # As many columns as the rows need: the eigenproblem is that small.
        span, rows = (rows, backend.identity(r, rows)) if isometric else positive_qr(rows, backend)
    whole = rows @ gram @ backend.adjoint(rows)
    size = int(whole.shape[0])
    whole_kept = isometric and rule.allowed <= rule.noise and rule.cap >= size
    if whole_kept and has_full_rank(whole, trace(whole, backend), rule.allowed, backend):
        return SideBasis(None, Cut(size, 0.0), None)
    found = gram_basis(whole, None, rule, backend)
    if found is None:
        return None
    if found.vectors is None:
        basis = backend.identity(m, rows) if span is None else span
        return found if isometric else found._replace(vectors=basis)
    if span is None:
        return found
    return found._replace(vectors=fix_signs(span @ found.vectors, backend))


def _before(cores: Cores, meeting: int, backend: Backend) -> dict[int, Array]:
    """Return, by bond, the Gram matrices of the transposed part from the meeting site to it."""
    grams: dict[int, Array] = {}
    for k in range(meeting, len(cores) - 1):
        core, rows = cores[k], rows_matrix(cores[k], backend)
        if k > meeting:
            core = absorb_left(backend.matrix_transpose(grams[k]), core, backend)
        ahead = backend.matrix_transpose(rows_matrix(core, backend))
        grams[k + 1] = ahead @ backend.conj(rows)
    return grams


def _after(cores: Cores, meeting: int, backend: Backend) -> dict[int, Array]:
    """Return, by bond, the Gram matrices of the part from it to the meeting site."""
    grams: dict[int, Array] = {}
    for k in range(meeting, 0, -1):
        core, cols = cores[k], cols_matrix(cores[k], backend)
        if k < meeting:
            core = absorb_right(core, grams[k + 1], backend)
        grams[k] = cols_matrix(core, backend) @ backend.adjoint(cols)
    return grams


def _met(columns: Array, factor: Array, came: Array, backend: Backend) -> float | None:
    """Return the norm of the parts ``columns[:, j] factor[:, j]`` over that of their sum.

    None where the squares leave the range of numbers.
    """
    norms = (backend.tl.sum(backend.tl.abs(a) ** 2, axis=0) for a in (columns, factor))
    met = math.fsum(np.prod([backend.numbers(a) for a in norms], axis=0))
    left = weight(came, backend)
    inside = all(_RANGE[0] < square < _RANGE[1] for square in (met, left))
    return math.sqrt(met / left) if inside else None
