"""Decomposition in a metric: optimum, monotone sweeps, promises, certificates, messages."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.als import Effort, Problem, frames, refine, spread
from tensornet.backend import load_backend
from tensornet.cores import contract_wide
from tensornet.errors import ToleranceError
from tensornet.layout import MatrixLayout
from tensornet.metric import whitened_errors
from tensornet.metric_starts import starts
from tensornet.single import Request
from tensornet.testing import layouts, tensors
from tensornet.whitening import checked_metric, column_site

NUMPY = load_backend("numpy")


def sample(rows: int, cols: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix and the mean of x x^T over inputs of very different sizes."""
    rng = np.random.default_rng(seed)
    X = np.linspace(0.01, 3.0, cols)[:, None] * rng.normal(size=(cols, 4 * cols))
    X += rng.normal(size=(cols, 1)) @ rng.normal(size=(1, 4 * cols))
    return rng.normal(size=(rows, cols)), X @ X.T / (4 * cols)


def root(H: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(H)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.conj().T


def error_in(W: Any, M: Any, H: Any) -> float:
    """Return |(W - M) H^(1/2)| / |W H^(1/2)|, in the plainest way."""
    W, M, H = (np.asarray(a, dtype=complex) for a in (W, M, H))
    S = root(H)
    return float(np.linalg.norm((W - M) @ S) / np.linalg.norm(W @ S))


def optimum(W: np.ndarray, H: np.ndarray, rank: int) -> float:
    s = np.linalg.svd(W @ root(H), compute_uv=False)
    return float(np.linalg.norm(s[rank:]) / np.linalg.norm(s))


# -- one site holds all columns: the closed form


@pytest.mark.parametrize(
    "shape", [((24, 1), (1, 36)), ((1, 24), (36, 1)), ((24, 1, 1), (1, 1, 36))]
)
@pytest.mark.parametrize("rank", [1, 5, 23])
def test_two_sites_reach_the_closed_form_optimum(shape: Any, rank: int) -> None:
    W, H = sample(24, 36)
    m = tn.mpo(W, shape, metric=H, max_bond=rank)
    best = optimum(W, H, rank)
    assert abs(error_in(W, m.to_matrix(), H) - best) < 1e-9
    assert abs(m.certificate.relative_error - best) < 1e-9
    assert m.certificate.relative_error >= m.certificate.lower_bound > 0.999 * best * (rank > 0)
    assert m.certificate.sweeps == 0


def test_the_optimum_of_a_rank_is_known_for_all_ranks_at_once() -> None:
    W, H = sample(10, 14)
    errors = whitened_errors(W, checked_metric(H, W, W, NUMPY), NUMPY)
    assert errors.shape == (11,)
    np.testing.assert_allclose(errors, [optimum(W, H, rank) for rank in range(11)], atol=1e-12)
    assert whitened_errors(0 * W, checked_metric(H, W, W, NUMPY), NUMPY).tolist() == [0.0] * 11


def test_columns_in_a_middle_site() -> None:
    W, H = sample(24, 9)
    m = tn.mpo(W, ((4, 1, 6), (1, 9, 1)), metric=H, bonds=(3, 4), gauge="left")
    assert m.bond_dims == (1, 3, 4, 1)
    assert m.center == 2
    assert abs(error_in(W, m.to_matrix(), H) - m.certificate.relative_error) < 1e-12
    plain = tn.mpo(W, m.layout, bonds=(3, 4))
    assert m.certificate.relative_error < error_in(W, plain.to_matrix(), H)


def test_directions_without_metric_are_what_w_is_between_the_bases() -> None:
    W, H = sample(12, 16)
    P = np.diag([1.0] * 10 + [0.0] * 6)
    m = tn.mpo(W, ((12, 1), (1, 16)), metric=P @ H @ P, max_bond=8)
    assert abs(m.certificate.relative_error - optimum(W, P @ H @ P, 8)) < 1e-9
    u = np.linalg.svd(W @ root(P @ H @ P))[0][:, :8]
    np.testing.assert_allclose(m.to_matrix(), u @ u.T @ W, atol=1e-10)


def test_exact_bonds_show_the_rank_in_the_metric() -> None:
    W, H = sample(12, 16)
    P = np.diag([1.0] * 5 + [0.0] * 11)
    m = tn.mpo(W, ((12, 1), (1, 16)), metric=P @ H @ P)
    assert m.bond_dims == (1, 5, 1)
    assert m.certificate.relative_error < 1e-12
    single = tn.mpo(W.astype(np.float32), ((12, 1), (1, 16)), metric=P @ H @ P)
    assert single.bond_dims == (1, 5, 1)
    full = tn.mpo(W, ((12, 1), (1, 16)), metric=P @ H @ P, bonds="full", max_bond=9)
    assert full.bond_dims == (1, 9, 1)


def test_a_zero_metric_asks_for_nothing() -> None:
    W, _ = sample(12, 16)
    for shape in (((12, 1), (1, 16)), ((3, 4), (4, 4))):
        m = tn.mpo(W, shape, metric=np.zeros((16, 16)), rtol=0.1)
        assert m.bond_dims == (1, 1, 1)
        assert m.certificate.relative_error == 0.0


# -- several sites share the columns: alternating least squares


@pytest.mark.parametrize("shape", [2, 3, 5, ((6, 4), (2, 18))])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_sweeps_lower_the_error_and_never_raise_it(shape: Any, library: str) -> None:
    W, H = sample(24, 36)
    given = (torch.tensor(W), torch.tensor(H)) if library == "torch" else (W, H)
    m = tn.mpo(given[0], shape, metric=given[1], max_bond=4)
    plain = tn.mpo(W, shape, bonds=m.bond_dims)
    history = m.certificate.history
    assert len(history) > 1
    assert all(b <= a for a, b in itertools.pairwise(history))
    assert m.certificate.relative_error < 0.95 * error_in(W, plain.to_matrix(), H)
    assert abs(error_in(W, m.to_matrix(), H) - m.certificate.relative_error) < 1e-9
    assert m.certificate.frobenius_error >= plain.certificate.relative_error - 1e-12
    assert type(m.cores[0]) is type(given[0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_sweeps_find_a_network_that_is_there_to_all_digits(library: str) -> None:
    rng = np.random.default_rng(3)
    layout = MatrixLayout((3, 2, 4), (2, 4, 3))
    true = tn.MPO([rng.normal(size=s) for s in layout.core_shapes((1, 2, 2, 1))]).to_matrix()
    # Noise for inputs that do not occur: invisible in the metric, not to a plain decomposition.
    V = np.linalg.qr(rng.normal(size=(24, 24)))[0]
    H = (V * np.where(np.arange(24) < 2, 0.0, 1.0)) @ V.T
    W = true + 2.0 * rng.normal(size=(24, 2)) @ V[:, :2].T
    given = (torch.tensor(W), torch.tensor(H)) if library == "torch" else (W, H)
    m = tn.mpo(given[0], layout, metric=given[1], bonds=(2, 2))
    plain = tn.mpo(W, layout, bonds=(2, 2))
    assert error_in(W, plain.to_matrix(), H) > 0.05
    assert m.certificate.relative_error < 1e-9
    assert m.certificate.history[-1] < 1e-9


def test_what_storing_costs_in_the_metric_counts() -> None:
    rng = np.random.default_rng(3)
    v = np.ones(8) / 8**0.5
    W = 100 * rng.normal(size=(8, 8)) @ (np.eye(8) - np.outer(v, v))
    W = (W + 0.5 * np.outer(rng.normal(size=8), v)).astype(np.float16)
    m = tn.mpo(W, ((2, 4), (2, 4)), metric=np.outer(v, v), max_bond=3)
    assert m.certificate.truncation_error < 1e-9 < 1e-3 < m.certificate.relative_error
    with pytest.raises(ToleranceError, match=r"rtol must be at least 0\.0\d+ for this metric and"):
        tn.mpo(W, ((2, 4), (2, 4)), metric=np.outer(v, v), rtol=0.02)


@given(st.data(), layouts(max_size=300), st.sampled_from(["float32", "float64", "complex128"]))
def test_the_certificate_is_what_a_dense_twin_measures(
    data: Any, layout: MatrixLayout, dtype: str
) -> None:
    kinds = ("gaussian", "low_rank", "decaying", "identity", "zero", "one_entry", "repeated")
    W = data.draw(tensors((layout.rows, layout.cols), dtype=dtype, kinds=kinds))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    X = rng.normal(size=(layout.cols, data.draw(st.integers(1, layout.cols))))
    if dtype == "complex128":
        X = X + 1j * rng.normal(size=X.shape)
    H = X @ X.conj().T
    m = tn.mpo(W, layout, metric=H, max_bond=data.draw(st.integers(1, 4)))
    c = m.certificate
    S = root(H)
    wide = W.astype("complex128")
    found = contract_wide(m.cores, layout)
    norm, missing = np.linalg.norm(wide @ S), np.linalg.norm((wide - found) @ S)
    # Where the metric has no weight, the root that is made here has that of its rounding.
    blind = 1e-7 * np.linalg.norm(S, 2) * np.linalg.norm(wide - found)
    assert missing <= (c.relative_error + 1e-6) * norm + blind + 1e-9
    assert abs(missing - c.relative_error * norm) <= 1e-6 * norm + 1e-9
    assert all(b <= a for a, b in itertools.pairwise(c.history))
    assert c.lower_bound <= c.relative_error + 1e-6
    assert m.cores[0].dtype == W.dtype


@given(st.data(), layouts(max_size=200))
def test_an_identity_metric_does_what_no_metric_does_or_better(
    data: Any, layout: MatrixLayout
) -> None:
    W = data.draw(tensors((layout.rows, layout.cols), kinds=("gaussian", "decaying", "low_rank")))
    bond = data.draw(st.integers(1, 4))
    m = tn.mpo(W, layout, metric=np.eye(layout.cols), max_bond=bond)
    plain = tn.mpo(W, layout, max_bond=bond)
    assert m.certificate.relative_error <= plain.certificate.relative_error + 1e-9
    assert abs(m.certificate.frobenius_error - m.certificate.relative_error) < 1e-9


@given(st.data(), layouts(max_size=200), st.floats(0.02, 0.9))
def test_rtol_is_a_promise_in_the_metric(data: Any, layout: MatrixLayout, rtol: float) -> None:
    W = data.draw(
        tensors((layout.rows, layout.cols), dtype="float32", kinds=("gaussian", "decaying"))
    )
    _, H = sample(1, layout.cols, seed=data.draw(st.integers(0, 99)))
    m = tn.mpo(W, layout, metric=H, rtol=rtol)
    assert error_in(W, m.to_matrix(), H) <= rtol * (1 + 1e-6)


def test_rtol_takes_fewer_parameters_than_without_the_metric() -> None:
    W, H = sample(48, 48)
    for shape in (((48, 1), (1, 48)), 3):
        plain = tn.mpo(W, shape, rtol=0.3)
        assert tn.mpo(W, shape, metric=H, rtol=0.3).n_params < plain.n_params


# -- what comes with it


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
def test_gauges_change_no_error(gauge: Any) -> None:
    W, H = sample(24, 36)
    a = tn.mpo(W, 3, metric=H, max_bond=5, gauge=gauge)
    b = tn.mpo(W, 3, metric=H, max_bond=5)
    assert a.center == {"central": 1, "left": 2, "right": 0, "symmetric": None}[gauge]
    np.testing.assert_allclose(a.to_matrix(), b.to_matrix(), atol=1e-10)


def test_exact_decompositions_are_the_plain_ones() -> None:
    W, H = sample(24, 36)
    for options in ({}, {"bonds": "full"}, {"gauge": "identity"}, {"max_bond": 10**6}):
        a, b = tn.mpo(W, 3, metric=H, **options), tn.mpo(W, 3, **options)
        assert all(np.array_equal(x, y) for x, y in zip(a.cores, b.cores, strict=True))
        assert a.certificate.relative_error < 1e-14


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_types_are_kept_and_metrics_of_any_type_go_with_them(dtype: str) -> None:
    W, H = sample(24, 36)
    W, H = torch.tensor(W, dtype=getattr(torch, dtype)), torch.tensor(H)
    m = tn.mpo(W, 3, metric=H.to(torch.float32), max_bond=5)
    assert m.dtype == W.dtype
    assert (
        abs(error_in(W.double(), m.to_matrix().double(), H) - m.certificate.relative_error) < 0.05
    )
    half = tn.mpo(W, 3, metric=H.to(torch.bfloat16), max_bond=5)
    assert half.certificate.relative_error < 1.2 * m.certificate.relative_error


def test_scale_of_matrix_and_metric_is_of_no_concern() -> None:
    W, H = sample(24, 36)
    errors = [
        tn.mpo(a * W, 3, metric=b * H, max_bond=5).certificate.relative_error
        for a, b in ((1.0, 1.0), (1e-150, 1e200), (1e120, 1e-290))
    ]
    np.testing.assert_allclose(errors, errors[0], rtol=1e-3)


def test_strides_and_inputs_are_left_alone() -> None:
    W, H = sample(24, 36)
    backward, turned = W[::-1, ::-1], np.asfortranarray(H[::-1, ::-1])
    copies = backward.copy(), turned.copy()
    a = tn.mpo(backward, 3, metric=turned, max_bond=5)
    b = tn.mpo(*copies[:1], 3, metric=copies[1], max_bond=5)
    np.testing.assert_allclose(a.to_matrix(), b.to_matrix(), atol=1e-9)
    assert np.array_equal(backward, copies[0])
    assert np.array_equal(turned, copies[1])


def test_the_metric_shows_in_prints_and_survives_files(tmp_path: Path) -> None:
    W, H = sample(24, 36)
    m = tn.mpo(W, 3, metric=H, max_bond=5)
    c = m.certificate
    assert isinstance(c, tn.MetricCertificate)
    assert repr(m).endswith(f"relative error {c.relative_error:.3g} in the metric)")
    assert f"relative_error={c.relative_error:.6g} in the metric" in repr(c)
    assert f"frobenius_error={c.frobenius_error:.6g}" in repr(c)
    text = str(c)
    assert f"relative error   {c.relative_error:.6g} in the metric" in text
    assert f"plain error      {c.frobenius_error:.6g} (Frobenius)" in text
    assert f"then {c.sweeps} sweeps" in text
    assert "best possible    unknown" in text
    assert "at least" in str(tn.mpo(W, ((24, 1), (1, 36)), metric=H, max_bond=5).certificate)
    tn.save(m, tmp_path / "m.safetensors")
    again = tn.load(tmp_path / "m.safetensors").certificate
    assert isinstance(again, tn.MetricCertificate)
    assert again.history == c.history
    assert again.relative_error == c.relative_error
    assert again.upper_bound >= again.relative_error
    moved = m.move_center(0).certificate
    assert isinstance(moved, tn.MetricCertificate)


def test_where_the_columns_sit() -> None:
    assert column_site(MatrixLayout((4, 6), (1, 5))) == 1
    assert column_site(MatrixLayout((4, 6), (1, 1))) == 1
    assert column_site(MatrixLayout((4, 6), (2, 2))) is None


# -- budgets of parameters


@pytest.mark.parametrize("shape", [3, ((24, 1), (1, 36)), ((2, 3, 4), (6, 2, 3))])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.8, 3.0])
def test_a_budget_is_met_to_within_one_bond_step(shape: Any, share: float) -> None:
    W, H = sample(24, 36)
    budget = max(int(share * W.size), 80)
    m = tn.mpo(W, shape, metric=H, max_params=budget)
    bonds, most = m.bond_dims, m.layout.structural_bonds()
    assert m.n_params <= budget
    for k in range(1, len(bonds) - 1):
        if bonds[k] < most[k]:
            raised = m.layout.n_params((*bonds[:k], bonds[k] + 1, *bonds[k + 1 :]))
            beyond = bonds[k] + 1 > min(
                bonds[k - 1] * m.layout.site_dims[k - 1], bonds[k + 1] * m.layout.site_dims[k]
            )
            assert beyond or raised > budget
    if share > 2:
        assert m.certificate.relative_error < 1e-12


def test_a_budget_buys_no_more_error_than_equal_bonds_do() -> None:
    W, H = sample(48, 48)
    layout = MatrixLayout((4, 3, 4), (4, 3, 4))
    even = tn.mpo(W, layout, metric=H, max_bond=6)
    m = tn.mpo(W, layout, metric=H, max_params=even.n_params)
    assert m.certificate.relative_error <= 1.02 * even.certificate.relative_error


# -- where sweeps start


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_product_metric_is_carried_back_without_loss(dtype: str) -> None:
    rng = np.random.default_rng(5)
    layout = MatrixLayout((3, 2, 2), (2, 4, 3), cols=24)
    factors = []
    for j in layout.col_dims:
        X = rng.normal(size=(j, 9)) + (1j * rng.normal(size=(j, 9)) if dtype == "complex128" else 0)
        factors.append(
            np.diag(np.logspace(0, 2, j)) @ X @ X.conj().T @ np.diag(np.logspace(0, 2, j))
        )
    H = np.kron(np.kron(factors[0], factors[1]), factors[2])
    W = rng.normal(size=(12, 24)).astype(dtype)
    metric = checked_metric(H, W, W, NUMPY)
    problem = Problem(W, metric.matrix, metric.root, metric.square(W, NUMPY), layout, NUMPY)
    asked = Request(None, (3, 3), None, "central")
    errors = []
    for start in starts(problem, metric, asked):
        found = spread(start.cores[0], frames(start.cores, 0, NUMPY), problem)
        errors.append(metric.square(W - found, NUMPY) / problem.total)
    white = tn.mpo(W @ metric.root, layout, bonds=(3, 3))
    roots = [root(f) for f in factors]
    product = tn.mpo(W @ np.kron(np.kron(roots[0], roots[1]), roots[2]), layout, bonds=(3, 3))
    assert len(errors) == 3
    assert abs(errors[1] ** 0.5 - product.certificate.relative_error) < 1e-6
    assert abs(white.certificate.relative_error - product.certificate.relative_error) < 1e-6
    assert errors[1] < errors[0]


def test_conjugate_gradients_take_as_many_steps_as_the_metric_has_values() -> None:
    rng = np.random.default_rng(7)
    V = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    H = (V * np.repeat([1.0, 3.0, 10.0, 100.0], 3)) @ V.T
    W = rng.normal(size=(5, 12))
    metric, layout = checked_metric(H, W, W, NUMPY), MatrixLayout((5,), (12,))
    problem = Problem(W, metric.matrix, metric.root, metric.square(W, NUMPY), layout, NUMPY)
    nothing = (np.zeros((1, 60, 1)),)
    few, enough = (
        refine(nothing, 0, problem, Effort(sweeps=1, steps=steps, idle=0.0)).history[-1]
        for steps in (3, 4)
    )
    assert enough < 5e-3 < 1e-2 < few  # steps are in single precision


def test_networks_do_not_grow_where_the_metric_weighs_nothing() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(8, 1))
        W = np.outer(rng.normal(size=8), rng.normal(size=8))
        m = tn.mpo(W, ((2, 2, 2), (2, 2, 2)), metric=x @ x.T, bonds="full", max_bond=2)
        assert np.linalg.norm(m.to_matrix()) <= 101 * np.linalg.norm(W)
        assert abs(error_in(W, m.to_matrix(), x @ x.T) - m.certificate.relative_error) < 1e-5


def test_padding_does_not_count_where_one_site_holds_the_columns() -> None:
    W = np.random.default_rng(0).normal(size=(7, 1))
    layout = MatrixLayout((2, 2, 2), (2, 1, 1), rows=7, cols=1)
    m = tn.mpo(W, layout, metric=np.eye(1), max_bond=1)
    plain = tn.mpo(W, layout, max_bond=1)
    assert m.certificate.relative_error <= plain.certificate.relative_error + 1e-12
    assert m.certificate.lower_bound == 0.0
