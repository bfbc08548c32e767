"""One suite over numpy, torch and jax: the same numbers, library, device and element type."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import dtype_name, library_of, load_backend
from tensornet.testing import assert_close, layouts, matrices, options, tolerance_of

NAMES = {"numpy": "numpy", "torch": "pytorch", "jax": "jax"}


@pytest.fixture(params=list(NAMES))
def library(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


def made(values, library, dtype=None):
    values = np.asarray(values)
    if library == "torch":
        import torch

        tensor = torch.as_tensor(values.copy())
        return tensor if dtype is None else tensor.to(getattr(torch, dtype))
    if library == "jax":
        import jax

        with jax.enable_x64(True):
            return jax.numpy.asarray(values, dtype or values.dtype)
    return values if dtype is None else values.astype(dtype)


def host(a):
    backend = load_backend(library_of(a))
    return np.asarray(backend.numbers(backend.cast(a, "complex128")))


def gaussian(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


DTYPES = ["float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_stays_in_its_library_and_type(library, dtype):
    if library == "numpy" and dtype == "bfloat16":
        dtype = "float64"
    W = made(gaussian(12, 18), library, dtype)
    before = host(W)
    x, y = made(gaussian(18, 2), library, dtype), made(gaussian(3, 12), library, dtype)
    m = tn.mpo(W, 3)
    for chain in (m, m.T, m.H, m.move_center(0), m.round(max_bond=5), tn.mpo(W, 3, max_bond=4)):
        assert all(library_of(core) == NAMES[library] for core in chain.cores)
        assert all(dtype_name(core) == dtype for core in chain.cores)
    for result in (m.to_matrix(), m @ x, y @ m, tn.tt(W).to_tensor()):
        assert library_of(result) == NAMES[library]
        assert dtype_name(result) == dtype
    tight = 20 * tolerance_of(dtype, 3)
    assert_close(host(m.to_matrix()), host(W), tight)
    assert_close(host(m @ x), host(W) @ host(x), tight)
    assert_close(host(y @ m), host(y) @ host(W), tight)
    assert np.array_equal(host(W), before)


@given(st.data())
@pytest.mark.parametrize("other", ["torch", "jax"])
def test_the_same_numbers_as_numpy(other, data):
    pytest.importorskip(other, reason=f"{other} is not installed")
    layout = data.draw(layouts(max_size=64, max_sites=3))
    W = data.draw(matrices(layout, dtype="float32", kinds=("gaussian", "low_rank", "integers")))
    chosen = data.draw(options(layout))
    if "rtol" in chosen and chosen["rtol"] < 1e-4:
        chosen["rtol"] = 1e-2
    ours, theirs = tn.mpo(W, layout, **chosen), tn.mpo(made(W, other), layout, **chosen)
    assert theirs.bond_dims == ours.bond_dims
    assert theirs.center == ours.center
    plain = tn.MPO([np.asarray(core) for core in theirs.cores], *layout.shape)
    assert_close(plain.to_matrix(), ours.to_matrix(), 1e-4)  # jax would compile every shape
    assert theirs.certificate.relative_error == pytest.approx(
        ours.certificate.relative_error, abs=1e-6
    )


def test_measures(library):
    W = gaussian(12, 18)
    m = tn.mpo(made(W, library), 3)
    assert m.norm() == pytest.approx(np.linalg.norm(W), rel=1e-6)
    for bond in (1, 2):
        assert m.singular_values(bond) == pytest.approx(
            tn.mpo(W, 3).singular_values(bond), rel=1e-5
        )
    assert m.account().unique == m.n_params
    assert m.account().bytes_by_dtype == {"float32": 4 * m.n_params}


def test_batches(library):
    Ws = gaussian(4, 12, 18)
    batch = tn.mpo(made(Ws, library), 3)
    assert library_of(batch.cores[0]) == NAMES[library]
    assert_close(host(batch.to_matrices()), Ws, 1e-6)


def test_non_finite_values_are_refused_with_their_place(library):
    W = gaussian(4, 6)
    W[1, 2] = np.nan
    text = "W must be finite, got 1 non-finite value, the first at index (1, 2)."
    with pytest.raises(tn.errors.NonFiniteError, match=re.escape(text)):
        tn.mpo(made(W, library), 2)


def test_integers_are_refused(library):
    with pytest.raises(tn.errors.DTypeError, match="W must have an element type among"):
        tn.mpo(made(np.ones((4, 4), dtype=np.int32), library), 2)


@pytest.mark.parametrize("kind", ["identity", "zero", "one entry", "row", "column"])
def test_trivial_matrices(library, kind):
    W = {
        "identity": np.eye(6),
        "zero": np.zeros((6, 6)),
        "one entry": np.ones((1, 1)),
        "row": np.ones((1, 7)),
        "column": np.ones((7, 1)),
    }[kind].astype("float32")
    assert_close(host(tn.mpo(made(W, library), 2).to_matrix()), W, 1e-6)


class TestJax:
    """What jax alone has: devices, tracing, and a switch for double precision."""

    @pytest.fixture(autouse=True)
    def jax(self):
        self.jax = pytest.importorskip("jax", reason="jax is not installed")
        return self.jax

    def test_the_switch_for_double_precision_is_left_alone(self):
        code = (
            "import jax, numpy as np, tensornet as tn\n"
            "m = tn.mpo(jax.numpy.ones((4, 6)), 2)\n"
            "print(jax.config.jax_enable_x64, m.cores[0].dtype, m.norm() ** 2 - 24 < 1e-5)\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["False", "float32", "True"]

    def test_double_precision_where_the_user_has_it(self):
        with self.jax.enable_x64(True):
            W = self.jax.numpy.asarray(gaussian(12, 18, dtype="float64"))
            m = tn.mpo(W, 3)
            assert dtype_name(m.cores[0]) == "float64"
            assert_close(np.asarray(m.to_matrix()), np.asarray(W), 1e-14)

    def test_cores_are_on_the_device_of_the_matrix(self):
        W = self.jax.device_put(gaussian(6, 6), self.jax.devices()[0])
        assert tn.mpo(W, 2).cores[0].devices() == W.devices()

    def test_products_can_be_traced(self):
        m = tn.mpo(made(gaussian(12, 18), "jax"), 3, max_bond=4)
        x = made(gaussian(18, 3), "jax")
        fast = self.jax.jit(lambda v: m @ v)(x)
        assert_close(np.asarray(fast), np.asarray(m @ x), 1e-6)
        slope = self.jax.grad(lambda v: (m @ v).sum())(x)
        assert_close(np.asarray(slope), np.asarray(m.to_matrix().sum(0)[:, None] + 0 * x), 1e-5)
        through = self.jax.grad(lambda cores: tn.contract_matrix(cores, m.layout).sum())(m.cores)
        assert [c.shape for c in through] == [c.shape for c in m.cores]

    @pytest.mark.parametrize("transform", ["jit", "grad"])
    def test_decompositions_cannot(self, transform):
        traced = getattr(self.jax, transform)(lambda W: tn.mpo(W, 2).to_matrix().sum())
        text = "W must have values, got an array that jax is tracing"
        with pytest.raises(tn.errors.ArrayTypeError, match=re.escape(text)):
            traced(made(gaussian(4, 4), "jax"))

    def test_no_gradient_flag(self):
        text = "W with differentiable=True must be a torch tensor, got an array of jax."
        with pytest.raises(tn.errors.ArrayTypeError, match=re.escape(text)):
            tn.mpo(made(gaussian(4, 4), "jax"), 2, differentiable=True)

    def test_libraries_do_not_mix(self):
        m = tn.mpo(made(gaussian(4, 4), "jax"), 2)
        with pytest.raises(tn.errors.ArrayTypeError, match="numpy with a jax network"):
            m @ np.ones(4, dtype="float32")
        with pytest.raises(tn.errors.ArrayTypeError, match="jax with a numpy network"):
            tn.mpo(gaussian(4, 4), 2) @ made(np.ones(4, dtype="float32"), "jax")

    def test_a_core_held_twice_counts_once(self):
        core = made(np.ones((1, 2, 2, 1), dtype="float32"), "jax")
        assert tn.account([tn.MPO([core]), tn.MPO([core])]).unique == 4


def test_constants_that_numpy_keeps_are_copied_for_torch():
    kept = np.broadcast_to(np.eye(2), (3, 2, 2))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    like = torch.ones(1, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_backend("pytorch").like(kept, like).shape == (3, 2, 2)
        m = tn.mpo(torch.arange(35.0).reshape(5, 7), 3)
        assert (m @ m.T).shape == (5, 5)
