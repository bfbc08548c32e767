"""Rows, entries and tensor trains against their dense twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import dtype_name
from tensornet.testing import layouts, mpo_cores
from tests.tensornet.twins import EPS, OTHER, close, host, made, network

errors = tn.errors


torch = pytest.importorskip("torch")


# ------------------------------------------------------------------ look-ups


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_t28_rows_of_a_padded_vocabulary(library):
    rng = np.random.default_rng(0)
    layout = tn.MatrixLayout((32, 30, 32), (8, 12, 8), 30522, 768)
    bonds = (1, 6, 5, 1)
    cores = [
        made(rng.normal(size=shape), library, "float32") for shape in layout.core_shapes(bonds)
    ]
    m = tn.MPO(cores, 30522, 768)
    ids = np.array([[0, 30521, 17], [17, 101, 30000]])
    found = m.rows(made(ids, library))
    assert tuple(found.shape) == (2, 3, 768)
    close(found, host(m.to_matrix())[ids], "float32")
    with pytest.raises(errors.ShapeError, match="ids must be 0 to 30521, got 30522"):
        m.rows(made([3, 30522], library))
    with pytest.raises(errors.ShapeError, match="got -1"):
        m.rows(made([-1], library))
    assert tuple(m.rows(5).shape) == (768,)
    assert tuple(m.rows([]).shape) == (0, 768)
    assert tuple(m.rows(made(np.zeros((2, 0, 3), "int64"), library)).shape) == (2, 0, 3, 768)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_integers_of_all_widths(dtype):
    m = network(OTHER)
    close(m.rows(np.array([20, 1], dtype)), m.to_matrix()[[20, 1]])


@pytest.mark.parametrize(
    ("look_up", "error", "text"),
    [
        (lambda m: m.rows(1.0), errors.DTypeError, "ids must be integers, got float64"),
        (lambda m: m.rows(torch.ones(2)), errors.DTypeError, "got float32"),
        (lambda m: m.rows([True]), errors.DTypeError, "got bool"),
        (lambda m: m.rows(None), errors.DTypeError, "got NoneType"),
        (lambda m: m.rows("a"), errors.DTypeError, "integers"),
        (lambda m: m[3], errors.ShapeError, "two indices, got one. See m.rows(ids)."),
        (lambda m: m[1, 2, 3], errors.ShapeError, "two indices, got 3"),
        (lambda m: m[1:2, 0], errors.DTypeError, "i in m[i, j] must be integers, got slice"),
        (lambda m: m[0, -1], errors.ShapeError, "j in m[i, j] must be 0 to 22, got -1"),
        (lambda m: m[21, 0], errors.ShapeError, "i in m[i, j] must be 0 to 20, got 21"),
        (
            lambda m: m[[1, 2], [1, 2, 3]],
            errors.ShapeError,
            "broadcast together, got (2,) and (3,)",
        ),
    ],
)
def test_look_ups_that_do_not_exist(look_up, error, text):
    with pytest.raises(error) as caught:
        look_up(network(OTHER))
    assert text in str(caught.value)


def test_look_ups_in_chunks(monkeypatch):
    monkeypatch.setattr("tensornet.lookup._CHUNK", 20)
    m = network(OTHER)
    close(m.diagonal(), np.diagonal(m.to_matrix()))
    i, j = np.indices(m.shape)
    close(m[i, j], m.to_matrix())


def test_a_traced_look_up_is_refused():
    jax = pytest.importorskip("jax")
    m = network(OTHER, dtype="float32", library="jax")
    with pytest.raises(errors.ArrayTypeError, match="ids must have values"):
        jax.jit(m.rows)(jax.numpy.arange(3))


def test_networks_do_not_iterate_for_ever():
    for value in (network(OTHER), tn.tt(np.ones((2, 3)))):
        with pytest.raises((TypeError, errors.ShapeError)):
            list(value)


@given(st.data())
def test_rows_whatever_the_meeting_bond(data):
    layout = data.draw(layouts(max_size=300))
    m = tn.MPO(data.draw(mpo_cores(layout)), *layout.shape)
    ids = np.array(data.draw(st.lists(st.integers(0, layout.rows - 1), max_size=6)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        meeting = data.draw(st.integers(0, layout.n_sites))
        patch.setattr("tensornet.lookup._meeting", lambda cores, count: meeting)
        close(m.rows(ids), m.to_matrix()[ids], size=m.norm())


# ------------------------------------------------------------------ tensor trains


TYPES = [("numpy", "float64"), ("torch", "complex128"), ("torch", "bfloat16")]
SHAPES = [(5,), (1, 1), (3, 1, 4), (2, 3, 2, 5)]
TRAINS = [(*kind, shape) for kind in TYPES for shape in SHAPES]
# jax compiles every shape anew: as few as possible.
TRAINS += [("jax", "float32", (5,)), ("jax", "float32", (2, 3))]
TRAINS += [pytest.param("jax", "float32", s, marks=pytest.mark.slow) for s in ((1, 1), (3, 1))]


@pytest.mark.parametrize(("library", "dtype", "shape"), TRAINS)
def test_trains_equal_their_dense_twins(library, dtype, shape):
    rng = np.random.default_rng(len(shape))
    trains = []
    for _ in range(2):
        bonds = [1, *[2] * (len(shape) - 1), 1]
        cores = [rng.normal(size=(bonds[k], d, bonds[k + 1])) for k, d in enumerate(shape)]
        cores = [c + 1j * rng.normal(size=c.shape) if "complex" in dtype else c for c in cores]
        trains.append(tn.TensorTrain([made(c, library, dtype) for c in cores]))
    s, t = trains
    S, T = host(s.to_tensor()), host(t.to_tensor())
    size = (1 + np.linalg.norm(S)) * (1 + np.linalg.norm(T))
    for result, expected in (
        (s + t, S + T),
        (s - t, S - T),
        (-s, -S),
        (s * 3, 3 * S),
        (s.hadamard(t), S * T),
        (sum([s, t, s]), 2 * S + T),
    ):
        assert dtype_name(result.cores[0]) == dtype
        close(result.to_tensor(), expected, dtype, size)
    close(tn.inner(s, t), np.vdot(S, T), dtype, size)
    close(s.sum(), S.sum(), dtype, size)
    last = tuple(d - 1 for d in shape)
    close(s[last if len(shape) > 1 else last[0]], S[last], dtype, size)
    picks = tuple(np.array([[0, d - 1]]) for d in shape)
    close(s[picks], S[picks], dtype, size)
    assert s.norm() == pytest.approx(np.linalg.norm(S), rel=EPS.get(dtype, 1e-12))


def test_trains_say_what_does_not_fit():
    t = tn.tt(np.ones((2, 3)))
    with pytest.raises(errors.ShapeError, match="one index for each of the 2 sites, got 3"):
        t[0, 0, 0]
    with pytest.raises(errors.ShapeError, match="index 1 must be 0 to 2, got 3"):
        t[0, 3]
    with pytest.raises(errors.ShapeError, match="got 2x3 and 3x2"):
        t + tn.tt(np.ones((3, 2)))
