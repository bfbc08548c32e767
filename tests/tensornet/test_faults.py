"""Faults that were met once: each test stands for its kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.testing import assert_close, layouts, matrices, relative_error

torch = pytest.importorskip("torch")

SITES = ((2, 3, 4), (4, 3, 2))


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# ---- padding


@given(st.data(), st.sampled_from([{"max_bond": 2}, {"rtol": 0.3}, {"bonds": "full"}]))
def test_certificates_of_padded_matrices_are_about_the_matrix(data, limits):
    layout = data.draw(layouts())
    W = data.draw(matrices(layout))
    m = tn.mpo(W, layout, **limits)
    error = relative_error(m.to_matrix(), W)
    assert m.certificate.relative_error == pytest.approx(error, abs=1e-12, rel=1e-6)
    assert m.certificate.lower_bound <= error + 1e-9
    assert m.norm() == pytest.approx(np.linalg.norm(m.to_matrix()), rel=1e-9)


def test_what_a_network_holds_in_its_padding_does_not_count():
    first = np.array([[1, 0], [0, 0], [0, 1e3], [0, 0.0]]).reshape(1, 2, 2, 2)
    last = np.array([[1.0, 0, 0, 0], [0, 0, 0, 1.0]]).reshape(2, 2, 2, 1)
    m = tn.MPO([first, last], rows=2, cols=2)
    assert m.norm() == 1.0
    r = m.round(rtol=0.5)
    assert relative_error(r.to_matrix(), m.to_matrix()) <= 0.5
    assert r.certificate.relative_error == pytest.approx(
        relative_error(r.to_matrix(), m.to_matrix()), abs=1e-12
    )


def test_explicit_padding_by_a_layout():
    W = gaussian(30, 4).astype("float32")
    m = tn.mpo(W, tn.MatrixLayout((4, 8), (2, 2), rows=30))
    assert m.shape == (30, 4)
    assert m.layout.padded_shape == (32, 4)
    assert_close(m.to_matrix(), W)
    with pytest.raises(tn.errors.ShapeError, match=r"layout of a 30 x 4 matrix, got one of \(32"):
        tn.mpo(W, tn.MatrixLayout((4, 8), (2, 2)))
    with pytest.raises(tn.errors.ShapeError, match="MatrixLayout with the true size"):
        tn.mpo(W, ((4, 8), (2, 2)))


# ---- tolerances


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_tolerance_at_the_floor_is_kept(dtype):
    small = {"float16": 9e-4, "float32": 4e-7, "float64": 8e-16}[dtype]
    E = np.diag([1.0, small, small, small]).astype(dtype)
    floor = {"float16": 2e-3, "float32": 2e-7, "float64": 1e-14}[dtype]
    m = tn.mpo(E, ((2, 2), (2, 2)), rtol=floor)
    exact = tn.contract_matrix([c.astype("float64") for c in m.cores], m.layout)
    assert relative_error(exact, E) <= floor


def test_exact_keeps_what_half_precision_can_show():
    E = torch.zeros(4, 4).bfloat16()
    E[0, 0], E[3, 3] = 1, 7e-3
    assert torch.equal(tn.mpo(E, ((2, 2), (2, 2))).to_matrix(), E)


def test_tolerances_are_real_numbers():
    for bad in (1j * 0.1, np.complex64(0.1), "0.1", [0.1], True):
        with pytest.raises(tn.errors.ToleranceError, match=r"number in \(0, 1\)"):
            tn.mpo(gaussian(4, 4), 2, rtol=bad)


# ---- torch cores that change


def test_cores_changed_in_place_lose_center_and_certificate():
    m = tn.mpo(torch.as_tensor(gaussian(24, 24)), SITES)
    assert m.center == 1
    m.cores[0].mul_(3)
    assert m.center is None
    assert m.certificate is None
    assert m.norm() == pytest.approx(float(m.to_matrix().norm()))
    assert "center None" in repr(m)


def test_cores_in_training_claim_nothing():
    m = tn.mpo(torch.as_tensor(gaussian(24, 24)), SITES)
    cores = [core.requires_grad_() for core in m.cores]
    optimizer = torch.optim.SGD(cores, lr=0.1)
    m.to_matrix().square().sum().backward()
    optimizer.step()
    r = m.round(max_bond=3)
    true = relative_error(r.to_matrix(), m.to_matrix())
    assert r.certificate.relative_error == pytest.approx(true, rel=1e-6)
    s = torch.linalg.svdvals(m.layout.fold(m.to_matrix().detach()).reshape(8, -1))
    assert m.singular_values(1) == pytest.approx(s.numpy(), rel=1e-6)


def test_decomposition_in_inference_mode():
    with torch.inference_mode():
        m = tn.mpo(torch.as_tensor(gaussian(24, 24)), SITES)
        assert m.center == 1
        assert_close(m.to_matrix(), torch.as_tensor(gaussian(24, 24)))
    assert m.round(max_bond=2).bond_dims == (1, 2, 2, 1)


def test_transposes_own_their_memory():
    m = tn.mpo(torch.as_tensor(gaussian(24, 24)), SITES)
    assert tn.account([m, m.T]).unique == 2 * m.n_params
    m.T.cores[0].zero_()
    assert_close(m.to_matrix(), torch.as_tensor(gaussian(24, 24)))
    weight = torch.ones(1, 2, 3, 1, requires_grad=True)
    tn.MPO([weight]).T.to_matrix().sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))


def test_axes_of_size_one_do_not_hide_sharing():
    core = torch.as_strided(torch.ones(4), (1, 2, 2, 1), (7, 2, 1, 5))
    same = torch.as_strided(core, (1, 2, 2, 1), (4, 2, 1, 1))
    assert tn.account([tn.MPO([core]), tn.MPO([same])]).unique == 4


# ---- certificates after moves


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_moves_add_their_rounding_to_the_certificate(dtype):
    W = torch.as_tensor(gaussian(48, 48)).to(dtype)
    m = tn.mpo(W, 3)
    for k in range(30):
        m = m.move_center(k % 3)
    wide = tn.contract_matrix([c.double() for c in m.cores], m.layout)
    true = relative_error(wide, W)
    assert true > 1e-3
    assert true / 2 < m.certificate.relative_error < true * 2


# ---- gauges of deficient matrices


@pytest.mark.parametrize(
    "W", [np.eye(48), np.ones((48, 48)), np.tril(np.ones((48, 48))), np.zeros((48, 48))]
)
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_symmetric_gauge_of_deficient_matrices_stays_small(W, make):
    m = tn.mpo(make(W.astype("float32")), 5, gauge="symmetric", bonds="full")
    assert max(float(abs(core).max()) for core in m.cores) < 10
    assert_close(m.to_matrix(), make(W.astype("float32")))


def test_phases_of_tiny_complex_numbers():
    for W in (np.ones((48, 48)) * (1 + 1j), gaussian(24, 24) * (1e-310 + 1e-310j)):
        for gauge in ("central", "left", "right", "symmetric"):
            for make in (np.asarray, torch.as_tensor):
                m = tn.mpo(make(W), 3, gauge=gauge, bonds="full")
                assert np.abs(np.asarray(m.to_matrix()) - W).max() <= 1e-12 * np.abs(W).max()


# ---- products and contractions


def test_contract_matrix_checks_what_it_gets():
    m = tn.mpo(gaussian(24, 24), SITES)
    with pytest.raises(tn.errors.ShapeError, match="layout's"):
        tn.contract_matrix(m.cores, m.layout.transposed)
    with pytest.raises(tn.errors.ShapeError, match="MatrixLayout, got NoneType"):
        tn.contract_matrix(m.cores, None)
    for cores in ([], "cores", m):
        with pytest.raises(tn.errors.ShapeError, match="sequence of at least one array"):
            tn.contract_matrix(cores, m.layout)
    with pytest.raises(tn.errors.ShapeError, match=r"cores\[0\] must have 4 dimensions"):
        tn.contract_matrix([np.ones((1, 2, 1))], m.layout)
    with pytest.raises(tn.errors.DTypeError, match="float32 and float64"):
        tn.contract_matrix([m.cores[0].astype("float32"), *m.cores[1:]], m.layout)
    with pytest.raises(tn.errors.BondError, match="agree in their bonds"):
        tn.contract_matrix(m.cores[:2], tn.MatrixLayout((2, 3), (4, 3)))


def test_a_single_site_gives_a_copy():
    for eye in (torch.eye(2), np.eye(2)):
        m = tn.mpo(eye, 1)
        A = m.to_matrix()
        A += 1
        assert float(m.to_matrix().max()) == 1.0


def test_numpy_cores_are_read_only_to_the_bottom():
    core = tn.mpo(gaussian(24, 24), SITES).cores[0]
    while core is not None:
        assert not core.flags.writeable
        core = core.base


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_empty_batches_and_matrix_operands():
    m = tn.mpo(gaussian(24, 24), SITES)
    assert (m @ np.ones((24, 0))).shape == (24, 0)
    for batch in (1, 3, 50):
        x = np.ones((24, batch))
        assert np.allclose(m @ np.asmatrix(x), m @ x)
        assert np.allclose(np.asmatrix(x).T @ m, x.T @ m)


def test_products_trace_through_vmap():
    m = tn.mpo(torch.as_tensor(gaussian(24, 24)), SITES)
    x = torch.as_tensor(gaussian(5, 24))
    assert torch.allclose(torch.vmap(lambda v: m @ v)(x), (m @ x.T).T)


# ---- long chains


def test_many_sites():
    with pytest.raises(tn.errors.ShapeError, match="at most 32 sites, got 33"):
        tn.mpo(np.ones((8, 8)), 33)
    with pytest.raises(tn.errors.ShapeError, match="at most"):
        tn.factorize(2**61 - 1, 3)
    with pytest.raises(tn.errors.ShapeError, match="at most"):
        tn.factorize(8, 500)
    ones = tn.MPO([np.ones((1, 1, 1, 1))] * 400)
    assert (ones @ np.ones(1)).item() == 1.0
    with pytest.raises(tn.errors.ShapeError, match="32 sites where the matrix is formed"):
        ones.to_matrix()


def test_norms_beyond_the_range_of_numbers():
    chain = tn.MPO([np.full((1, 1, 1, 1), 1e10)] * 40)
    assert chain.norm() == np.inf
    assert chain.round().log10_norm() == pytest.approx(400.0)
    balanced = tn.MPO([np.full((1, 1, 1, 1), 1e200), np.full((1, 1, 1, 1), 1e-200)] * 20)
    assert balanced.norm() == pytest.approx(1.0)
    with pytest.raises(tn.errors.ToleranceError, match="range of float64"):
        tn.mpo(np.full((4, 4), 1.7e308), 2)


def test_highly_composite_sizes_are_factorized_quickly():
    assert (
        tn.factorize(963761198400, 5) == (240, 252, 256, 247, 252)
        or sum(tn.factorize(963761198400, 5)) < 1260
    )


# ---- arguments


def test_arguments_of_layouts():
    layout = tn.MatrixLayout(*SITES)
    for bad in (0, -1, 2.5, True, "3", [3, 3]):
        with pytest.raises(tn.errors.BondError, match="max_bond must be an integer"):
            layout.structural_bonds(bad)
    with pytest.raises(tn.errors.OptionError, match="pad must be True or False"):
        tn.mpo(np.eye(4), 2, pad="no")
    m = tn.mpo(gaussian(24, 24), np.array(SITES), bonds=np.array([2, 2]))
    assert m.bond_dims == (1, 2, 2, 1)


def test_foreign_byte_order():
    W = gaussian(4, 4).astype(">f8")
    m = tn.mpo(W, 2, gauge="identity")
    assert all(core.dtype.isnative for core in m.cores)
    assert np.array_equal(m.to_matrix(), W)


def test_reports_can_be_hashed():
    report = tn.account(tn.mpo(gaussian(4, 4), 2))
    assert report in {report}
