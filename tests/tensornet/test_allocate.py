"""One budget for many matrices: kept, used up, never worse than one cap for all."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import errors
from tensornet.backend import backend_of
from tensornet.bonds import structural_bonds
from tensornet.budget import least_error
from tensornet.fronts import front_of
from tensornet.layout import matrix_layout


def several(seed=0):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, 64)
    return {
        "smooth": np.exp(-5 * (x[:, None] - x) ** 2),
        "noise": 3.0 * rng.standard_normal((64, 32)),
        "low": rng.standard_normal((32, 2)) @ rng.standard_normal((2, 64)),
    }


def made(allocation, Ws):
    for a in allocation:
        yield a, Ws[a.name] if a.dense else tn.mpo(Ws[a.name], a.layout, bonds=a.bonds).to_matrix()


def total_error(Ws, matrices):
    parts = [
        np.linalg.norm(M - W) ** 2 / np.linalg.norm(W) ** 2
        for W, M in zip(Ws, matrices, strict=True)
    ]
    return np.sqrt(np.mean(parts))


@pytest.mark.parametrize("budget", [200, 800, 2500, 6000])
def test_a_budget_is_kept_and_its_bound_holds(budget):
    Ws = several()
    allocation = tn.allocate(Ws, max_params=budget)
    assert allocation.n_params <= budget
    total = 0
    for a, M in made(allocation, Ws):
        total += (
            Ws[a.name].size if a.dense else tn.mpo(Ws[a.name], a.layout, bonds=a.bonds).n_params
        )
        error = np.linalg.norm(M - Ws[a.name]) / np.linalg.norm(Ws[a.name])
        assert error <= a.relative_error * (1 + 1e-6) + 1e-7
    assert total <= allocation.n_params  # bonds that neighbours rule out are not made


@pytest.mark.parametrize("cap", [2, 4, 7, 12])
def test_never_worse_than_one_cap_for_all(cap):
    Ws = several()
    uniform = {name: tn.mpo(W, 4, max_bond=cap) for name, W in Ws.items()}
    budget = sum(m.n_params for m in uniform.values())
    allocation = tn.allocate(Ws, max_params=budget, shape=4, keep_dense=False)
    bounds = []
    for name, m in uniform.items():
        spectra = tn.mpo(Ws[name], 4).spectra()
        tails = [(v[b:] ** 2).sum() for v, b in zip(spectra, m.bond_dims[1:-1], strict=True)]
        bounds.append(sum(tails) / np.linalg.norm(Ws[name]) ** 2)
    assert allocation.error <= np.sqrt(np.mean(bounds)) * (1 + 1e-9)


@given(st.integers(0, 50), st.floats(0.05, 0.9))
def test_a_tolerance_is_met(seed, rtol):
    Ws = several(seed)
    allocation = tn.allocate(Ws, rtol=rtol, shape=3)
    found = [M for _, M in made(allocation, Ws)]
    assert total_error(Ws.values(), found) <= rtol * (1 + 1e-6)


def test_weights_draw_parameters():
    rng = np.random.default_rng(3)
    Ws = {"a": rng.standard_normal((64, 64)), "b": rng.standard_normal((64, 64))}
    plain = {a.name: a.n_params for a in tn.allocate(Ws, ratio=0.4, shape=2)}
    drawn = {
        a.name: a.n_params for a in tn.allocate(Ws, ratio=0.4, shape=2, weights={"a": 25, "b": 1})
    }
    assert drawn["a"] > plain["a"]
    assert drawn["b"] < plain["b"]


def test_small_matrices_stay_dense_where_that_is_smaller():
    allocation = tn.allocate(several(), ratio=1.0, shape=3)
    assert {a.name: a.dense for a in allocation}["noise"]
    assert not {a.name: a.dense for a in allocation}["smooth"]


def test_it_prints_and_is_json():
    allocation = tn.allocate(several(), ratio=0.3)
    assert "together" in str(allocation)
    text = allocation.to_json()
    assert json.loads(text if isinstance(text, str) else json.dumps(text))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, errors.OptionError, "max_params|ratio|rtol"),
        ({"ratio": 0.5, "rtol": 0.5}, errors.OptionError, "max_params|ratio|rtol"),
        ({"ratio": 0.0}, errors.OptionError, "ratio"),
        (
            {"max_params": 3},
            errors.OptionError,
            r"be at least \d+, the parameters with all bonds 1, got 3",
        ),
        ({"rtol": 2.0}, errors.ToleranceError, r"\(0, 1\)"),
        (
            {"ratio": 0.5, "measure": "total"},
            errors.OptionError,
            "be one of 'relative', 'absolute'",
        ),
    ],
)
def test_refusals(options, kind, text):
    with pytest.raises(kind, match=text):
        tn.allocate(several(), **options)


def test_the_matrix_with_bad_values_is_named():
    Ws = several()
    Ws["low"][0, 0] = np.inf
    with pytest.raises(errors.NonFiniteError, match="low"):
        tn.allocate(Ws, ratio=0.5)


def test_a_tolerance_below_what_gram_matrices_show_is_kept():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((64, 64)))[0]
    W = (Q * 10.0 ** -np.linspace(0, 12, 64)) @ Q.T
    found = tn.allocate([W], rtol=1e-8, shape=((64, 1), (1, 64)), keep_dense=False)
    made = tn.mpo(W, found[0].layout, bonds=found[0].bonds)
    assert 0.0 < made.certificate.relative_error <= 1e-8
    assert made.certificate.relative_error == pytest.approx(found[0].relative_error, rel=1e-3)


@pytest.mark.parametrize("budget", [90, 150, 237, 400, 611])
def test_one_matrix_gets_what_is_best_for_it(budget):
    W = np.random.default_rng(3).standard_normal((24, 36))
    front = front_of(W, matrix_layout(24, 36, 3), backend_of(W))
    best = front.choice(least_error(front.layout.site_dims, front.tails, budget, front.caps))
    (found,) = tn.allocate([W], max_params=budget, shape=3)
    assert found.relative_error == pytest.approx(np.sqrt(best.loss), rel=1e-9)


def test_the_hull_ends_with_the_dense_matrix():
    W = np.random.default_rng(3).standard_normal((24, 36))
    front = front_of(W, matrix_layout(24, 36, 3), backend_of(W))
    assert front.hull(keep_dense=True)[-1] == front.dense
    assert all(c.bonds is not None for c in front.hull(keep_dense=False))
    shares = [c.loss for c in front.hull(keep_dense=True)]
    assert shares == sorted(shares, reverse=True)


def test_the_error_is_the_weighted_mean_that_is_promised():
    Ws, weights = several(), {"smooth": 2.0, "noise": 0.5}
    for measure in ("relative", "absolute"):
        found = tn.allocate(Ws, ratio=0.3, weights=weights, measure=measure)
        norms = {
            name: np.linalg.norm(W) if measure == "absolute" else 1.0 for name, W in Ws.items()
        }
        sizes = {name: weights.get(name, 1.0) * norms[name] ** 2 for name in Ws}
        total = sum(sizes[a.name] * a.relative_error**2 for a in found)
        assert found.error == pytest.approx(np.sqrt(total / sum(sizes.values())), rel=1e-9)


def test_copies_count_what_is_stored():
    Ws = several()
    copies = {"smooth": (3, 1, 3), "noise": (1, 1, 2)}
    allocation = tn.allocate(Ws, max_params=3000, copies=copies)
    assert allocation.n_params <= 3000
    assert allocation["smooth"].dense_params == 3 * 64 * 64
    for a in allocation:
        sides, central, dense = copies.get(a.name, (1, 1, 1))
        if a.dense:
            assert a.n_params == dense * Ws[a.name].size
            continue
        cores = a.layout.core_shapes((1, *a.bonds, 1))
        counts = [central if k == len(cores) // 2 else sides for k in range(len(cores))]
        assert a.n_params == sum(c * np.prod(s) for c, s in zip(counts, cores, strict=True))


@pytest.mark.parametrize("budget", [120, 300, 700])
def test_copies_of_one_matrix_are_cut_as_brute_force_cuts_them(budget):
    rng = np.random.default_rng(0)
    W = rng.standard_normal((16, 16))
    layout = matrix_layout(16, 16, 3)
    found = tn.allocate({"W": W}, max_params=budget, shape=3, copies={"W": (4, 1, 4)})["W"]
    tails = front_of(W, layout, backend_of(W)).tails
    sides = [layout.site_dims[0] * 4, layout.site_dims[1], layout.site_dims[2] * 4]
    best = min(
        tails[0][a] + tails[1][b]
        for a in range(1, len(tails[0]))
        for b in range(1, len(tails[1]))
        if sides[0] * a + sides[1] * a * b + sides[2] * b <= budget
    )
    assert found.relative_error == pytest.approx(np.sqrt(best))


def test_matrices_that_get_the_same_bonds():
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((3, 16, 16))
    alone = [tn.allocate({"W": W}, max_params=150, shape=2)["W"] for W in stack]
    found = tn.allocate({"W": stack}, max_params=150, shape=2)["W"]
    assert found.bonds == alone[0].bonds
    assert found.relative_error**2 == pytest.approx(np.mean([a.relative_error**2 for a in alone]))


@pytest.mark.parametrize(
    ("copies", "text"),
    [
        ({"other": (1, 1, 1)}, "copies must name matrices, got 'other'"),
        ({"low": (1, 0, 1)}, r"copies\['low'\] must be three positive integers .*\(1, 0, 1\)"),
        (3, "copies must map names to numbers of side cores, central cores and matrices"),
    ],
)
def test_impossible_copies(copies, text):
    with pytest.raises(errors.OptionError, match=text):
        tn.allocate(several(), max_params=900, copies=copies)


def test_only_ratios_of_weights_count_however_large():
    Ws = list(np.random.default_rng(0).normal(size=(3, 6, 8)))
    plain = tn.allocate(Ws, max_params=60, shape=2, weights=[1, 2, 3])
    for factor in (1e300, 1e-300):
        found = tn.allocate(Ws, max_params=60, shape=2, weights=[factor, 2 * factor, 3 * factor])
        assert [row.bonds for row in found] == [row.bonds for row in plain]
    with pytest.raises(errors.OptionError, match="be a positive number, got a larger one"):
        tn.allocate(Ws, max_params=60, shape=2, weights=[10**400, 1, 1])


@pytest.mark.parametrize("measure", ["relative", "absolute", "retained"])
@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.3])
def test_bonds_can_be_and_errors_are_kept_where_nothing_compresses(measure, ratio):
    rng = np.random.default_rng(3)
    Ws = {"q": rng.normal(size=(32, 32)), "i": rng.normal(size=(32, 128))}
    found = tn.allocate(Ws, ratio=ratio, shape=5, keep_dense=False, measure=measure)
    for row in found:
        inner = structural_bonds(row.layout.site_dims, row.bonds)[1:-1]
        assert inner == row.bonds
        made = tn.mpo(Ws[row.name], row.layout, bonds=row.bonds)
        assert made.n_params == row.n_params
        assert made.certificate.relative_error <= row.relative_error * (1 + 1e-9) <= 1 + 1e-9
        if measure == "retained":
            assert made.certificate.relative_error < 0.99
    assert 0.8 * found.max_params < found.n_params <= found.max_params


def test_what_cannot_be_kept_leaves_the_budget_to_others():
    rng = np.random.default_rng(1)
    Ws = {"q": rng.normal(size=(32, 32)), "i": rng.normal(size=(32, 128))}
    found = tn.allocate(Ws, max_params=1024 + 40, weights={"q": 10})
    assert found["q"].dense
    assert found.error <= math.sqrt(1 / 11) * (1 + 1e-9)


def test_the_retained_share_is_a_product_over_bonds():
    Ws = [np.diag(2.0 ** -np.arange(8)), np.diag(3.0 ** -np.arange(8))]
    found = tn.allocate(Ws, max_params=64, shape=((8, 1), (1, 8)), measure="retained")
    logs = 0.0
    for W, row in zip(Ws, found, strict=True):
        s = np.diag(W) ** 2
        logs += 0.5 * math.log(s[: row.bonds[0]].sum() / s.sum())
    assert found.error == pytest.approx(math.sqrt(1 - math.exp(logs)))
    again = tn.allocate(Ws, rtol=found.error * 1.001, shape=((8, 1), (1, 8)), measure="retained")
    assert again.n_params <= found.n_params
    assert again.error <= found.error * 1.001


@pytest.mark.parametrize("budget", [300, 600, 1200])
def test_a_bound_above_all_leaves_no_budget_unused(budget):
    W = np.random.default_rng(1).normal(size=(64, 256))
    found = tn.allocate({"i": W}, max_params=budget, shape=5, keep_dense=False)
    assert 0.7 * budget < found.n_params <= budget
    made = tn.mpo(W, found["i"].layout, bonds=found["i"].bonds)
    assert made.certificate.relative_error <= found["i"].relative_error <= 1.0


@pytest.mark.parametrize("measure", ["relative", "absolute", "retained"])
def test_what_hardly_counts_is_cut_as_far_as_it_goes(measure):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 16, 16))
    scaled = [A, B * 1e-153] if measure == "absolute" else [A, B]
    weights = None if measure == "absolute" else [1, 1e-308]
    found = tn.allocate(scaled, weights=weights, shape=2, ratio=0.8, measure=measure)
    assert found.n_params <= found.max_params
    assert found["0"].dense


def test_a_ratio_that_nothing_keeps_is_named():
    with pytest.raises(errors.OptionError, match=r"ratio must be at least 0.1251?, the 32 "):
        tn.allocate([np.eye(16)], ratio=1e-4, shape=2)
