"""Networks in another element type: values, certificates, centers, gradients, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.errors import DTypeError, RangeError
from tensornet.testing import relative_error
from tests.tensornet.twins import OTHER, SQUARE, close, host, made, network

torch = pytest.importorskip("torch")

REAL = ("float16", "float32", "float64")
W = np.random.default_rng(0).standard_normal((48, 36))
PADDED = tn.MatrixLayout((4, 4, 3), (4, 4, 3), 48, 36)
TYPES = "float16, bfloat16, float32, float64, complex64, complex128"


def wide(m):
    """The matrix that the stored cores stand for, in double precision."""
    cores = [np.real(host(core)) for core in m.cores]
    return tn.MPO(cores, *m.shape).to_matrix()


@pytest.mark.parametrize(
    ("library", "new"),
    [
        *(("numpy", name) for name in ("float16", "float32", "complex64", "complex128")),
        *(("torch", name) for name in ("float16", "bfloat16", "float32", "complex128")),
    ],
)
def test_every_core_is_that_of_the_library(library, new):
    m = network(OTHER, library=library)
    result = m.astype(new)
    assert result.layout == m.layout
    assert result.bond_dims == m.bond_dims
    assert str(result.dtype).removeprefix("torch.") == new
    for core, old in zip(result.cores, m.cores, strict=True):
        assert np.array_equal(host(core), host(made(host(old).real, library, new)))
    close(result.to_matrix(), m.to_matrix(), new)


@pytest.mark.parametrize(
    ("make", "new"),
    [
        *((np.asarray, name) for name in ("float16", "float32")),
        *((torch.as_tensor, name) for name in ("float16", "bfloat16", "float32")),
    ],
)
@pytest.mark.parametrize("gauge", ["central", "symmetric"])
@pytest.mark.parametrize("shape", [((4, 4, 3), (3, 4, 3)), PADDED])
def test_the_certificate_tells_what_rounding_costs(make, new, gauge, shape):
    for limits in ({}, {"max_bond": 8}):
        m = tn.mpo(make(W), shape, gauge=gauge, **limits)
        small = m.astype(new)
        error = relative_error(wide(small), W)
        assert error / 2 < small.certificate.relative_error < 2 * error
        rounding = relative_error(wide(small), wide(m))
        assert rounding / 2 < small.certificate.storage_error < 2 * rounding
        assert small.center == m.center
        again = small.astype("float64")  # widened it is no better
        assert again.certificate is small.certificate
        assert np.array_equal(wide(again), wide(small))
        assert again.center is None
        assert again.norm() == pytest.approx(np.linalg.norm(wide(again)), rel=1e-13)


@given(st.sampled_from(REAL), st.sampled_from(REAL), st.integers(0, 9))
def test_there_and_back_again(first, second, seed):
    m = network(SQUARE, seed=seed, dtype=first)
    result = m.astype(second)
    assert result.center is None
    assert result.certificate is None
    if np.dtype(second).itemsize >= np.dtype(first).itemsize:
        back = result.astype(first)
        assert all(np.array_equal(a, b) for a, b in zip(back.cores, m.cores, strict=True))


def test_the_same_type_is_the_network_itself():
    m, t = tn.mpo(W, 3), tn.tt(W)
    assert m.astype("float64") is m.astype(float) is m.astype(np.float64) is m
    assert m.astype(torch.float64) is m.astype(np.dtype(">f8")) is m
    assert t.astype("double") is t
    small = m.cached().astype(np.float32)
    assert small.mpo.dtype == np.float32
    assert isinstance(small, tn.CachedMPO)


def test_tensor_trains_and_sums_of_converted_networks():
    t = tn.tt(W.reshape(6, 8, 36), max_bond=4)
    small = t.astype("float32")
    assert isinstance(small, tn.TensorTrain)
    assert small.certificate.discarded_share == t.certificate.discarded_share
    assert 1e-9 < small.certificate.storage_error < 1e-6
    both = t + small.astype("float64")
    assert relative_error(both.to_tensor(), 2 * t.to_tensor()) < 1e-6
    assert tn.inner(small, t.astype("float32")) == pytest.approx(t.norm() ** 2, rel=1e-6)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_batches(make):
    batch = tn.mpo(make(np.stack([W, 3 * W, W[::-1].copy()])), 3, max_bond=6)
    small = batch.astype("float16")
    assert small.shape == batch.shape
    for one, own in zip(small, batch, strict=True):
        twin = own.astype("float16")
        assert all(np.array_equal(a, b) for a, b in zip(one.cores, twin.cores, strict=True))
        assert one.certificate.storage_error == pytest.approx(twin.certificate.storage_error)
        assert one.center == twin.center == own.center
    assert small.astype("float64").center is None
    assert small.astype("float64").certificates == small.certificates
    assert batch.astype(batch.dtype) is batch


def test_a_certificate_in_a_metric_lasts_while_nothing_is_rounded():
    m = tn.mpo(W.astype("float32"), 3, max_bond=4, metric=np.eye(36, dtype="float32"))
    assert m.astype("float64").certificate is m.certificate
    assert m.astype("float16").certificate is None
    shared = tn.shared_mpo(np.stack([W, W]), 2, max_bond=4, max_sweeps=2, starts=1).mpos[0]
    small = shared.astype("float16")
    assert small.certificate.relative_error > shared.certificate.relative_error


def test_gradients_pass_through_and_nothing_is_claimed():
    weight = torch.randn(1, 2, 3, 1, dtype=torch.float64, requires_grad=True)
    small = tn.MPO([weight]).astype("float32")
    assert small.certificate is None
    small.to_matrix().sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))
    m = tn.mpo(torch.as_tensor(W), 3)
    small = m.astype(torch.float32)
    small.cores[0].mul_(2)  # memory of its own
    assert relative_error(m.to_matrix(), W) < 1e-12
    assert small.certificate is None


def test_networks_of_jax():
    jax = pytest.importorskip("jax")
    m = network(SQUARE, dtype="float32", library="jax")
    for core, old in zip(m.astype("bfloat16").cores, m.cores, strict=True):
        assert core.dtype == "bfloat16"
        assert np.array_equal(host(core), host(made(np.array(old), "torch", "bfloat16")))

    def product(x):
        small = m.astype("bfloat16")
        assert small.certificate is None
        return small @ x

    traced = jax.eval_shape(product, jax.ShapeDtypeStruct((21,), "bfloat16"))
    assert (traced.shape, traced.dtype) == ((21,), "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("int8", "'int8'"),
        (int, "<class 'int'>"),
        ("single precision", "'single precision'"),
        (None, "None"),
        (torch.int32, "torch.int32"),
        (3, "3"),
        ("longdouble", "'longdouble'"),
    ],
)
def test_types_that_are_unknown(dtype, given):
    for m in (tn.mpo(W, 2), tn.tt(torch.as_tensor(W)), tn.mpo(W[None], 2)):
        with pytest.raises(DTypeError) as caught:
            m.astype(dtype)
        assert str(caught.value) == f"dtype must be one of {TYPES}, got {given}."


def test_types_that_do_not_hold_the_network(monkeypatch):
    text = "dtype must be complex, got float64 with a complex64 network. Imaginary parts"
    with pytest.raises(DTypeError, match=text):
        network(OTHER, dtype="complex64").astype("float64")
    monkeypatch.setattr("tensornet.retyped._numpy_has", lambda _: False)
    with pytest.raises(DTypeError, match="dtype must be a type that numpy has, got bfloat16"):
        tn.mpo(W, 2).astype("bfloat16")
    for make in (np.asarray, torch.as_tensor):
        large, small = (tn.mpo(make(W * size), 2) for size in (1e6, 1e-9))
        for m, entries, way in ((large, "larger", "down"), (small, "smaller", "up")):
            text = f"core 1 must fit the range of float16, got {entries} entries."
            text += f" Scale the network {way} first, or use a wider element type."
            for one in (m, tn.mpo(make(host(m.to_matrix()).real[None]), 2)):
                with pytest.raises(RangeError, match=text):
                    one.astype("float16")
    assert not tn.mpo(np.zeros((4, 4)), 2).astype("float16").to_matrix().any()


def test_networks_of_different_types_say_how_they_are_converted():
    m = network(SQUARE)
    for other, wider in (("float32", "float64"), ("complex64", "complex64")):
        for one, two in ((m, m.astype(other)), (m.astype(other), m)):
            with pytest.raises(DTypeError) as caught:
                one + two
            assert str(caught.value).endswith(f"Convert one of the two: .astype({wider!r}).")
            assert (one.astype(wider) + two.astype(wider)).shape == m.shape
    text = r"got float32. Convert the operand, or the network: \.astype\('float32'\)\."
    x = np.ones(21, "float32")
    with pytest.raises(DTypeError, match=text):
        m @ x
    assert (m.astype(x.dtype) @ x).dtype == np.float32
    with pytest.raises(DTypeError, match=r"Convert the network first: m\.astype\('float32'\)\."):
        m.astype("float16") * 1j


def beyond(library, dtype="float16"):
    """A network in half precision whose cores fit, and whose matrix of 10^6 everywhere doesn't."""
    cores = [np.full((1, 4, 4, 1), 1e3)] * 2
    if library == "torch":
        cores = [torch.from_numpy(core.copy()) for core in cores]
    return tn.MPO(cores).astype(dtype)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_matrix_beyond_half_precision_is_refused_wherever_it_is_formed(library):
    m = beyond(library)
    stack = np.full((2, 16, 16), 1e6)
    if library == "torch":
        stack = torch.from_numpy(stack)
    batch = tn.mpo(stack, 2, gauge="symmetric").astype("float16")
    text = r"must fit the range of float16, got entries up to 1e\+06\. .* astype\('float32'\)"
    for what, form in (
        ("the matrix", m.to_matrix),
        ("the matrix", lambda: tn.contract_matrix(m.cores, m.layout)),
        ("the matrix", lambda: m.cached() @ m.cores[0].reshape(-1)),
        ("the tensor", lambda: tn.contract_tensor([c.reshape(1, 16, 1) for c in m.cores])),
        ("the tensor", tn.TensorTrain([c.reshape(1, 16, 1) for c in m.cores]).to_tensor),
        ("the matrices", batch.to_matrices),
    ):
        with pytest.raises(RangeError, match=f"{what} {text}"):
            form()
    assert float(m.astype("float32").to_matrix().max()) == 1e6
    assert float(m.trace()) == 1.6e7
    assert float(m.norm()) == pytest.approx(1.6e7)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_products_and_entries_beyond_half_precision_are_infinite(library):
    m = beyond(library)
    one = m.cores[0].reshape(-1) * 0 + 1
    for found in (m @ one, one @ m, m.rows([0, 3]), m.diagonal(), m[1, 1]):
        assert np.isinf(host(found)).all()
    small = host(m @ (one / 1024))  # sums are in float32: what fits in the end is right
    assert np.allclose(small, 1e6 / 64, rtol=1e-3)


def test_what_fits_and_what_is_in_the_graph_is_left_alone():
    assert np.isinf(host(beyond("torch", "bfloat16").to_matrix())).sum() == 0
    leaf = beyond("torch").cores[0].clone().requires_grad_()
    found = tn.MPO([leaf, leaf]).to_matrix()  # a loss scale looks for infinities itself
    assert bool(torch.isinf(found).all())
    spoilt = beyond("torch")
    spoilt.cores[0].fill_(float("nan"))  # the matrix shows what was put in
    assert bool(torch.isnan(spoilt.to_matrix()).all())
