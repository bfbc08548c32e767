"""Every operation on networks against its dense twin: random layouts, element types, libraries."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backend import dtype_name, library_of, load_backend
from tensornet.padding import mask_cores
from tensornet.testing import layouts, mpo_cores, relative_error

torch = pytest.importorskip("torch")

NAMES = {"numpy": "numpy", "torch": "pytorch", "jax": "jax"}
EPS = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-5, "complex64": 2e-5}
errors = tn.errors


def made(values, library="numpy", dtype=None):
    values = np.asarray(values)
    if library == "torch":
        tensor = torch.as_tensor(np.ascontiguousarray(values))
        return tensor if dtype is None else tensor.to(getattr(torch, dtype))
    if library == "jax":
        jax = pytest.importorskip("jax")
        with jax.enable_x64(True):
            return jax.numpy.asarray(values, dtype or values.dtype)
    return values if dtype is None else values.astype(dtype)


def host(a):
    if isinstance(a, float | int):
        return np.asarray(a)
    if isinstance(a, np.generic):
        return np.asarray(a, dtype="complex128")
    backend = load_backend(library_of(a))
    plain = a.detach() if hasattr(a, "detach") else a
    return np.asarray(backend.numbers(backend.cast(plain, "complex128")))


def network(layout, seed=0, dtype="float64", library="numpy", bond=3):
    """Gaussian cores, also in the padding; no gauge."""
    rng = np.random.default_rng(seed)
    bonds = [1, *[bond] * (layout.n_sites - 1), 1]
    cores = []
    for shape in layout.core_shapes(bonds):
        core = rng.normal(size=shape) / math.sqrt(shape[0])
        core = core + 1j * rng.normal(size=shape) if dtype.startswith("complex") else core
        cores.append(made(core, library, dtype))
    return tn.MPO(cores, *layout.shape)


def close(actual, expected, dtype="float64", size=None):
    """Relative to the size of what went in: sums may cancel."""
    a, b = host(actual), host(expected)
    assert a.shape == b.shape
    size = np.linalg.norm(b) if size is None else size
    assert np.linalg.norm(a - b) <= EPS.get(dtype, 1e-11) * max(size, 1e-300)


SQUARE = tn.MatrixLayout((2, 3, 4), (2, 3, 4), 21, 21)
OTHER = tn.MatrixLayout((2, 3, 4), (4, 3, 2), 21, 23)
SMALL = {
    SQUARE: tn.MatrixLayout((2, 2), (2, 2), 4, 4),
    OTHER: tn.MatrixLayout((4, 1), (2, 2), 4, 4),
}


# ------------------------------------------------------------------ one suite, all kinds


KINDS = [
    *[("numpy", d) for d in ("float16", "float32", "float64", "complex64", "complex128")],
    *[("torch", d) for d in ("float16", "bfloat16", "float32", "float64", "complex128")],
    ("jax", "float32"),
]


@pytest.mark.parametrize(("library", "dtype"), KINDS)
@pytest.mark.parametrize("layout", [SQUARE, OTHER], ids=["square", "other factors"])
def test_everything_equals_its_dense_twin(library, dtype, layout):
    if library == "jax":  # compiles every shape anew: as few as possible
        layout = SMALL[layout]
    a, b = (network(layout, k, dtype, library) for k in (1, 2))
    A, B = host(a.to_matrix()), host(b.to_matrix())
    results = {
        "sum": (a + b, A + B),
        "difference": (a - b, A - B),
        "negative": (-a, -A),
        "twice": (2 * a, 2 * A),
        "half": (a / 2, A / 2),
        "hadamard": (a.hadamard(b), A * B),
        "product": (a @ b.H, A @ B.conj().T),
        "other product": (a.T @ b, A.T @ B),
    }
    for name, (result, expected) in results.items():
        assert {library_of(c) for c in result.cores} == {NAMES[library]}, name
        assert {dtype_name(c) for c in result.cores} == {dtype}, name
        assert result.center is None, name
        assert result.certificate is None, name
        size = np.linalg.norm(A) * (np.linalg.norm(B) if "product" in name else 1)
        close(result.to_matrix(), expected, dtype, max(size, np.linalg.norm(expected)))
    narrow = "float32" if dtype in ("float16", "bfloat16") else dtype
    size = np.linalg.norm(A) * np.linalg.norm(B)
    for value, expected, bound in (
        (tn.inner(a, b), np.vdot(A, B), size),
        (a.trace(), np.trace(A), np.linalg.norm(A)),
    ):
        assert str(value.dtype).removeprefix("torch.") == narrow
        assert tuple(value.shape) == ()
        close(value, expected, dtype, bound)
    last = layout.rows - 1
    ids = np.array([[last, 0, 3], [3, 3, last - 1]])
    for value, expected in (
        (a.diagonal(), np.diagonal(A)),
        (a.rows(made(ids, library)), A[ids]),
        (a[ids, 2], A[ids, 2]),
        (a[2, last], A[2, last]),
    ):
        assert str(value.dtype).removeprefix("torch.") == dtype
        assert isinstance(value, np.generic) or library_of(value) == NAMES[library]
        close(value, expected, dtype, np.linalg.norm(A))
    assert math.isclose(a.norm(), np.linalg.norm(A), rel_tol=EPS.get(dtype, 1e-12))


@given(st.data())
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_matrices_of_any_layout(dtype, data):
    layout = data.draw(layouts(max_size=300))
    A_, B_ = (tn.MPO(data.draw(mpo_cores(layout, dtype=dtype)), *layout.shape) for _ in range(2))
    A, B = A_.to_matrix(), B_.to_matrix()
    a, b = np.linalg.norm(A), np.linalg.norm(B)
    close((A_ + B_).to_matrix(), A + B, size=a + b)
    close((A_ - B_).to_matrix(), A - B, size=a + b)
    close(A_.hadamard(B_).to_matrix(), A * B, size=a * b)
    close((A_ @ B_.H).to_matrix(), A @ B.conj().T, size=a * b)
    close(tn.inner(A_, B_), np.vdot(A, B), size=a * b)
    close(tn.inner(A_, B_), (A_.H @ B_).trace(), size=a * b)
    close((A_ @ B_.T).T.to_matrix(), (B_ @ A_.T).to_matrix(), size=a * b)
    close(A_.trace(), np.trace(A), size=a)
    close(A_.diagonal(), np.diagonal(A), size=a)
    close(A_.rows(np.arange(layout.rows)), A, size=a)
    i, j = np.indices(layout.shape)
    close(A_[i, j], A, size=a)
    assert math.isclose((A_ - B_).norm(), np.linalg.norm(A - B), rel_tol=1e-9, abs_tol=1e-12 * a)
    assert math.isclose(A_.log10_norm(), math.log10(a), rel_tol=1e-9, abs_tol=1e-9)
    assert A_.norm() == pytest.approx(math.sqrt(abs(tn.inner(A_, A_))), rel=1e-9)


@given(st.data())
def test_ring_axioms(data):
    layout = data.draw(layouts(max_size=100, max_sites=3))
    square = tn.MatrixLayout(layout.row_dims, layout.row_dims, layout.rows, layout.rows)
    a, b, c = (tn.MPO(data.draw(mpo_cores(square)), *square.shape) for _ in range(3))
    size = math.prod(1 + m.norm() for m in (a, b, c))
    for left, right in (
        ((a + b) + c, a + (b + c)),
        (a + b, b + a),
        (a - a, 0 * a),
        ((a @ b) @ c, a @ (b @ c)),
        (a @ (b + c), a @ b + a @ c),
        ((a + b) @ c, a @ c + b @ c),
        ((3 * a) @ b, 3 * (a @ b)),
        (sum([a, b, c]), a + b + c),
        (a.hadamard(b + c), b.hadamard(a) + c.hadamard(a)),
        ((a @ b).H, b.H @ a.H),
    ):
        close(left.to_matrix(), right.to_matrix(), size=size)
        assert (left - right).norm() <= 1e-11 * size


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_masks_mark_the_true_numbers(dims, data):
    size = data.draw(st.integers(1, math.prod(dims)))
    cores = mask_cores(size, dims)
    assert all(core.shape[0] <= 2 for core in cores)
    mask = tn.TensorTrain(cores).to_tensor().ravel()
    assert np.array_equal(mask, np.arange(math.prod(dims)) < size)
    if size == math.prod(dims):
        assert all(core.shape[0] == 1 for core in cores)


# ------------------------------------------------------------------ bonds and rounding


def test_bonds_add_and_multiply():
    layout = tn.MatrixLayout((2, 3, 2), (2, 3, 2))
    a, b = network(layout, 1, bond=3), network(layout, 2, bond=4)
    assert (a + b).bond_dims == (1, 7, 7, 1)
    assert (a - b).bond_dims == (1, 7, 7, 1)
    assert (a @ b).bond_dims == a.hadamard(b).bond_dims == (1, 12, 12, 1)
    assert (2 * a).bond_dims == (-a).bond_dims == a.bond_dims
    assert (0 * a).bond_dims == (1, 1, 1, 1)
    padded = network(tn.MatrixLayout((2, 3, 2), (2, 3, 2), 11, 11), bond=3)
    assert (padded @ padded).bond_dims == (1, 18, 18, 1)
    whole_first = network(tn.MatrixLayout((3, 2, 2), (3, 2, 2), 8, 8), bond=3)
    assert (whole_first @ whole_first).bond_dims == (1, 9, 9, 1)


@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric"])
@pytest.mark.parametrize("size", [24, 23])
def test_sums_round_to_what_they_are(gauge, size):
    W = np.random.default_rng(3).normal(size=(size, size))
    A = tn.mpo(W, tn.MatrixLayout((2, 3, 4), (4, 3, 2), size, size), max_bond=5, gauge=gauge)
    twice = (A + A).round()
    assert twice.bond_dims == A.bond_dims
    close(twice.to_matrix(), 2 * A.to_matrix())
    nothing = (A - A).round()
    assert nothing.bond_dims == (1, 1, 1, 1)
    assert nothing.norm() <= 1e-13 * A.norm()
    assert (A - A).norm() <= 1e-13 * A.norm()
    capped = (A + 1e-3 * network(A.layout, bond=2)).round(max_bond=5)
    true = (A + 1e-3 * network(A.layout, bond=2)).to_matrix()
    assert capped.certificate.relative_error == pytest.approx(
        relative_error(capped.to_matrix(), true), rel=1e-6
    )


def test_rounding_a_padded_network_of_many_sites():
    n = 40
    layout = tn.MatrixLayout((2,) * n, (1,) * n, 2**n - 1, 1)
    m = network(layout, bond=2)
    twice = (m + m).round()
    assert twice.bond_dims == m.round().bond_dims
    assert twice.certificate.relative_error < 1e-12
    assert math.isclose(twice.norm(), 2 * m.norm(), rel_tol=1e-12)


# ------------------------------------------------------------------ scalars


@pytest.mark.parametrize(
    "c",
    [
        2,
        -1.5,
        np.float32(3),
        np.float64(0.25),
        np.int8(4),
        Fraction(1, 3),
        torch.tensor(2.5),
        np.array(7.0),
    ],
)
def test_real_numbers_of_all_kinds_keep_the_type(c):
    for m in (network(OTHER, dtype="float32"), tn.tt(np.ones((3, 4), "float32"))):
        value = float(c)
        for result, expected in ((m * c, value), (c * m, value), (m / c, 1 / value)):
            assert result.dtype == np.float32
            assert result.norm() == pytest.approx(abs(expected) * m.norm(), rel=1e-5)
            assert type(result) is type(m)


def test_complex_numbers_make_real_networks_complex():
    m = network(OTHER, dtype="float32")
    result = (1 + 2j) * m
    assert result.dtype == np.complex64
    close(result.to_matrix(), (1 + 2j) * m.to_matrix(), "float32")
    assert (m * np.complex128(2)).dtype == np.complex64
    assert (torch.tensor(2j) * network(OTHER, library="torch")).dtype == torch.complex128
    assert (m / 2j).dtype == np.complex64
    half = network(OTHER, dtype="float16")
    with pytest.raises(errors.DTypeError, match="complex number with a float16 network"):
        half * 1j


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_zero_gives_a_zero_network(library):
    for c in (0, 0.0, -0.0, np.float32(0), 0j):
        zero = c * network(SQUARE, library=library)
        assert zero.bond_dims == (1, 1, 1, 1)
        assert zero.norm() == 0.0
        assert zero.log10_norm() == -math.inf
        assert np.array_equal(zero.entropies(), [0, 0])
        assert not host(zero.to_matrix()).any()
        assert host(zero.trace()) == 0
        assert zero.round(rtol=0.1).bond_dims == (1, 1, 1, 1)
        assert not host((zero @ zero + zero).to_matrix()).any()


def test_numbers_far_from_one():
    m = tn.MPO([np.full((1, 1, 1, 1), 1e-30, "float32")])
    assert (m * 1e60).to_matrix().item() == pytest.approx(1e30, rel=1e-6)
    assert (m / 1e-60).to_matrix().item() == pytest.approx(1e30, rel=1e-6)
    with pytest.raises(errors.ToleranceError, match="core 0 must fit the range of float32"):
        m * 1e80
    tiny = tn.MPO([np.full((1, 1, 1, 1), 1e-310)])
    assert (tiny / 1e-310).to_matrix().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("c", "error", "text"),
    [
        (math.nan, errors.NonFiniteError, "c in c * m must be finite, got nan"),
        (-math.inf, errors.NonFiniteError, "got -inf"),
        (complex(0, math.inf), errors.NonFiniteError, "got infj"),
        (10**400, errors.NonFiniteError, "got inf"),
        (True, errors.OptionError, "must be a number, got True"),
        (np.ones(3), errors.ArrayTypeError, "got ndarray of shape (3,). Entrywise products are"),
        (torch.ones(1), errors.ArrayTypeError, "got Tensor of shape (1,)"),
        (network(OTHER), errors.ArrayTypeError, "matrix products m @ m2"),
        ("2", TypeError, "unsupported operand|can't multiply"),
        (None, TypeError, "unsupported operand"),
    ],
)
def test_what_is_no_number(c, error, text):
    with pytest.raises(error) as caught:
        network(OTHER) * c
    assert any(part in str(caught.value) for part in text.split("|"))


def test_division_by_zero():
    with pytest.raises(errors.OptionError, match="c in m / c must not be zero, got 0"):
        network(OTHER) / 0
    with pytest.raises(TypeError, match="unsupported operand"):
        1 / network(OTHER)


# ------------------------------------------------------------------ what does not go together


def test_networks_that_do_not_go_together():
    a, wide = network(SQUARE), network(OTHER)
    for operation in (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x.hadamard(y), tn.inner):
        with pytest.raises(errors.ShapeError) as caught:
            operation(a, wide)
        assert "21x21 in sites (2, 3, 4)x(2, 3, 4)" in str(caught.value)
        assert "21x23 in sites (2, 3, 4)x(4, 3, 2)" in str(caught.value)
        with pytest.raises(errors.DTypeError, match="got float64 and float32"):
            operation(a, network(SQUARE, dtype="float32"))
        with pytest.raises(errors.ArrayTypeError, match="pytorch with a numpy network"):
            operation(a, network(SQUARE, library="torch"))
        with pytest.raises(errors.ArrayTypeError, match="another MPO, got ndarray of shape"):
            operation(a, np.ones((21, 21)))
        with pytest.raises(errors.ArrayTypeError, match="another MPO, got TensorTrain"):
            operation(a, tn.tt(np.ones((2, 2))))
    for other in (3, 0.5, False, None):
        with pytest.raises(errors.ArrayTypeError, match="m \\+ m2 must have another MPO"):
            a + other
    with pytest.raises(errors.ArrayTypeError, match="MPO or TensorTrain, got ndarray"):
        tn.inner(np.ones(3), a)
    # A true size that differs is another matrix, even where the factors agree.
    with pytest.raises(errors.ShapeError, match="22x21"):
        a + network(tn.MatrixLayout((2, 3, 4), (2, 3, 4), 22, 21))


def test_products_that_do_not_fit():
    with pytest.raises(errors.ShapeError, match=r"got 23 as \(4, 3, 2\) and 21 as \(2, 3, 4\)"):
        network(OTHER) @ network(SQUARE)
    with pytest.raises(errors.ShapeError, match=r"23 as \(4, 3, 2\) and 24 as \(4, 3, 2\)"):
        network(OTHER) @ network(tn.MatrixLayout((4, 3, 2), (2, 3, 4)))
    with pytest.raises(errors.DTypeError, match="float64 and complex64"):
        network(SQUARE) @ network(SQUARE, dtype="complex64")


def test_half_precision_that_overflows_is_an_error():
    m = tn.MPO([np.full((1, 2, 2, 1), 300.0, "float16")])
    for operation in (lambda: m @ m, lambda: m.hadamard(m), lambda: 300 * m):
        with pytest.raises(errors.ToleranceError, match="core 0 must fit the range of float16"):
            operation()
    assert tn.inner(m, m) == 360_000.0
    many = tn.MPO([np.full((1, 60, 60, 1), 1000.0, "float16")])
    assert many.trace() == 60_000.0


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


# ------------------------------------------------------------------ tensor trains


@pytest.mark.parametrize(
    ("library", "dtype"),
    [("numpy", "float64"), ("torch", "complex128"), ("jax", "float32"), ("torch", "bfloat16")],
)
@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 1, 4), (2, 3, 2, 5)])
def test_trains_equal_their_dense_twins(library, dtype, shape):
    shape = shape[:2] if library == "jax" else shape
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


# ------------------------------------------------------------------ long chains


def test_t19_sixty_one_copies():
    step = tn.MPO([np.array([[1.0, 1.0], [0.0, 1.0]])[None, :, :, None]])
    product = step
    for _ in range(60):
        product = product @ step
    assert np.array_equal(product.to_matrix(), [[1, 61], [0, 1]])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chains_beyond_the_range_of_numbers(library, dtype):
    n = 200
    long = tn.MPO([made(np.full((1, 4, 4, 1), 10.0), library, dtype)] * n)
    assert long.log10_norm() == pytest.approx(n * math.log10(40), rel=1e-12)
    assert long.norm() == math.inf
    assert (long - long).log10_norm() < n * math.log10(40) - 10
    assert float(tn.inner(long, long)) == math.inf
    assert float(long.trace()) == math.inf
    tiny = tn.TensorTrain([made(np.full((1, 4, 1), 0.01), library, dtype)] * n)
    assert tiny.log10_norm() == pytest.approx(n * math.log10(0.02), rel=1e-7)
    assert tiny.norm() == 0.0
    assert float(tiny.sum()) == pytest.approx(0.04**n, rel=1e-4)
    copying = np.zeros((2, 2, 2))
    copying[0, 0, 0] = copying[1, 1, 1] = 9.0  # nothing but equal indices
    ends = copying.sum(0, keepdims=True), copying.sum(2, keepdims=True)
    cores = [ends[0], *[copying] * (n - 2), ends[1]]
    both = tn.TensorTrain([made(core, library, dtype) for core in cores])
    assert np.allclose(both.entropies(), math.log(2))
    product = tiny.hadamard(tiny) + tiny
    assert product.log10_norm() == pytest.approx(tiny.log10_norm(), rel=1e-6)
    place = (0,) * n
    assert float(both[place]) == (math.inf if dtype == "float32" else pytest.approx(9.0**n))
    assert float(both.hadamard(both)[place]) == math.inf


# ------------------------------------------------------------------ spectra and entropies


def test_spectra_equal_those_of_the_unfoldings():
    t = tn.tt(np.random.default_rng(0).normal(size=(3, 4, 2, 3)), gauge="symmetric")
    T = t.to_tensor()
    for k, s in enumerate(t.spectra(), start=1):
        exact = np.linalg.svd(T.reshape(math.prod(T.shape[:k]), -1), compute_uv=False)
        assert np.allclose(s, exact[: len(s)], atol=1e-12)
        assert np.allclose(s, t.singular_values(k), atol=1e-12)
        p = exact**2 / (exact**2).sum()
        assert t.entropies()[k - 1] == pytest.approx(-(p * np.log(p)).sum())
    assert tn.tt(np.ones(3)).spectra() == ()
    assert tn.tt(np.ones(3)).entropies().shape == (0,)


def test_entropies_of_known_states():
    product = tn.tt(np.multiply.outer(np.arange(1.0, 4), np.arange(1.0, 3)))
    assert product.entropies() == pytest.approx([0.0], abs=1e-14)
    identity = tn.mpo(np.eye(4), ((2, 2), (2, 2)))
    assert identity.entropies() == pytest.approx([0.0], abs=1e-14)
    bell = tn.tt(np.eye(3) * 1e-200)
    assert bell.entropies() == pytest.approx([math.log(3)])


# ------------------------------------------------------------------ shapes at the edge


@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize("cols", [1, 7])
def test_one_site_prime_sizes_and_ones(rows, cols):
    W = np.random.default_rng(0).normal(size=(rows, cols))
    for sites in (1, 3):
        layout = tn.MatrixLayout((rows,) + (1,) * (sites - 1), (1,) * (sites - 1) + (cols,))
        m = tn.mpo(W, layout)
        close((m + m - m / 2).to_matrix(), 1.5 * W)
        close(m.hadamard(m).to_matrix(), W * W)
        close((m @ m.T).to_matrix(), W @ W.T)
        close((m.T @ m).trace(), (W * W).sum())
        close(m.diagonal(), np.diagonal(W))
        close(m.rows(np.arange(rows)), W)
        assert m.norm() == pytest.approx(np.linalg.norm(W))


def test_cores_in_any_memory_order():
    rng = np.random.default_rng(0)
    base = [rng.normal(size=(2, 4, 6, 2))[::-1, ::2, ::-2, ::-1] for _ in range(3)]
    cores = [base[0][:1], base[1], base[2][..., :1]]
    m = tn.MPO(cores)
    W = m.to_matrix()
    close((m + m).to_matrix(), 2 * W)
    close((m @ m.T).to_matrix(), W @ W.T)
    strided = tn.MPO([torch.as_tensor(c.copy()).permute(0, 2, 1, 3) for c in cores])
    close((strided @ m_torch(cores)).to_matrix(), W.T @ W)
    close(strided.rows(torch.arange(27).flip(0)), W.T[::-1])
    assert all(c.flags.c_contiguous for c in (m @ m.T + m @ m.T).cores)


def m_torch(cores):
    return tn.MPO([torch.as_tensor(c.copy()) for c in cores])


def test_results_share_no_memory_with_their_operands():
    m = network(SQUARE, library="torch")
    before = host(m.to_matrix())
    for result in (-m, 2 * m, m + m, m.hadamard(m), m @ m, (1 + 0j) * m):
        for core in result.cores:
            core.zero_()
    assert np.array_equal(host(m.to_matrix()), before)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("layout", [SQUARE, OTHER], ids=["square", "other factors"])
def test_gradients_equal_those_of_the_dense_twin(layout):
    cores = [c.clone().requires_grad_() for c in network(layout, 5, library="torch").cores]
    b = network(layout, 6, library="torch")
    B = b.to_matrix()
    c = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([3, 0, 3])

    def both(m):
        W = tn.contract_matrix(cores, layout)
        yield (m + b).to_matrix().pow(2).sum(), (W + B).pow(2).sum()
        yield (m - b).to_matrix().pow(2).sum(), (W - B).pow(2).sum()
        yield (m @ b.T).to_matrix().pow(2).sum(), (W @ B.T).pow(2).sum()
        yield m.hadamard(m).to_matrix().sum(), (W * W).sum()
        yield tn.inner(m, m), (W * W).sum()
        yield tn.inner(b, m) ** 2, (B * W).sum() ** 2
        yield m.trace() ** 2, torch.trace(W[:21, :21]) ** 2
        yield m.diagonal().pow(3).sum(), torch.diagonal(W).pow(3).sum()
        yield m.rows(ids).pow(2).sum(), W[ids].pow(2).sum()
        yield m[2, 20] ** 2, W[2, 20] ** 2
        yield (c * m / 2).to_matrix().pow(2).sum(), (c * W / 2).pow(2).sum()
        yield (m / c).to_matrix().pow(2).sum(), (W / c).pow(2).sum()

    for ours, theirs in both(tn.MPO(cores, *layout.shape)):
        leaves = [*cores, c]
        found = torch.autograd.grad(ours, leaves, allow_unused=True, retain_graph=True)
        expected = torch.autograd.grad(theirs, leaves, allow_unused=True, retain_graph=True)
        for one, two in zip(found, expected, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)


def test_jax_traces_through_sums_and_products():
    jax = pytest.importorskip("jax")
    m = network(SQUARE, dtype="float32", library="jax")

    def loss(cores):
        a = tn.MPO._from(tuple(cores), m.layout, None, None)
        return tn.inner(a, a) + (a @ a + 2 * a).trace()

    value = jax.jit(loss)(m.cores)
    W = host(m.to_matrix()).real
    assert float(value) == pytest.approx((W * W).sum() + np.trace(W @ W + 2 * W), rel=1e-4)


@given(st.data())
def test_rows_whatever_the_meeting_bond(data):
    layout = data.draw(layouts(max_size=300))
    m = tn.MPO(data.draw(mpo_cores(layout)), *layout.shape)
    ids = np.array(data.draw(st.lists(st.integers(0, layout.rows - 1), max_size=6)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        meeting = data.draw(st.integers(0, layout.n_sites))
        patch.setattr("tensornet.lookup._meeting", lambda cores, count: meeting)
        close(m.rows(ids), m.to_matrix()[ids], size=m.norm())


def test_a_small_padded_matrix_is_formed_for_its_norm_where_it_fits_the_range():
    layout = tn.MatrixLayout((2, 2, 2), (2, 2, 2), 7, 7)
    m = network(layout, bond=8)
    assert m.norm() == pytest.approx(np.linalg.norm(m.to_matrix()), rel=1e-13)
    huge = tn.MPO([core * 1e150 for core in m.cores], 7, 7)
    assert huge.norm() == math.inf
    assert huge.log10_norm() == pytest.approx(450 + m.log10_norm())
    many = tn.MPO([np.ones((1, 1, 1, 1))] * 39 + [np.ones((1, 3, 1, 1))], 2, 1)
    assert many.norm() == pytest.approx(math.sqrt(2))
    assert many.round().norm() == pytest.approx(math.sqrt(2))
