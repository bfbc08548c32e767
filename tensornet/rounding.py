"""Re-cutting a chain of cores: the same sweep as for a tensor, on the cores alone."""

from __future__ import annotations

from tensornet.backend import Backend
from tensornet.canonical import absorb_left, absorb_right, cols_matrix, move_center, rows_matrix
from tensornet.linalg import thin_svd
from tensornet.sweep import Record, Swept, meeting_site
from tensornet.truncation import Limits
from tensornet.typing import Cores


def round_cores(cores: Cores, center: int | None, limits: Limits, backend: Backend) -> Swept:
    """Return the chain with smaller bonds, and what was discarded.

    Bonds are cut in the same order as in the decomposition of a tensor, so that decomposing
    with a limit and decomposing exactly, then rounding to it, give the same network.

    Source: Oseledets 2011, algorithm 2 (here from both ends).
    """
    meeting = meeting_site(tuple(int(c.shape[1]) for c in cores))
    record = Record({}, {})
    cores = move_center(cores, center, 0, backend)
    for k in range(meeting):
        cores = _cut_right(cores, k, limits, record, backend)
    cores = move_center(cores, meeting, len(cores) - 1, backend)
    for k in range(len(cores) - 1, meeting, -1):
        cores = _cut_left(cores, k, limits, record, backend)
    return Swept(cores, meeting, record)


def _cut_right(cores: Cores, k: int, limits: Limits, record: Record, backend: Backend) -> Cores:
    left, site = (int(d) for d in cores[k].shape[:2])
    u, s, vh = thin_svd(rows_matrix(cores[k], backend), backend)
    cut = limits.rule(k + 1, record.discarded).cut(s**2)
    record.note(k + 1, cut, s**2)
    rest = backend.like(s[: cut.kept], vh)[:, None] * vh[: cut.kept]
    core = backend.tl.reshape(u[:, : cut.kept], (left, site, -1))
    return (*cores[:k], core, absorb_left(rest, cores[k + 1], backend), *cores[k + 2 :])


def _cut_left(cores: Cores, k: int, limits: Limits, record: Record, backend: Backend) -> Cores:
    site, right = (int(d) for d in cores[k].shape[1:])
    u, s, vh = thin_svd(cols_matrix(cores[k], backend), backend)
    cut = limits.rule(k, record.discarded).cut(s**2)
    record.note(k, cut, s**2)
    rest = u[:, : cut.kept] * backend.like(s[: cut.kept], u)
    core = backend.tl.reshape(vh[: cut.kept], (-1, site, right))
    return (*cores[: k - 1], absorb_right(cores[k - 1], rest, backend), core, *cores[k + 1 :])
