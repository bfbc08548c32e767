"""Relatives of cases from the field: element types, memory, libraries at once, trivial networks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.errors import ArrayTypeError, DTypeError

RNG = np.random.default_rng(6)
DENSE = RNG.normal(size=(24, 24))
SHAPE = ((2, 3, 4), (4, 3, 2))
DOORS = {
    "mpo": lambda w: tn.mpo(w, 2),
    "a stack": lambda w: tn.mpo(w[None], 2),
    "tt": tn.tt,
    "shared_mpo": lambda w: tn.shared_mpo(w[None], 3),
    "search_shape": lambda w: tn.search_shape(w, max_params=100),
    "allocate": lambda w: tn.allocate({"w": w}, max_params=100),
    "a metric": lambda w: tn.mpo(DENSE[:, :6] if type(w) is np.ndarray else w, 2, metric=w),
    "cores": lambda w: tn.MPO([w.reshape(1, 6, 6, 1)]),
}


# Element types that nobody decomposes in.


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool", "object", "S4", "longdouble"])
@pytest.mark.parametrize("door", DOORS)
def test_numpy_types_that_are_refused_at_every_door(door, dtype):
    w = np.arange(36).reshape(6, 6).astype(dtype)
    if w.dtype == np.float64:  # where long doubles are nothing else
        return
    with pytest.raises(DTypeError, match=r"must have an element type among float16, .*, got "):
        DOORS[door](w)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("door", DOORS)
def test_torch_types_that_are_refused_at_every_door(door, dtype):
    w = torch.ones(6, 6).to(getattr(torch, dtype))
    with pytest.raises(DTypeError, match=rf"must have an element type among .*, got {dtype}"):
        DOORS[door](w)


@pytest.mark.parametrize("given", [[[1.0, 2.0]], ((1.0,),), 3.0, "w", None, {"w": 1}])
def test_what_is_no_array_is_named(given):
    for call in (tn.mpo, tn.tt, lambda w: tn.search_shape(w, max_params=9)):
        with pytest.raises(ArrayTypeError, match=f"got builtins.{type(given).__name__}"):
            call(given)


# T12: what is stored is what is there.


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "made",
    [
        lambda w: tn.mpo(w, SHAPE).round(max_bond=2),
        lambda w: tn.mpo(w, SHAPE, max_bond=3).move_center(0),
        lambda w: (tn.mpo(w, SHAPE, max_bond=2) + tn.mpo(w, SHAPE, max_bond=1)).round(),
        lambda w: tn.mpo(w, SHAPE, max_bond=2) * 3.0,
        lambda w: tn.mpo(w, SHAPE, rtol=0.6, gauge="symmetric"),
        lambda w: tn.tt(w.reshape(8, 9, 8), max_bond=2).round(max_bond=1),
    ],
    ids=["rounded", "moved", "a sum", "scaled", "symmetric", "a train"],
)
def test_t12_results_own_what_they_hold(made, library, tmp_path):
    m = made(DENSE if library == "numpy" else torch.from_numpy(DENSE))
    for core in m.cores:
        if library == "torch":
            assert core.untyped_storage().nbytes() == core.numel() * 8
        else:
            assert core.base is None or core.base.size == core.size
    path = tmp_path / "m.safetensors"
    tn.save(m, path)
    assert path.stat().st_size < m.n_params * 8 + 4096


def test_t12_stacks_and_shared_cores_are_stored_once(tmp_path):
    stack = np.stack([DENSE, DENSE.T, DENSE + 1])
    batch = tn.mpo(stack, SHAPE, max_bond=3)
    shared = tn.shared_mpo(stack, SHAPE, max_bond=3, max_sweeps=2)
    assert shared.account().unique == 2 * 3 * 8 * 3 + 3 * 9 * 3
    for value, elements in ((batch, batch.n_params), (list(shared), shared.account().unique)):
        path = tmp_path / "m.safetensors"
        tn.save(value, path)
        assert path.stat().st_size < elements * 8 + 8192


# T13: what is larger than the matrix says so, and nothing else does.


@pytest.mark.parametrize(
    ("rows", "cols", "n", "bond"),
    [
        (64, 64, 3, 15),
        (64, 64, 3, 16),
        (64, 64, 3, 1),
        (13, 11, 3, 99),
        (12, 18, 2, 99),
        (6, 6, 1, 9),
    ],
)
def test_t13_a_note_wherever_it_is_larger_and_only_there(rows, cols, n, bond):
    w = RNG.normal(size=(rows, cols))
    m = tn.mpo(w, n, max_bond=bond)
    larger = m.n_params > rows * cols
    batch = tn.mpo(np.stack([w, w]), n, max_bond=bond)
    for value in (m, tn.account(m), batch, batch.account()):
        assert ("larger" in str(value) + repr(value)) == larger
    assert tn.account(m).ratio == m.n_params / (rows * cols)
    train = tn.tt(w, max_bond=bond)
    assert ("larger" in repr(train)) == (train.n_params > rows * cols)


# T24: libraries side by side.


def test_t24_threads_with_different_libraries():
    given = [DENSE, torch.from_numpy(DENSE)] * 8

    def work(w):
        m = tn.mpo(w, SHAPE, max_bond=4)
        return type(m.cores[0]), np.asarray((m @ m.T).round(max_bond=4).to_matrix())

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, given))
    assert [kind for kind, _ in found] == [type(w) for w in given]
    for _, matrix in found:
        assert np.abs(matrix - found[0][1]).max() < 1e-9


# Networks with next to nothing in them.


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1), (2, 2)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_trivial_networks_can_do_everything(size, n, library):
    w = RNG.normal(size=size)
    given = w if library == "numpy" else torch.from_numpy(w)
    make = np.asarray if library == "numpy" else torch.as_tensor
    m = tn.mpo(given, n)
    x = RNG.normal(size=(size[1], 2))
    pairs = [
        (m.to_matrix(), w),
        (m @ make(x), w @ x),
        (make(x[:, 0]) @ m.T, x[:, 0] @ w.T),
        ((m + m).to_matrix(), 2 * w),
        ((m - m).round().to_matrix(), 0 * w),
        (m.hadamard(m).to_matrix(), w * w),
        ((m @ m.T).to_matrix(), w @ w.T),
        ((0.0 * m).to_matrix(), 0 * w),
        (m.diagonal(), np.diagonal(w)),
        (m.rows([0]), w[:1]),
        (m[size[0] - 1, size[1] - 1], w[-1, -1]),
        (m.norm(), np.linalg.norm(w)),
        (tn.inner(m, m), (w * w).sum()),
        (m.cached() @ make(x), w @ x),
    ]
    for found, expected in pairs:
        assert np.allclose(np.asarray(found), expected, atol=1e-12)
    assert m.round(max_bond=1).bond_dims == (1,) * (n + 1)
    assert m.plan(3).multiply_adds >= 1
    assert len(m.spectra()) == n - 1
    assert all(e >= 0.0 for e in m.entropies())
    assert tn.account(m).unique == m.n_params
    assert tn.mpo(given, n, rtol=0.5).certificate.relative_error <= 0.5
    assert str(m)
