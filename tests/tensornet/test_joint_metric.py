"""Joint decompositions in metrics: optima, errors that never rise, certificates, messages."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet import joint_metric
from tensornet.backend import load_backend
from tensornet.joint_frames import contracted, left_part, right_parts
from tensornet.joint_metric import MetricJoint, _Step, _swept
from tensornet.metric_stack import checked_metrics
from tensornet.testing import layouts, tensors, tolerance_of

torch = pytest.importorskip("torch")

NUMPY = load_backend("numpy")
SITES = ((2, 3, 4), (3, 4, 3))
SHARES = ("central", "auxiliary", (1, 2), (0,))


def moments(cols, n=None, rank=None, seed=0, dtype="float64"):
    """Return means of x x^T over inputs of very different sizes, one or ``n``."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n or 1, cols, rank or 4 * cols)) * np.linspace(0.02, 3.0, cols)[:, None]
    if dtype.startswith("complex"):
        X = X + 1j * rng.normal(size=X.shape)
    H = X @ X.conj().transpose(0, 2, 1) / X.shape[2]
    return H if n else H[0]


def gaussian(n=4, seed=0, rows=24, cols=36):
    return np.random.default_rng(seed).normal(size=(n, rows, cols))


def root(H):
    values, vectors = np.linalg.eigh(H)
    # Roundings have roots that would show.
    values = np.where(values > 1e-14 * values[-1], values, 0.0)
    return (vectors * np.sqrt(values)) @ vectors.conj().T


def seen(W, H):
    """Return every matrix times the root of its metric, in the plainest way."""
    W = np.asarray(W, dtype=complex)
    H = np.broadcast_to(H, (len(W), *np.shape(H)[-2:]))
    return np.stack([w @ root(h) for w, h in zip(W, H, strict=True)])


def dense(s):
    return np.stack([np.asarray(m.to_matrix()) for m in s.mpos])


def error_in(s, W, H, weights=None):
    """Return the relative error of all matrices together in their metrics."""
    scale = np.sqrt(np.ones(len(W)) if weights is None else weights)[:, None, None]
    # Squares of the largest numbers have none.
    size, H = np.abs(W).max() or 1.0, H / (np.abs(H).max() or 1.0)
    norm = np.linalg.norm(scale * seen(W / size, H))
    missing = np.linalg.norm(scale * seen(W / size - dense(s) / size, H))
    return float(missing / norm) if norm else 0.0


def never_rises(history):
    return all(after <= before for before, after in itertools.pairwise(history))


# -- one core with all others fixed


def problem_of(W, H, layout, common, weights=None):
    return MetricJoint(W, common, weights, NUMPY, checked_metrics(H, W, W, NUMPY), layout)


