"""Stacks of complex matrices by stacked linear algebra: as one by one, and isometric."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import batch as batches
from tensornet.checks import array
from tensornet.single import Request
from tensornet.stack_sweep import move_centers, sweep_stack
from tensornet.testing import assert_close, assert_isometric
from tensornet.truncation import Limits

SITES = ((2, 3, 4), (3, 4, 3))
RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(3, 24, 36)) + 1j * RNG.normal(size=(3, 24, 36))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
@pytest.mark.parametrize("asked", [{"max_bond": 5}, {"rtol": 0.6}, {}], ids=str)
def test_as_one_by_one(asked, gauge, dtype, library):
    W = STACK.astype(dtype)
    backend, given = array("W", W if library == "numpy" else torch.from_numpy(W), 3)
    layout = tn.matrix_layout(24, 36, SITES)
    request = Request(asked.get("max_bond"), None, asked.get("rtol"), gauge)
    made = batches.decompose_batch(given, layout, request, backend, True)
    for m, matrix in zip(made, W, strict=True):
        single = tn.mpo(matrix, SITES, bonds=made.bond_dims)
        error = np.linalg.norm(np.asarray(m.to_matrix()) - matrix) / np.linalg.norm(matrix)
        assert m.certificate.relative_error == pytest.approx(error, abs=1e-6)
        assert error <= single.certificate.relative_error + 1e-6
        for k, core in enumerate(m.cores):
            if m.center is not None and k != m.center:
                assert_isometric(core, "left" if k < m.center else "right", 1e-5)


@pytest.mark.parametrize("target", [0, 1, 2])
def test_centers_of_complex_stacks_move(target):
    tensors = STACK.reshape(3, 6, 12, 12)
    limits = [Limits((1, 4, 5, 1), 0.0, forced=True)] * 3
    backend, _ = array("W", STACK, 3)
    swept = sweep_stack(tensors, limits, backend, narrow=False)
    moved = move_centers(swept.cores, swept.center, target, backend)
    for k in range(3):
        full = [
            np.einsum("aib,bjc,ckd->ijk", *(core[k] for core in cores))
            for cores in (swept.cores, moved)
        ]
        assert_close(full[1], full[0], 1e-12)
        lost = np.linalg.norm(full[0] - tensors[k]) ** 2
        assert lost == pytest.approx(sum(swept.records[k].discarded.values()))
        for site, core in enumerate(moved):
            if site != target:
                assert_isometric(core[k], "left" if site < target else "right")


def test_a_stack_that_would_break_its_promise_is_done_one_by_one(monkeypatch):
    layout, backend = tn.matrix_layout(24, 36, SITES), array("W", STACK, 3)[0]
    request = Request(None, None, 0.5, "central")

    def overdrawn(*arguments, **options):
        found = sweep_stack(*arguments, **options)
        found.records[1].discarded[1] += 1e9
        return found

    monkeypatch.setattr(batches, "sweep_stack", overdrawn)
    made = batches.decompose_batch(STACK, layout, request, backend, True)
    assert [core.shape[0] for core in made.cores] == [3, 3, 3]
    for m, matrix in zip(made, STACK, strict=True):
        error = np.linalg.norm(m.to_matrix() - matrix) / np.linalg.norm(matrix)
        assert error <= 0.5
        assert m.certificate.relative_error == pytest.approx(error)
