"""How bonds are chosen for a budget: which spectra are looked at, and which of two choices wins."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

import tensornet as tn
from tensornet import fitting
from tensornet.backend import load_backend
from tensornet.fitting import TensorSource, fitted
from tensornet.limits import within
from tensornet.narrow import SAFE_SHARE
from tensornet.shapes import layouts_of
from tensornet.truncation import Limits

SITES = ((4, 4, 4), (4, 4, 4))
CAPS = (1, 4, 1)
PLAIN = Limits(CAPS, 0.0)


class Told:
    """A source that says what it was asked, and gives the tails that it was made with."""

    sites = (4, 4)
    weight = 2.0

    def __init__(self, *tails, overdrawn=0):
        self._tails, self._overdrawn = tails, overdrawn
        self.shares, self.ran = [], []

    def tails(self, share, *, gentle):
        self.shares.append((share, gentle))
        known = self._tails[min(len(self.shares), len(self._tails)) - 1]
        return (self.weight * np.array(known),)

    def run(self, limits):
        self.ran.append(limits)
        bond = limits.caps[1]
        lost = self.weight * self._tails[-1][bond] + (len(self.ran) <= self._overdrawn)
        return SimpleNamespace(record=SimpleNamespace(discarded={1: lost}), bond=bond)


ROUGH = [1.0, 0.5, 1e-7, 1e-7, 0.0]


@pytest.mark.parametrize(
    ("tails", "asked"),
    [
        (([1.0, 0.9, 0.8, 0.7, 0.0],), 1),  # what is cut is worth far more than rounding
        (([1.0, 0.5, SAFE_SHARE, 1e-9, 0.0],), 1),
        ((ROUGH,), 2),
        ((ROUGH, [1.0, 0.5, 1e-11, 1e-12, 0.0]), 3),
        (([1.0, 0.5, 0.0, 0.0, 0.0],), 1),  # nothing is left over: no spectrum says more
        ((ROUGH, [1.0, 0.5, 0.0, 0.0, 0.0]), 2),
    ],
)
def test_spectra_are_looked_at_as_closely_as_the_cut_needs(tails, asked):
    source = Told(*tails)
    swept = fitted(source, PLAIN, None, 16)  # bonds of 2
    assert source.shares == [(share, False) for share in (SAFE_SHARE, 1e-10, 0.0)[:asked]]
    assert swept.bond == source.ran[0].caps[1]


def test_the_closest_look_decides():
    rough, close = [1.0, 1e-6, 1e-6, 1e-6, 1e-6], [1.0, 1e-2, 1e-7, 0.0, 0.0]
    assert fitted(Told(rough), PLAIN, None, 32).bond == 1
    source = Told(rough, close)
    assert fitted(source, PLAIN, None, 32).bond == 3
    assert len(source.shares) == 2


def test_a_tolerance_reserves_what_its_bonds_cost():
    source, limits = Told([1.0, 0.5, 0.05, 0.01, 0.0]), Limits(CAPS, 0.2)
    assert fitted(source, limits, 0.3, None).bond == 2
    ((share, gentle),) = source.shares
    assert share == pytest.approx(0.2 / 2.0 / 3)
    assert gentle
    (run,) = source.ran
    assert run.reserve == (0.0, 0.1, 0.0)
    assert run.caps == (1, 2, 1)
    assert run.allowed == 0.2
    assert run.coarse


def test_what_turns_out_to_cost_more_is_done_again_under_the_caps_alone():
    source, limits = Told([1.0, 0.5, 0.05, 0.01, 0.0], overdrawn=1), Limits(CAPS, 0.2)
    swept = fitted(source, limits, 0.3, None)
    assert [run.caps for run in source.ran] == [(1, 2, 1), CAPS]
    assert source.ran[1] == limits
    assert swept.record.discarded == {1: 0.0}


def test_capped_bonds_are_set_aside_what_they_cost_at_least():
    limits, ran = Limits((1, 4, 2, 1), 0.3), []
    found = [{1: 0.2, 2: 0.2}, {1: 0.05, 2: 0.2}, {1: 0.1, 2: 0.2}]

    def run(asked):
        ran.append(asked)
        return SimpleNamespace(record=SimpleNamespace(discarded=found[len(ran) - 1]))

    assert within(limits, run, 0.5, 1.0).record.discarded == found[2]
    assert [asked.allowed for asked in ran] == [0.3, 0.0, 0.3]
    assert [asked.reserve for asked in ran] == [(), (), (0.0, 0.05, 0.2, 0.0)]


@pytest.mark.parametrize(
    ("dtype", "share", "single"),
    [
        ("float32", SAFE_SHARE, True),
        ("float32", 0.9 * SAFE_SHARE, False),
        ("float32", 1e-13, False),
        ("complex64", 0.1, True),
        ("float64", 0.1, False),
        ("float64", 1e-10, False),
    ],
)
def test_single_precision_is_for_coarse_cuts_of_narrow_data(dtype, share, single, monkeypatch):
    seen = []

    def spectra(*_, single, both):
        seen.append((single, both))
        return SimpleNamespace(known={}, tails=())

    monkeypatch.setattr(fitting, "tensor_spectra", spectra)
    source = TensorSource(np.ones((2, 2, 2), dtype), 8.0, 0.0, load_backend("numpy"))
    source.tails(share, gentle=True)
    assert seen == [(single, True)]


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.9e-13), ("float64", 0.9e-10)])
def test_below_what_gram_matrices_say_the_exact_network_tells(dtype, share):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(4, 4)))[0] * [1.0, 1.0, 1.0, 1e-7]
    w = np.tensordot(q, rng.normal(size=(4, 4, 4)), 1).astype(dtype)
    source = TensorSource(w, float((w.astype("float64") ** 2).sum()), 0.0, load_backend("numpy"))
    for k, tail in enumerate(source.tails(share, gentle=False), start=1):
        s = np.linalg.svd(w.reshape(4**k, -1).astype("float64"), compute_uv=False)
        assert tail[:-1] == pytest.approx(np.cumsum(s[::-1] ** 2)[::-1], rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_exact_network_is_made_where_no_value_is_small(dtype, monkeypatch):
    monkeypatch.setattr(TensorSource, "_exact", None)
    w = np.random.default_rng(0).normal(size=(4, 4, 4)).astype(dtype)
    m = tn.tt(w, rtol=1e-5)
    assert m.bond_dims == (1, 4, 4, 1)
    assert np.allclose(m.to_tensor(), w, rtol=0, atol=1e-6)


def tails_of(w, layout):
    found = []
    for k in range(1, layout.n_sites):
        flat = layout.fold(w).reshape(math.prod(layout.site_dims[:k]), -1)
        s = np.linalg.svd(flat, compute_uv=False)
        found.append(np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0))
    return found


@pytest.mark.parametrize(
    ("kind", "budget", "winner"),
    [
        ("noise", 500, "alike"),
        ("noise", 1000, "alike"),
        ("noise", 2000, "bound"),
        ("falling", 200, "alike"),
        ("falling", 2000, "bound"),
        ("falling", 3000, "bound"),
    ],
)
def test_of_two_choices_the_one_that_errs_less_is_taken(kind, budget, winner):
    w = np.random.default_rng(0).normal(size=(64, 64))
    w = w * np.exp(-np.arange(64) / 8.0) if kind == "falling" else w
    layout = tn.matrix_layout(64, 64, SITES)
    given = (layout.site_dims, tails_of(w, layout), budget, layout.structural_bonds())
    bonds = {"bound": fitting.least_error(*given), "alike": fitting._alike(*given)}
    errors = {
        name: tn.mpo(w, SITES, bonds=b).certificate.relative_error for name, b in bonds.items()
    }
    m = tn.mpo(w, SITES, max_params=budget)
    assert min(errors, key=errors.get) == winner
    assert m.bond_dims == (1, *bonds[winner], 1)
    assert m.certificate.relative_error == pytest.approx(errors[winner])


def test_bonds_that_are_alike_are_raised_where_that_gains_most():
    sites, caps = (4, 4, 4), (1, 4, 4, 1)
    flat, steep = np.array([9.0, 6, 4, 3, 0]), np.array([9.0, 8, 1, 0.5, 0])
    assert fitting._alike(sites, (flat, steep), 4 + 4 + 4, caps) == (1, 1)
    assert fitting._alike(sites, (flat, steep), 4 + 8 + 8, caps) == (1, 2)
    assert fitting._alike(sites, (steep, flat), 8 + 8 + 4, caps) == (2, 1)
    assert fitting._alike(sites, (flat, steep), 1000, (1, 3, 2, 1)) == (3, 2)
    nothing = np.array([9.0, 0, 0, 0, 0])
    assert fitting._alike(sites, (nothing, nothing), 1000, (1, 1, 1, 1)) == (1, 1)


def test_rows_and_columns_are_tried_against_each_other():
    found = {(layout.row_dims, layout.col_dims) for layout in layouts_of(8, 12, [2, 3])}
    rising, falling = ((2, 4), (4, 2)), ((2, 6), (6, 2))
    for rows in rising:
        for cols in falling:
            assert (rows, cols) in found
    assert {((1, 2, 4), (3, 2, 2)), ((4, 2, 1), (2, 2, 3))} <= found
    for rows, cols in found:
        assert (math.prod(rows), math.prod(cols)) == (8, 12)