def state_of(common, H, dtype="float64", weights=None):
    """Return a problem of three matrices 6 x 8 in sites (2x2, 3x2, 1x2), and random cores."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype != "float64" else 0)

    layout = tn.MatrixLayout((2, 3, 1), (2, 2, 2))
    problem = problem_of(normal(3, 6, 8), H, layout, common, weights)
    bonds = (1, 3, 2, 1)
    cores = tuple(
        normal(1 if one else 3, bonds[k], p, bonds[k + 1])
        for k, (one, p) in enumerate(zip(common, layout.site_dims, strict=True))
    )
    return problem, cores


def best_core(k, cores, problem, H, weights):
    """Return the least squared error over core ``k``, from the dense system."""
    size = cores[k].shape[1:]
    units = np.eye(math.prod(size)).reshape(-1, *size)
    each = np.ones(3) if weights is None else weights
    columns = []
    for unit in units:
        changed = (*cores[:k], unit[None] * np.ones((len(cores[k]), 1, 1, 1)), *cores[k + 1 :])
        columns.append(seen(contracted(changed, problem.ground), H))
    systems = np.stack(columns, axis=-1).reshape(3, -1, len(units))
    systems = systems * np.sqrt(each)[:, None, None]
    targets = seen(problem.tensors, H).reshape(3, -1) * np.sqrt(each)[:, None]
    if len(cores[k]) == 1:
        systems, targets = systems.reshape(1, -1, len(units)), targets.reshape(1, -1)
    total = 0.0
    for system, target in zip(systems, targets, strict=True):
        found = np.linalg.lstsq(system, target, rcond=None)[0]
        total += np.linalg.norm(system @ found - target) ** 2
    return total


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("weights", [None, np.array([0.5, 1.0, 0.25])], ids=["even", "weighted"])
@pytest.mark.parametrize("common", [(False,) * 3, (False, True, False), (True, False, True)])
def test_steps_tend_to_the_dense_least_squares_solution(common, weights, dtype, monkeypatch):
    monkeypatch.setattr(joint_metric, "_STEPS", 20)
    H = moments(8, 3, dtype=dtype)
    problem, cores = state_of(common, H, dtype, weights)
    for k in range(3):
        tried, ground = cores, problem.ground
        left, rights = ground.edge, right_parts(cores, ground)
        for j in range(k):
            left = left_part(left, cores[j], j, ground)
        for _ in range(10):
            weighted = (problem.tensors - contracted(tried, ground)) @ problem.metrics.matrices
            step = _Step(k, left, rights[k], problem.metrics.matrices, problem)
            move, fall = step.solved(weighted)
            tried = (*tried[:k], tried[k] + move, *tried[k + 1 :])
            after = (problem.tensors - contracted(tried, ground)) @ problem.metrics.matrices
            assert np.allclose(weighted - fall, after)
        scale = problem.metrics.scale
        expected = best_core(k, cores, problem, H, weights)
        assert problem.squared_error(tried) * scale == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("common", [(False,) * 3, (False, True, False)])
def test_every_core_lowers_the_error_however_far_it_is_relaxed(common):
    problem, cores = state_of(common, moments(8, 3))
    before = problem.squared_error(cores)
    for omega in (1.0, 1.9):
        for dtype in ("float32", "float64"):
            done = _swept(problem._state(cores), problem, omega, dtype)
            assert done.error < before
            assert done.error == pytest.approx(problem.squared_error(done.cores), rel=1e-9)


def test_one_step_is_enough_for_a_product_metric(monkeypatch):
    monkeypatch.setattr(joint_metric, "_STEPS", 1)
    parts = [moments(2, seed=k) for k in range(3)]
    H = np.kron(np.kron(parts[0], parts[1]), parts[2])
    problem, cores = state_of((False,) * 3, H)
    weighted = (problem.tensors - contracted(cores, problem.ground)) @ problem.metrics.matrices
    step = _Step(0, problem.ground.edge, right_parts(cores, problem.ground)[0], H, problem)
    step._metric = problem.metrics.matrices
    tried = (cores[0] + step.solved(weighted)[0], *cores[1:])
    expected = best_core(0, cores, problem, H, None)
    assert problem.squared_error(tried) * problem.metrics.scale == pytest.approx(expected)


# -- whole decompositions


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("limits", [{}, {"max_bond": 4}], ids=str)
def test_never_worse_than_the_plain_result_and_certificates_are_true(share, kind, limits):
    W, H = gaussian(), moments(36, 4)
    options = {"share": share, "max_sweeps": 12, **limits}
    plain = tn.shared_mpo(W, SITES, **options)
    given_W, given_H = (W, H) if kind == "numpy" else (torch.from_numpy(W), torch.from_numpy(H))
    s = tn.shared_mpo(given_W, SITES, metric=given_H, **options)
    assert s.history[0] == pytest.approx(error_in(plain, W, H), rel=1e-7)
    assert s.relative_error < 0.95 * s.history[0] or s.history[0] < 1e-12
    assert never_rises(s.history)
    assert s.history[-1] == pytest.approx(s.relative_error, rel=1e-7, abs=1e-13)
    assert s.relative_error == pytest.approx(error_in(s, W, H), rel=1e-8, abs=1e-13)
    for w, m, h, c in zip(W, dense(s), H, s.certificates, strict=True):
        assert isinstance(c, tn.MetricCertificate)
        norm = np.linalg.norm(w @ root(h))
        assert c.norm == pytest.approx(norm)
        assert c.relative_error == pytest.approx(np.linalg.norm((w - m) @ root(h)) / norm, abs=1e-9)
        plain_error = np.linalg.norm(w - m) / np.linalg.norm(w)
        assert c.frobenius_error == pytest.approx(plain_error, abs=1e-12)
    assert s.mpos[0].cores[s.share[0]] is s.mpos[3].cores[s.share[0]]


@st.composite
def problems(draw):
    layout = draw(layouts(max_size=150))
    n, dtype = draw(st.integers(1, 4)), draw(st.sampled_from(("float64", "complex128")))
    W = draw(tensors((n, *layout.shape), dtype=dtype))
    seed, rank = draw(st.integers(0, 99)), draw(st.sampled_from((1, None, layout.cols)))
    H = moments(layout.cols, draw(st.sampled_from((None, n))), rank, seed, dtype)
    if H.ndim == 3 and draw(st.booleans()):
        H[draw(st.integers(0, n - 1))] *= draw(st.sampled_from((0.0, 1e-6, 1e100)))
    sites = draw(st.sets(st.integers(0, layout.n_sites - 1), min_size=1))
    bond = draw(st.sampled_from((None, 1, 2, 5)))
    return layout, W, H, tuple(sorted(sites)), bond


@settings(max_examples=40)
@given(problems(), st.booleans())
def test_any_sites_bonds_weights_and_metrics(problem, weighted):
    layout, W, H, sites, bond = problem
    if len(sites) == layout.n_sites:
        return
    weights = list(range(1, len(W) + 1)) if weighted else None
    options = {"share": sites, "max_bond": bond, "max_sweeps": 6, "weights": weights}
    plain = tn.shared_mpo(W, layout, **options)
    s = tn.shared_mpo(W, layout, metric=H, **options)
    assert never_rises(s.history)
    assert s.bond_dims == plain.bond_dims
    assert all(np.isfinite(core).all() for core in s.stacks)
    before, after = (error_in(one, W, H, weights) for one in (plain, s))
    assert after <= before * (1 + 1e-7) + 1e-7
    assert s.history[-1] == pytest.approx(after, rel=1e-5, abs=1e-7)
    size = np.abs(W).max() or 1.0
    assert np.linalg.norm(dense(s) / size) <= 110 * np.linalg.norm(W / size)


def test_two_sites_with_a_column_site_for_each_are_the_best_for_all():
    W, H = gaussian(3, rows=8, cols=10), moments(10, 3)
    s = tn.shared_mpo(W, ((8, 1), (1, 10)), share=(0,), max_bond=4, metric=H, tol=1e-9)
    spectrum = np.linalg.svd(np.concatenate(list(seen(W, H)), axis=1), compute_uv=False)
    best = np.linalg.norm(spectrum[4:]) / np.linalg.norm(spectrum)
    assert s.relative_error == pytest.approx(best, rel=1e-5)


def test_two_sites_with_one_column_site_for_all_are_the_best_in_one_metric():
    W, H = gaussian(3, rows=8, cols=10), moments(10)
    s = tn.shared_mpo(W, ((8, 1), (1, 10)), max_bond=4, metric=H, tol=1e-9)
    spectrum = np.linalg.svd(np.concatenate(list(seen(W, H)), axis=0), compute_uv=False)
    best = np.linalg.norm(spectrum[4:]) / np.linalg.norm(spectrum)
    assert s.relative_error == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_the_identity_is_the_plain_result(share):
    W = gaussian()
    plain = tn.shared_mpo(W, SITES, share=share, max_bond=6, max_sweeps=20)
    for metric in (np.eye(36), np.stack([4.0 * np.eye(36)] * 4)):
        s = tn.shared_mpo(W, SITES, share=share, max_bond=6, max_sweeps=20, metric=metric)
        assert np.array_equal(dense(s), dense(plain))
        assert s.history == plain.history
        assert s.relative_error == pytest.approx(plain.relative_error)


def test_multiples_of_the_identity_are_weights():
    W, sizes = gaussian(3), [1.0, 9.0, 0.25]
    options = {"max_bond": 6, "max_sweeps": 300, "tol": 1e-7}
    plain = tn.shared_mpo(W, SITES, weights=sizes, **options)
    s = tn.shared_mpo(W, SITES, metric=[c * np.eye(36) for c in sizes], **options)
    identity = np.eye(36)
    assert error_in(s, W, identity, sizes) == pytest.approx(
        error_in(plain, W, identity, sizes), rel=1e-2
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
def test_equal_matrices_are_exact(dtype):
    W = np.concatenate([gaussian(1).astype(dtype)] * 3)
    H = moments(36, 3).astype("float32" if dtype == "float16" else dtype)
    s = tn.shared_mpo(W, SITES, metric=H)
    assert max(c.relative_error for c in s.certificates) <= tolerance_of(dtype, 3)
    assert s.converged
    assert {core.dtype for m in s.mpos for core in m.cores} == {W.dtype}


def test_a_layer_without_metric_leaves_the_cores_to_the_others():
    W, H = gaussian(3), moments(36, 3)
    H[1] = 0.0
    s = tn.shared_mpo(W, SITES, metric=H, max_bond=6)
    assert (s.certificates[1].norm, s.certificates[1].relative_error) == (0.0, 0.0)
    both = tn.shared_mpo(W[[0, 2]], SITES, metric=H[[0, 2]], max_bond=6)
    assert s.relative_error == pytest.approx(both.relative_error, rel=0.02)
    nothing = tn.shared_mpo(W, SITES, metric=0.0 * H, max_bond=6)
    assert nothing.relative_error == 0.0
    assert np.array_equal(dense(nothing), dense(tn.shared_mpo(W, SITES, max_bond=6)))


def test_one_direction_in_each_layer_is_found_exactly():
    W, H = gaussian(3), moments(36, 3, rank=1)
    s = tn.shared_mpo(W, SITES, metric=H, max_sweeps=100, tol=1e-6)
    assert s.relative_error < 1e-4
    assert np.linalg.norm(dense(s)) < 10 * np.linalg.norm(W)


def test_scale_does_not_matter():
    W, H = gaussian(3), moments(36, 3)
    plain = tn.shared_mpo(W, SITES, metric=H, max_sweeps=10)
    for factor in (1e-140, 1e120):
        for scaled in ((W * factor, H), (W, H * factor)):
            s = tn.shared_mpo(scaled[0], SITES, metric=scaled[1], max_sweeps=10)
            assert s.relative_error == pytest.approx(plain.relative_error, rel=1e-5)
    norm = plain.certificates[0].norm
    assert s.certificates[0].norm == pytest.approx(norm * math.sqrt(factor))


def test_groups_are_calls_of_their_own():
    W, H = gaussian(5), moments(36, 5)
    options = {"max_sweeps": 9, "max_bond": 6}
    both = tn.shared_mpo(W, SITES, groups=[[4, 0], [1, 3, 2]], metric=H, **options)
    for group in both.groups:
        alone = tn.shared_mpo(W[list(group)], SITES, metric=H[list(group)], **options)
        for k, m in zip(group, alone.mpos, strict=True):
            assert np.allclose(dense(both)[k], m.to_matrix(), rtol=1e-4, atol=1e-6)
    assert both.relative_error == pytest.approx(error_in(both, W, H))


def test_single_precision_is_computed_as_double():
    W, H = gaussian(3), moments(36, 3)
    wide = tn.shared_mpo(W, SITES, metric=H, max_sweeps=10)
    narrow = tn.shared_mpo(W.astype("float32"), SITES, metric=H.astype("float32"), max_sweeps=10)
    assert narrow.mpos[0].cores[0].dtype == "float32"
    assert narrow.relative_error == pytest.approx(wide.relative_error, rel=1e-3)


@pytest.mark.parametrize("share", ["central", "auxiliary"])
def test_libraries_agree_with_weights(share):
    W, H = gaussian(3), moments(36, 3)
    options = {"share": share, "weights": [1.0, 2.0, 0.5], "max_sweeps": 8, "max_bond": 6}
    one = tn.shared_mpo(W, SITES, metric=H, **options)
    other = tn.shared_mpo(torch.from_numpy(W), SITES, metric=list(torch.from_numpy(H)), **options)
    assert other.history == pytest.approx(one.history, rel=1e-4)


def test_sweeps_are_told_and_stopped():
    W, H, seen_errors = gaussian(3), moments(36, 3), []
    options = {"starts": 1, "max_sweeps": 7, "tol": 0.0, "metric": H}
    s = tn.shared_mpo(W, SITES, progress=lambda *a: seen_errors.append(a), **options)
    assert [number for number, _ in seen_errors] == list(range(1, 15))
    assert seen_errors[-1][1] == s.history[-1]
    assert s.sweeps == 7
    plain = tn.shared_mpo(W, SITES, starts=1, max_sweeps=3)
    stopped = tn.shared_mpo(W, SITES, progress=lambda sweep, _: sweep == 3, **options)
    assert np.allclose(dense(stopped), dense(plain), atol=1e-12)
    later = tn.shared_mpo(W, SITES, progress=lambda sweep, _: sweep == 9, **options)
    assert later.sweeps == 2
    near = tn.shared_mpo(W, SITES, metric=H, rtol=0.5, max_bond=8)
    assert near.relative_error <= 0.5 < near.history[-2]


def test_saved_and_printed(tmp_path):
    s = tn.shared_mpo(gaussian(), SITES, metric=moments(36), max_sweeps=3)
    tn.save(s.mpos, tmp_path / "shared.safetensors")
    again = tn.load(tmp_path / "shared.safetensors")[1].certificate
    assert isinstance(again, tn.MetricCertificate)
    assert again.relative_error == s.certificates[1].relative_error
    assert "in the metric" in str(again)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda H: H[:3], "ShapeError", r"metric must be one matrix \(36, 36\), or 4, .* got 3 of"),
        (lambda H: [], "ShapeError", r"one for each of Ws, got 0 of them"),
        (lambda H: H[0][:5], "ShapeError", r"metric must have shape \(36, 36\), .* got shape \(5"),
        (lambda H: H[0, 0], "ShapeError", r"metric must have 2 dimensions, got shape \(36,\)"),
        (lambda H: [*H[:3], H[3, :2]], "ShapeError", r"metric\[3\] must have shape \(36, 36\)"),
        (lambda H: H - 9.0 * np.eye(36), "OptionError", r"metric\[0\] must be positive semidef"),
        (np.triu, "OptionError", r"metric\[0\] must be symmetric up to rounding"),
        (lambda H: np.where(H[2, 1, 1] == H, np.nan, H), "NonFiniteError", r"metric\[2\] .*\(1, 1"),
        (lambda H: H + 0j, "DTypeError", r"metric\[0\] must be real where W is"),
        (torch.from_numpy, "ArrayTypeError", r"metric\[0\] must be of the library of"),
        (lambda H: "H", "ArrayTypeError", "metric must be"),
    ],
)
def test_messages(change, error, message):
    with pytest.raises(getattr(tn.errors, error), match=message):
        tn.shared_mpo(gaussian(), SITES, metric=change(moments(36, 4)))
