"""Many matrices at once: equal to one by one where that is possible, with common bonds."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import batch as batches
from tensornet import stack_bonds
from tensornet.backend import backend_of
from tensornet.checks import array
from tensornet.single import Request
from tensornet.testing import (
    assert_close,
    assert_isometric,
    layouts,
    matrices,
    options,
    relative_error,
    tolerance_of,
)

torch = pytest.importorskip("torch")

SITES = ((2, 3, 4), (3, 4, 3))
GAUGES = ("central", "left", "right", "symmetric", "identity")
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
DEVICES = ("numpy", "cpu", CUDA)


def gaussian(batch=4, dtype="float64", seed=0):
    W = np.random.default_rng(seed).normal(size=(batch, 24, 36))
    return W.astype(dtype)


def put(W, device):
    return W if device == "numpy" else torch.from_numpy(W).to(device)


def host(a):
    return a if isinstance(a, np.ndarray) else a.cpu().numpy()


def rank_deficient(batch=3, dtype="float64"):
    rng = np.random.default_rng(5)

    def term():
        a, b, c = (rng.normal(size=size) for size in ((2, 3), (3, 4), (4, 3)))
        return np.kron(np.kron(a, b), c)

    W = np.stack([term() + term() for _ in range(batch)])
    return W.astype(dtype)


def decompose(W, layout, *, stacked, **asked):
    """Return the batch by one way or the other, whatever is faster."""
    request = Request(
        asked.get("max_bond"), asked.get("bonds"), asked.get("rtol"), asked.get("gauge", "central")
    )
    backend, checked = array("W", W, 3)
    return batches.decompose_batch(checked, layout, request, backend, stacked)


def errors_of(batch, W):
    rebuilt = batch.to_matrices()
    return [relative_error(rebuilt[k], W[k]) for k in range(len(W))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "limits",
    [{}, {"max_bond": 5}, {"bonds": [4, 7]}, {"bonds": "full", "max_bond": 6}, {"rtol": 0.3}],
    ids=str,
)
def test_the_batch_is_the_loop_where_bonds_agree(device, dtype, limits):
    W = put(gaussian(dtype=dtype), device)
    batch = tn.mpo(W, SITES, **limits)
    assert isinstance(batch, tn.MPOBatch)
    assert batch.shape == (4, 24, 36)
    assert {core.dtype for core in batch.cores} == {W.dtype}
    for k, m in enumerate(batch):
        alone = tn.mpo(W[k], SITES, bonds=batch.bond_dims)
        assert alone.bond_dims == m.bond_dims == batch.bond_dims
        assert_close(m.to_matrix(), alone.to_matrix(), 200 * tolerance_of(dtype))
        expected = alone.certificate.relative_error
        assert m.certificate.relative_error == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("gauge", GAUGES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_a_batch_of_one_is_the_single_one(gauge, dtype):
    W = gaussian(1, dtype)
    for limits in ({}, {"max_bond": 4}, {"rtol": 0.2}):
        if gauge == "identity" and limits:
            continue
        batch, alone = (
            tn.mpo(W, SITES, gauge=gauge, **limits),
            tn.mpo(W[0], SITES, gauge=gauge, **limits),
        )
        assert batch.bond_dims == alone.bond_dims
        assert batch.center == alone.center
        assert_close(batch.to_matrices()[0], alone.to_matrix(), 2 * tolerance_of(dtype))
        error, expected = batch.certificates[0].relative_error, alone.certificate.relative_error
        assert error == pytest.approx(expected, rel=1e-4, abs=1e-7)


@st.composite
def cases(draw):
    layout = draw(layouts(max_size=200))
    dtype = draw(st.sampled_from(("float16", "float32", "float64", "complex128")))
    batch = draw(st.integers(1, 4))
    W = np.stack([draw(matrices(layout, dtype=dtype)) for _ in range(batch)])
    return layout, W, draw(options(layout))


@given(cases(), st.booleans(), st.sampled_from([1, 500, 2**26]))
def test_certificates_are_the_dense_errors(case, stacked, at_once):
    layout, W, limits = case
    narrow = W.dtype == np.float16
    if narrow and limits.get("rtol", 1.0) < 1e-2:
        limits["rtol"] = 0.1
    elif limits.get("rtol", 1.0) < 1e-4:
        limits["rtol"] = 1e-4
    before = W.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_bonds, "AT_ONCE", at_once)
        batch = decompose(W, layout, stacked=stacked, **limits)
    assert np.array_equal(W, before)
    slack = 3 * tolerance_of(W.dtype.name, layout.n_sites)
    for error, certificate in zip(errors_of(batch, W), batch.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, rel=1e-3, abs=slack)
        if "rtol" in limits:
            assert error <= limits["rtol"] * (1 + 1e-6)
    if "rtol" not in limits:
        needed = [tn.mpo(M, layout, **limits).bond_dims for M in W]
        assert batch.bond_dims == tuple(max(b) for b in zip(*needed, strict=True))
    for m in batch:
        for k, core in enumerate(m.cores if batch.center is not None else ()):
            if k != batch.center:
                assert_isometric(core, "left" if k < batch.center else "right")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_most_demanding_matrix_decides(device, dtype, stacked):
    W = rank_deficient(dtype=dtype)
    W[1] = 0.0
    W[2] *= 1e-25
    layout = tn.matrix_layout(24, 36, SITES)
    low = decompose(put(W, device), layout, stacked=stacked)
    assert low.bond_dims == tn.mpo(W[0], SITES).bond_dims
    assert max(low.bond_dims) < max(layout.structural_bonds())
    W = np.concatenate([W, gaussian(1, dtype)])
    full = decompose(put(W, device), layout, stacked=stacked)
    assert full.bond_dims == layout.structural_bonds()
    for batch in (low, full):
        for k, m in enumerate(batch):
            assert_close(host(m.to_matrix()), W[k])
            assert m.certificate.relative_error < tolerance_of(dtype, 3)
            # A device's eigenvectors are orthogonal to a few more roundings than the host's.
            atol = 1e-13 if dtype in ("float64", "complex128") else None
            assert_isometric(m.cores[0], "left", atol)
            assert_isometric(m.cores[2], "right", atol)
    assert full.certificates[1].norm == 0.0


@pytest.mark.parametrize("device", DEVICES)
def test_repeated_singular_values(device):
    W = np.stack([np.eye(16), np.eye(16)[::-1], np.ones((16, 16))])
    batch = tn.mpo(put(W, device), ((4, 4), (4, 4)), max_bond=7)
    for error, certificate in zip(errors_of(batch, W), batch.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_tolerance_is_kept_by_all(stacked):
    rng = np.random.default_rng(1)
    decaying = np.exp(-np.arange(24.0)[:, None] * np.arange(36.0) / 100)
    W = np.stack([decaying * 1e8, rng.normal(size=(24, 36)) * 1e-8, decaying])
    layout = tn.matrix_layout(24, 36, SITES)
    for at_once in (1, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stack_bonds, "AT_ONCE", at_once)
            batch = decompose(W, layout, stacked=stacked, rtol=0.1)
        assert max(errors_of(batch, W)) <= 0.1
        assert batch.bond_dims == tn.mpo(W[1], SITES, rtol=0.1).bond_dims
        assert batch.certificates[0].relative_error < 0.05


def test_caps_that_forbid_the_tolerance_name_the_matrix():
    W = np.stack([np.ones((24, 36)), gaussian(1)[0]])
    with pytest.raises(tn.errors.ToleranceError, match=r"^W\[1\]: rtol must be at least 0\.\d+ "):
        tn.mpo(W, SITES, max_bond=3, rtol=0.1)


def test_an_overdrawn_budget_is_shared_again():
    # The capped bond needs more than its share; the others leave enough.
    rng = np.random.default_rng(0)
    W = np.stack([rng.normal(size=(24, 36)) for _ in range(2)])
    alone = [tn.mpo(M, SITES, bonds=[6, 9], rtol=0.6) for M in W]
    batch = tn.mpo(W, SITES, bonds=[6, 9], rtol=0.6)
    capped = tn.mpo(W, SITES, bonds=[4, 9], rtol=0.62)
    assert max(m.certificate.relative_error for m in alone) <= 0.6
    assert max(errors_of(batch, W)) <= 0.6
    assert max(errors_of(capped, W)) <= 0.62
    assert capped.bond_dims[1] <= 4


def test_a_budget_holds_for_every_matrix_and_is_shared_fairly():
    rng = np.random.default_rng(1)
    decaying = np.exp(-np.arange(24.0)[:, None] * np.arange(36.0) / 100)
    W = np.stack([1e-6 * rng.normal(size=(24, 36)), decaying, np.zeros((24, 36))])
    batch = tn.mpo(W, SITES, max_params=400)
    assert batch.n_params <= 3 * 400
    assert max(errors_of(batch, W)[1:]) < 0.01
    best = min(
        sum(c.relative_error**2 for c in tn.mpo(W, SITES, bonds=[a, b]).certificates)
        for a in range(1, 7)
        for b in range(1, 13)
        if 6 * a + 12 * a * b + 12 * b <= 400 and b <= 12 * a
    )
    found = sum(c.relative_error**2 for c in batch.certificates)
    # The tails of the uncut unfoldings are a bound, not the error itself.
    assert found <= best * 1.25
    # One needs the first bond, the other the second, whatever their sizes.
    early = np.kron(rng.normal(size=(6, 12)), rng.normal(size=(4, 3)))
    late = np.kron(rng.normal(size=(2, 3)), rng.normal(size=(12, 12)))
    bonds = [
        tn.mpo(np.stack([early * a, late * b]), SITES, max_params=300).bond_dims
        for a, b in ((1, 1), (1e6, 1), (1, 1e6))
    ]
    assert bonds[0] == bonds[1] == bonds[2]
    alone = tn.mpo(W[:1], SITES, max_params=400)
    assert alone.bond_dims == tn.mpo(W[0], SITES, max_params=400).bond_dims
    with pytest.raises(tn.errors.OptionError, match="max_params must be at least 30"):
        tn.mpo(W, SITES, max_params=10)


@pytest.mark.parametrize("device", DEVICES)
def test_padded_matrices(device):
    W = np.random.default_rng(3).normal(size=(3, 23, 31))
    batch = tn.mpo(put(W, device), 3, max_bond=5)
    assert batch.layout.padded
    for error, certificate in zip(errors_of(batch, W), batch.certificates, strict=True):
        assert certificate.relative_error == pytest.approx(error, rel=1e-10)
        assert certificate.padding_share is not None


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (np.zeros((0, 4, 4)), r"W must have at least one element, got shape \(0, 4, 4\)"),
        (np.zeros((2, 4, 0)), r"W must have at least one element, got shape \(2, 4, 0\)"),
        (np.zeros((2, 2, 4, 4)), r"W must have 2 dimensions, got shape \(2, 2, 4, 4\) with 4"),
    ],
)
def test_sizes_that_are_no_batch(W, message):
    with pytest.raises(tn.errors.ShapeError, match=message):
        tn.mpo(W, 2)


def test_bad_values_are_found_in_the_batch():
    W = gaussian()
    W[2, 3, 4] = np.nan
    with pytest.raises(tn.errors.NonFiniteError, match=r"1 non-finite value, .* index \(2, 3, 4\)"):
        tn.mpo(W, SITES)
    with pytest.raises(tn.errors.DTypeError, match="int64"):
        tn.mpo(np.ones((2, 4, 4), dtype=int))
    with pytest.raises(tn.errors.OptionError, match="differentiable must be left out for a 3-D W"):
        tn.mpo(torch.ones(2, 4, 4), 2, differentiable=True)
    with pytest.raises(tn.errors.OptionError, match="bonds must not be 'full' with rtol"):
        tn.mpo(gaussian(), SITES, bonds="full", rtol=0.1)
    with pytest.raises(tn.errors.RangeError, match="core 1 must fit the range of float16"):
        tn.mpo(np.full((2, 24, 36), 60000.0, dtype="float16"), SITES)


def test_strides_and_views():
    W = gaussian(8)
    view = W[::-2].transpose(0, 2, 1)
    assert_close(tn.mpo(view, 3).to_matrices(), view)
    assert_close(
        tn.mpo(torch.from_numpy(W).permute(0, 2, 1), 3).to_matrices().numpy(), W.transpose(0, 2, 1)
    )


def test_one_site_and_one_element():
    W = gaussian(3)
    batch = tn.mpo(W, 1)
    full = batch.to_matrices()
    assert_close(full, W)
    full[:] = 0.0
    assert_close(batch.to_matrices(), W)
    assert tn.mpo(np.array([[[2.0]]]), 2).to_matrices().tolist() == [[[2.0]]]


class TestValue:
    batch = tn.mpo(gaussian(dtype="float32"), SITES, max_bond=5)

    def test_properties(self):
        assert len(self.batch) == 4
        assert self.batch.row_dims == (2, 3, 4)
        assert self.batch.col_dims == (3, 4, 3)
        assert self.batch.bond_dims == (1, 5, 5, 1)
        assert self.batch.n_sites == 3
        assert self.batch.dtype == np.float32
        assert self.batch.n_params == 4 * (30 + 300 + 60)
        assert self.batch.central is self.batch.cores[1]
        assert self.batch.auxiliary == (self.batch.cores[0], self.batch.cores[2])
        assert self.batch.account().unique == self.batch.n_params
        assert self.batch.account().dense == 4 * 24 * 36

    def test_prints(self):
        assert repr(self.batch).startswith(
            "MPOBatch(4 of 24x36, bonds [5, 5], float32, 1,560 parameters (0.4514 of dense), "
            "largest relative error 0."
        )
        assert "larger" in repr(tn.mpo(gaussian(), SITES))

    def test_indexing(self):
        assert np.shares_memory(self.batch[1].cores[0], self.batch.cores[0])
        assert self.batch[-1].certificate is self.batch.certificates[3]
        assert [m.certificate for m in self.batch] == list(self.batch.certificates)
        part = self.batch[::-2]
        assert len(part) == 2
        assert_close(part.to_matrices(), self.batch.to_matrices()[::-2])
        for index in (4, -5):
            with pytest.raises(tn.errors.ShapeError, match="index must be"):
                self.batch[index]
        with pytest.raises(tn.errors.ShapeError, match=r"batch\[...\] must keep at least one"):
            self.batch[2:2]

    def test_error_of_all(self):
        W = gaussian(dtype="float32")
        expected = relative_error(self.batch.to_matrices(), W)
        assert self.batch.relative_error == pytest.approx(expected, rel=1e-6)
        assert tn.mpo(np.zeros((2, 4, 4)), 2).relative_error == 0.0

    def test_immutable(self):
        with pytest.raises(AttributeError, match="MPOBatch is immutable; cores cannot be set"):
            self.batch.cores = ()
        with pytest.raises(AttributeError, match="cannot be deleted"):
            del self.batch.cores
        with pytest.raises(ValueError, match="read-only"):
            self.batch.cores[0][:] = 0.0
        with pytest.raises(tn.errors.ArrayTypeError, match=r"Call .to_matrices\(\)"):
            np.asarray(self.batch)
        with pytest.raises(tn.errors.ArrayTypeError, match="must be made from matrices"):
            tn.MPOBatch()

    def test_copies_of_a_batch(self):
        again = pickle.loads(pickle.dumps(self.batch))
        assert_close(again.to_matrices(), self.batch.to_matrices(), 1e-12)
        assert len(again.certificates) == 4

    def test_torch_cores_changed_in_place(self):
        batch = tn.mpo(torch.from_numpy(gaussian()), SITES, max_bond=5)
        assert batch.center == 1
        batch.central.mul_(2.0)
        assert batch.certificates is batch.center is batch.relative_error is None
        assert batch[0].certificate is None
        assert batch[:2].certificates is None
        assert "error" not in repr(batch)
        trained = tn.mpo(torch.from_numpy(gaussian()), SITES)
        trained.central.requires_grad_()
        assert trained.certificates is None

    def test_half_precision(self):
        W = torch.from_numpy(gaussian()).bfloat16()
        batch = tn.mpo(W, SITES)
        assert batch.to_matrices().dtype == torch.bfloat16
        assert max(errors_of(batch, W)) < tolerance_of("bfloat16", 3)


def test_no_convergence_falls_back(monkeypatch):
    W, layout = gaussian(3), tn.matrix_layout(24, 36, SITES)
    expected = decompose(W, layout, stacked=True, max_bond=5)
    tl, true_eigh = backend_of(W).tl, np.linalg.eigh

    def eigh(a):
        if a.ndim == 3:
            raise np.linalg.LinAlgError("no convergence")
        return true_eigh(a)

    monkeypatch.setattr(type(tl), "eigh", staticmethod(eigh), raising=False)
    monkeypatch.setattr(tl, "eigh", eigh, raising=False)
    found = decompose(W, layout, stacked=True, max_bond=5)
    assert_close(found.to_matrices(), expected.to_matrices(), 1e-10)
