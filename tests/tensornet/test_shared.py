"""Joint decompositions: shared cores, errors that never rise, certificates that are the truth."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet import joint, joint_fit
from tensornet.backend import backend_of
from tensornet.testing import assert_close, layouts, relative_error, tolerance_of

torch = pytest.importorskip("torch")

SITES = ((2, 3, 4), (3, 4, 3))
SHARES = ("central", "auxiliary", ("central",), (1, 2), (0,), (0, 2))


def gaussian(n=4, dtype="float64", seed=0, rows=24, cols=36):
    return np.random.default_rng(seed).normal(size=(n, rows, cols)).astype(dtype)


def alike(n=4, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 36)) + noise * rng.normal(size=(n, 24, 36))


def errors_of(shared, W):
    return [relative_error(m.to_matrix(), M) for m, M in zip(shared.mpos, W, strict=True)]


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("limits", [{}, {"max_bond": 4}, {"bonds": [3, 8]}], ids=str)
def test_certificates_are_the_dense_errors_and_history_never_rises(share, kind, limits):
    W = gaussian() if kind == "numpy" else torch.from_numpy(gaussian())
    s = tn.shared_mpo(W, SITES, share=share, max_sweeps=12, **limits)
    for error, certificate in zip(errors_of(s, W), s.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, rel=1e-9, abs=1e-13)
        assert certificate.lower_bound == 0.0 <= certificate.upper_bound
    assert all(after <= before for before, after in zip(s.history, s.history[1:], strict=False))
    assert s.relative_error == pytest.approx(s.history[-1], rel=1e-7, abs=1e-12)
    assert s.relative_error == pytest.approx(relative_error(_all(s), W), rel=1e-9, abs=1e-12)


def _all(s):
    matrices = [m.to_matrix() for m in s.mpos]
    return torch.stack(matrices) if isinstance(matrices[0], torch.Tensor) else np.stack(matrices)


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_shared_cores_are_the_same_object(share):
    s = tn.shared_mpo(alike(5), SITES, share=share, groups=[[0, 3], [1, 2, 4]], max_sweeps=3)
    for site in range(3):
        users = [m.cores[site] for m in s.mpos]
        if site in s.share:
            assert users[0] is users[3]
            assert users[1] is users[2] is users[4]
            assert users[0] is not users[1]
            assert len(s.stacks[site]) == 2
        else:
            assert len({id(core) for core in users}) == 5
            assert len(s.stacks[site]) == 5
    sizes = [math.prod(stack.shape) for stack in s.stacks]
    assert s.account().unique == sum(sizes)
    assert s.account().shared == sum(sizes[k] for k in s.share)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("share", ["central", (1, 2), "auxiliary"], ids=str)
def test_equal_matrices_are_exact(dtype, share):
    W = gaussian(1, dtype)
    s = tn.shared_mpo(np.concatenate([W] * 3), SITES, share=share)
    assert s.history[0] == pytest.approx(0.0, abs=1e-14)
    assert s.converged
    assert max(c.relative_error for c in s.certificates) <= tolerance_of(dtype, 3)
    assert {core.dtype for m in s.mpos for core in m.cores} == {W.dtype}
    assert_close(s.mpos[2].to_matrix(), W[0])


def test_multiples_of_one_matrix_are_exact():
    W = gaussian(1)[0] * np.array([1.0, -2.0, 0.0, 1e-3])[:, None, None]
    s = tn.shared_mpo(W, SITES, tol=0.0, max_sweeps=60)
    assert s.relative_error < 1e-7
    assert s.certificates[2].norm == 0.0


@st.composite
def problems(draw):
    layout = draw(layouts(max_size=150))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    W = rng.normal(size=(n, *layout.shape))
    if draw(st.booleans()):
        W[draw(st.integers(0, n - 1))] = 0.0
    if draw(st.booleans()):
        W = W + 1j * rng.normal(size=W.shape)
    sites = draw(st.sets(st.integers(0, layout.n_sites - 1), min_size=1))
    bond = draw(st.sampled_from((None, 1, 2, 5)))
    return layout, W, tuple(sorted(sites)), bond


@settings(max_examples=40)
@given(problems(), st.booleans())
def test_any_sites_bonds_and_weights(problem, weighted):
    layout, W, sites, bond = problem
    if len(sites) == layout.n_sites:
        with pytest.raises(tn.errors.OptionError, match="at least one and not all of the sites"):
            tn.shared_mpo(W, layout, share=sites)
        return
    weights = list(range(1, len(W) + 1)) if weighted else None
    s = tn.shared_mpo(W, layout, share=sites, max_bond=bond, max_sweeps=8, weights=weights)
    assert all(after <= before for before, after in zip(s.history, s.history[1:], strict=False))
    for error, certificate in zip(errors_of(s, W), s.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, rel=1e-8, abs=1e-12)
    caps = layout.structural_bonds(bond)
    assert s.bond_dims == caps
    if not layout.padded:
        squares = [np.linalg.norm(M) ** 2 for M in W]
        scale = weights or [1] * len(W)
        own = [c.relative_error**2 * q for c, q in zip(s.certificates, squares, strict=True)]
        total = sum(w * q for w, q in zip(scale, squares, strict=True)) or 1.0
        expected = math.sqrt(sum(w * e for w, e in zip(scale, own, strict=True)) / total)
        assert s.history[-1] == pytest.approx(expected, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("limits", [{}, {"max_bond": 5}], ids=str)
def test_never_worse_than_the_mean_matrix(limits):
    W = alike(5, noise=1.0)
    mean = tn.mpo(W.mean(axis=0), SITES, **limits).to_matrix()
    s = tn.shared_mpo(W, SITES, **limits)
    assert s.relative_error < np.linalg.norm(W - mean) / np.linalg.norm(W)


def test_the_order_of_matrices_does_not_matter():
    W, order = gaussian(4), [2, 0, 3, 1]
    a = tn.shared_mpo(W, SITES, max_sweeps=20)
    b = tn.shared_mpo(W[order], SITES, max_sweeps=20)
    found = [a.certificates[k].relative_error for k in order]
    assert [c.relative_error for c in b.certificates] == pytest.approx(found, rel=1e-6)


def test_two_groups_are_two_calls():
    W = gaussian(5)
    both = tn.shared_mpo(W, SITES, groups=[[4, 0], [1, 3, 2]], max_sweeps=9)
    for group in both.groups:
        alone = tn.shared_mpo(W[list(group)], SITES, max_sweeps=9)
        for k, m in zip(group, alone.mpos, strict=True):
            assert np.array_equal(both.mpos[k].central, m.central)
            assert_close(both.mpos[k].to_matrix(), m.to_matrix(), 1e-13)
    runs = tn.shared_mpo(W, SITES, groups=2, max_sweeps=2)
    assert runs.groups == ((0, 1, 2), (3, 4))
    assert "2 groups" in repr(runs)


def test_one_matrix_is_its_own_group():
    s = tn.shared_mpo(gaussian(1), SITES)
    assert s.relative_error < 1e-14
    assert len(s) == 1


def test_common_sides_are_nearly_the_best_for_all():
    W = alike(4)
    s = tn.shared_mpo(W, SITES, share="auxiliary", bonds=[4, 5])
    own = [tn.mpo(M, SITES, bonds=[4, 5]).certificate.relative_error for M in W]
    # The tensor of all matrices, with the index of the matrix in the central site.
    folded = np.stack([tn.MatrixLayout(*SITES).fold(M) for M in W])
    fused = folded.transpose(1, 0, 2, 3).reshape(6, -1, 12)
    start = tn.tt(fused, bonds=[4, 5]).certificate.relative_error
    assert min(own) - 1e-12 <= s.relative_error <= start * (1 + 1e-12)
    assert s.history[0] == pytest.approx(start)


def test_weights_shift_the_error():
    W = gaussian(2)
    even = tn.shared_mpo(W, SITES)
    first = tn.shared_mpo(W, SITES, weights=[100.0, 1.0])
    assert first.certificates[0].relative_error < 0.5 * even.certificates[0].relative_error
    same = tn.shared_mpo(W, SITES, weights=[3.0, 3.0])
    assert same.relative_error == pytest.approx(even.relative_error, rel=1e-9)


def test_scale_does_not_matter():
    W = gaussian(3)
    plain = tn.shared_mpo(W, SITES, max_sweeps=10)
    for factor in (1e-150, 1e140):
        scaled = tn.shared_mpo(W * factor, SITES, max_sweeps=10)
        assert scaled.relative_error == pytest.approx(plain.relative_error, rel=1e-5)
    assert tn.shared_mpo(W * 0.0, SITES).relative_error == 0.0


def test_overrelaxed_sweeps_are_much_faster():
    W = np.random.default_rng(0).normal(size=(6, 64, 64))
    sites = ((4, 4, 4), (4, 4, 4))
    fast = tn.shared_mpo(W, sites, max_sweeps=40, starts=1, tol=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_fit, "_OMEGA", 1.0)
        plain = tn.shared_mpo(W, sites, max_sweeps=120, starts=1, tol=0.0)
    assert fast.relative_error < plain.relative_error


def test_stopping():
    W = gaussian()
    assert tn.shared_mpo(W, SITES, max_sweeps=0).sweeps == 0
    assert tn.shared_mpo(W, SITES, max_sweeps=7, starts=1, tol=0.0).sweeps == 7
    short = tn.shared_mpo(W, SITES, max_sweeps=3)
    assert not short.converged
    assert "not converged" in repr(short)
    done = tn.shared_mpo(W, SITES, max_sweeps=300, tol=1e-3)
    assert done.converged
    assert done.sweeps < 200
    near = tn.shared_mpo(alike(noise=0.1), SITES, rtol=0.08, starts=1)
    assert near.converged
    assert near.relative_error <= 0.08 < near.history[-2]


def test_more_starts_are_hardly_worse_and_repeatable():
    W = gaussian(3)
    errors = [
        tn.shared_mpo(W, SITES, max_bond=4, starts=n, max_sweeps=400, tol=1e-6).relative_error
        for n in (1, 6)
    ]
    # Few sweeps tell which start is best up to a part of a percent.
    assert errors[1] <= errors[0] * (1 + 5e-3)
    again = tn.shared_mpo(W, SITES, max_bond=4, starts=6, max_sweeps=400, tol=1e-6)
    assert again.relative_error == errors[1]


def test_starts_that_are_one_point_are_swept_once():
    seen = []
    full = gaussian(3)
    alone = tn.shared_mpo(full, SITES, starts=1, max_sweeps=40, tol=0.0)
    three = tn.shared_mpo(
        full, SITES, starts=3, max_sweeps=50, tol=0.0, progress=lambda *args: seen.append(args)
    )
    assert len(seen) == 50
    # Five sweeps of each of two copies, and all that are left for the one.
    assert three.history[:41] == alone.history


def test_progress(caplog):
    seen = []
    W = gaussian()
    tn.shared_mpo(W, SITES, max_sweeps=12, progress=lambda *args: seen.append(args))
    assert [sweep for sweep, _ in seen] == list(range(1, 13))
    errors = [error for _, error in seen]
    assert errors[0] >= errors[-1] > 0.0
    stopped = tn.shared_mpo(W, SITES, progress=lambda sweep, _: sweep == 4)
    assert stopped.sweeps <= 4
    assert not stopped.converged
    with caplog.at_level(logging.INFO, logger="tensornet"):
        tn.shared_mpo(W, SITES, max_sweeps=2, progress=True)
    assert "joint decomposition: sweep 2, relative error 0." in caplog.text


def test_an_interruption_passes_through():
    def interrupt(sweep, error):
        raise KeyboardInterrupt

    W = gaussian()
    before = W.copy()
    with pytest.raises(KeyboardInterrupt):
        tn.shared_mpo(W, SITES, progress=interrupt)
    assert np.array_equal(W, before)


def test_sequences_of_matrices():
    W = gaussian(3)
    a = tn.shared_mpo(list(W), SITES, max_sweeps=2)
    b = tn.shared_mpo(tuple(torch.from_numpy(M) for M in W), SITES, max_sweeps=2)
    assert_close(a.mpos[1].to_matrix(), b.mpos[1].to_matrix().numpy(), 1e-9)
    assert [m.shape for m in a] == [(24, 36)] * 3
    assert a[2] is a.mpos[2]


def test_the_input_stays_and_the_cores_are_sealed():
    W = gaussian()
    before = W.copy()
    s = tn.shared_mpo(W, SITES, max_sweeps=2)
    assert np.array_equal(W, before)
    with pytest.raises(ValueError, match="read-only"):
        s.stacks[1][:] = 0.0
    with pytest.raises(AttributeError):
        s.share = (0,)


def test_torch_cores_changed_in_place():
    s = tn.shared_mpo(torch.from_numpy(gaussian()), SITES, max_sweeps=2)
    s.mpos[0].central.mul_(2.0)
    assert s.certificates == (None,) * 4
    assert s.relative_error is None
    assert "relative error" not in repr(s)


def test_padded_matrices():
    W = np.random.default_rng(3).normal(size=(3, 23, 31))
    s = tn.shared_mpo(W, 3, max_sweeps=6)
    for error, certificate in zip(errors_of(s, W), s.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, rel=1e-10)


def test_saved_with_the_sharing(tmp_path):
    s = tn.shared_mpo(alike(), SITES, max_sweeps=3)
    tn.save(s.mpos, tmp_path / "shared.safetensors")
    again = tn.load(tmp_path / "shared.safetensors")
    assert tn.account(again).unique == s.account().unique
    assert again[1].certificate.relative_error == pytest.approx(s.certificates[1].relative_error)


def test_prints():
    s = tn.shared_mpo(alike(), SITES, max_sweeps=3, starts=1)
    assert repr(s).startswith(
        "SharedMPO(4 of 24x36 in 1 group, sites [1] shared, bonds [6, 12], 1,584 parameters "
        "(0.4583 of dense), relative error 0."
    )
    assert repr(s.certificates[0]).startswith("SharedCertificate(relative_error=0.")
    assert "unknown, because cores are shared" in str(s.certificates[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"share": "left"}, "OptionError", "share must be one of 'central', 'auxiliary', got"),
        ({"share": ()}, "OptionError", r"share must name at least one and not all .* 0 to 2, got"),
        ({"share": (0, 1, 2)}, "OptionError", r"not all of the sites 0 to 2, got \[0, 1, 2\]"),
        ({"share": (3,)}, "OptionError", "name sites from 0 to 2, got 3"),
        ({"share": 1}, "OptionError", "share must be 'central', 'auxiliary' or a sequence"),
        ({"share": (-1,)}, "OptionError", "share must be an integer of at least 0, got -1"),
        ({"groups": 5}, "ShapeError", "groups must be at most the number of matrices 4, got 5"),
        ({"groups": 0}, "ShapeError", "groups must be an integer of at least 1, got 0"),
        ({"groups": [[0, 1], [1, 2, 3]]}, "ShapeError", "hold each of the matrices 0 to 3 once"),
        ({"groups": [[0, 1, 2, 3], []]}, "ShapeError", "hold each of the matrices 0 to 3 once"),
        (
            {"weights": [1, 2]},
            "OptionError",
            "weights must have 4 values, one for each matrix, got 2",
        ),
        (
            {"weights": [1, 2, 0, 1]},
            "OptionError",
            r"weights\[2\] must be a positive number, got 0",
        ),
        ({"tol": -0.1}, "ToleranceError", r"tol must be in \[0, 1\), got -0.1"),
        ({"tol": "no"}, "ToleranceError", "tol must be a number, got 'no'"),
        ({"rtol": 0.0}, "ToleranceError", r"rtol must be in \(0, 1\), got 0.0"),
        ({"max_sweeps": -1}, "OptionError", "max_sweeps must be an integer of at least 0, got -1"),
        ({"starts": 0}, "OptionError", "starts must be an integer of at least 1, got 0"),
        ({"progress": 3}, "OptionError", "progress must be None, True or a callable, got 3"),
        ({"max_bond": 0}, "BondError", "max_bond must be an integer of at least 1, got 0"),
    ],
)
def test_messages(options, error, message):
    with pytest.raises(getattr(tn.errors, error), match=message):
        tn.shared_mpo(gaussian(), SITES, **options)


def test_messages_about_the_matrices():
    with pytest.raises(tn.errors.ShapeError, match="Ws must hold at least one matrix"):
        tn.shared_mpo([])
    with pytest.raises(tn.errors.ShapeError, match=r"\(4, 4\) and \(4, 5\)"):
        tn.shared_mpo([np.ones((4, 4)), np.ones((4, 5))])
    with pytest.raises(tn.errors.ShapeError, match="float32 and float64"):
        tn.shared_mpo([np.ones((4, 4)), np.ones((4, 4), dtype="float32")])
    with pytest.raises(tn.errors.ShapeError, match="Ws must have 3 dimensions"):
        tn.shared_mpo(np.ones((4, 4)))
    W = gaussian()
    W[1, 2, 3] = np.inf
    with pytest.raises(tn.errors.NonFiniteError, match=r"the first at index \(1, 2, 3\)"):
        tn.shared_mpo(W)
    with pytest.raises(tn.errors.RangeError, match="core 1 must fit the range of float16"):
        tn.shared_mpo(np.full((2, 24, 36), 60000.0, dtype="float16"), SITES, max_bond=1)


def test_a_common_core_tends_to_the_dense_least_squares_solution(monkeypatch):
    rng = np.random.default_rng(2)
    sides = rng.normal(size=(3, 1, 4, 3)), rng.normal(size=(3, 2, 5, 1))
    tensors = rng.normal(size=(3, 4, 6, 5))
    problem = joint.Joint(tensors, (False, True, False), None, backend_of(tensors))
    left, right = sides[0][:, 0], sides[1][..., 0]
    step = joint._Step(1, left, right, problem)
    operator = np.concatenate([np.kron(left[k], right[k].T) for k in range(3)])
    seen = np.concatenate([tensors[k].transpose(0, 2, 1).reshape(20, 6) for k in range(3)])
    best = np.linalg.lstsq(operator, seen, rcond=None)[0].reshape(3, 2, 6).transpose(0, 2, 1)
    # Conjugate gradients end after as many steps as there are unknowns in each slice.
    monkeypatch.setattr(joint, "_STEPS", 6)
    assert_close(step.solved(np.zeros((1, 3, 6, 2)))[0], best, 1e-9)
