"""The value classes: immutability, validation, operands, printing, copies."""

from __future__ import annotations

import copy
import importlib
import pickle
import types

import numpy as np
import pytest

import tensornet as tn

torch = pytest.importorskip("torch")

W = np.random.default_rng(0).normal(size=(24, 24))
SITES = ((2, 3, 4), (4, 3, 2))


def test_values_are_immutable():
    m = tn.mpo(W, SITES)
    with pytest.raises(AttributeError, match="immutable"):
        m.cores = ()
    with pytest.raises(AttributeError, match="immutable"):
        del m._cores
    with pytest.raises(ValueError, match="read-only"):
        m.cores[0][:] = 0
    with pytest.raises(AttributeError):
        m.layout.rows = 3


def test_existing_cores_are_copied_for_numpy_and_kept_for_torch():
    core = np.ones((1, 2, 2, 1))
    m = tn.MPO([core])
    core[:] = 5
    assert m.to_matrix().max() == 1
    weight = torch.ones(1, 2, 2, 1, requires_grad=True)
    chain = tn.MPO([weight])
    assert chain.cores[0] is weight
    chain.to_matrix().sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert tn.account(chain).trainable == 4


def test_decompositions_are_detached():
    W_grad = torch.as_tensor(W).requires_grad_()
    m = tn.mpo(W_grad, SITES)
    assert not any(core.requires_grad for core in m.cores)


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies(make):
    m = tn.mpo(W, SITES, max_bond=4)
    twin = make(m)
    assert repr(twin) == repr(m)
    assert np.array_equal(twin.to_matrix(), m.to_matrix())
    t = make(tn.tt(W))
    assert np.allclose(t.to_tensor(), W)


@pytest.mark.parametrize(
    ("cores", "error", "text"),
    [
        ([], tn.errors.ShapeError, "sequence of at least one array"),
        ("cores", tn.errors.ShapeError, "got str"),
        ([np.ones((1, 2, 1))], tn.errors.ShapeError, "cores[0] must have 4 dimensions"),
        ([np.ones((2, 2, 2, 1))], tn.errors.BondError, "1 as first bond, got 2"),
        ([np.ones((1, 2, 2, 3))], tn.errors.BondError, "1 as last bond, got 3"),
        (
            [np.ones((1, 2, 2, 3)), np.ones((2, 2, 2, 1))],
            tn.errors.BondError,
            "got 3 and 2 between cores 0 and 1",
        ),
        (
            [np.ones((1, 2, 2, 1)), np.ones((1, 2, 2, 1), dtype="float32")],
            tn.errors.DTypeError,
            "cores[1] must have the first core's element type float64, got float32",
        ),
        (
            [np.ones((1, 2, 2, 1)), torch.ones(1, 2, 2, 1)],
            tn.errors.ArrayTypeError,
            "pytorch with a numpy network",
        ),
        ([np.full((1, 2, 2, 1), np.nan)], tn.errors.NonFiniteError, "4 non-finite values"),
        ([[1.0]], tn.errors.ArrayTypeError, "cores[0] must be a numpy array"),
    ],
)
def test_cores_that_form_no_chain(cores, error, text):
    with pytest.raises(error) as caught:
        tn.MPO(cores)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.ones(23), tn.errors.ShapeError, "first dimension is 24, got shape (23,)"),
        (np.ones((3, 24)), tn.errors.ShapeError, "first dimension is 24, got shape (3, 24)"),
        (np.ones((24, 2, 2)), tn.errors.ShapeError, "vector or matrix"),
        (np.ones(24, "float32"), tn.errors.DTypeError, "float64, got float32"),
        (np.ones(24, "int64"), tn.errors.DTypeError, "got int64"),
        (torch.ones(24), tn.errors.ArrayTypeError, "pytorch with a numpy network"),
        ([1.0] * 24, tn.errors.ArrayTypeError, "builtins.list"),
        (tn.mpo(W, SITES), tn.errors.ShapeError, "24 as (4, 3, 2) and 24 as (2, 3, 4)"),
    ],
)
def test_operands_that_do_not_fit(x, error, text):
    with pytest.raises(error) as caught:
        tn.mpo(W, SITES) @ x
    assert text in str(caught.value)
    assert str(caught.value).startswith(("m @ x", "m @ m2"))


def test_products_with_numpy_and_torch_from_both_sides():
    for make in (np.asarray, torch.as_tensor):
        m, A = tn.mpo(make(W), SITES), make(W)
        x = make(np.random.default_rng(1).normal(size=(24, 5)))
        for product, dense in ((m @ x, A @ x), (x.T @ m, x.T @ A), (x[:, 0] @ m, x[:, 0] @ A)):
            assert np.allclose(np.asarray(product), np.asarray(dense))
    with pytest.raises(tn.errors.ShapeError, match="last dimension is 24"):
        np.ones(5) @ tn.mpo(W, SITES)


def test_gradients_flow_through_products():
    cores = [
        torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        for k, shape in enumerate([(1, 2, 3, 4), (4, 3, 2, 1)])
    ]
    cores = [core.requires_grad_() for core in cores]
    x = torch.ones(6, 2, dtype=torch.float64, requires_grad=True)
    (tn.MPO(cores) @ x).square().sum().backward()
    expected = torch.autograd.grad(
        (tn.contract_matrix(cores, tn.MPO(cores).layout) @ x).square().sum(), [*cores, x]
    )
    for leaf, gradient in zip([*cores, x], expected, strict=True):
        assert torch.allclose(leaf.grad, gradient)


def test_printing_says_what_one_wants_to_know():
    m = tn.mpo(W, SITES, max_bond=4)
    assert repr(m) == (
        "MPO(24x24, sites (2,3,4)x(4,3,2), bonds [4, 4], float64, 208 parameters "
        f"(0.3611 of dense), center 1, relative error {m.certificate.relative_error:.3g})"
    )
    assert repr(tn.tt(W)).startswith("TensorTrain(24x24, bonds [24], float64")
    assert "relative error" in str(m.certificate)
    assert "lower_bound" in repr(m.certificate)


def test_networks_are_no_arrays_and_modules_neither():
    for network, way in ((tn.mpo(W, SITES), "to_matrix"), (tn.tt(W), "to_tensor")):
        with pytest.raises(tn.errors.ArrayTypeError, match=way):
            np.asarray(network)
    with pytest.raises(tn.errors.ArrayTypeError, match="Pass its weight"):
        tn.mpo(torch.nn.Linear(2, 2))


def test_padded_prints_say_so():
    m = tn.mpo(W[:23, :23], 2, max_bond=2)
    assert repr(m).startswith("MPO(23x23 padded to 24x24, ")
    assert "best possible    unknown" in str(m.certificate)


def test_only_public_names_are_listed():
    assert dir(tn) == sorted(tn.__all__)


def test_bad_sites_and_bonds():
    m = tn.mpo(W, SITES)
    with pytest.raises(tn.errors.ShapeError, match="site must be 0 to 2, got 3"):
        m.move_center(3)
    with pytest.raises(tn.errors.ShapeError, match="at least 0, got -1"):
        m.move_center(-1)
    with pytest.raises(tn.errors.BondError, match="inner bond, 1 to 2, got 3"):
        m.singular_values(3)
    with pytest.raises(tn.errors.BondError, match="at least 1, got 0"):
        m.singular_values(0)
    with pytest.raises(tn.errors.OptionError, match="numbers when rounding"):
        m.round(bonds="full")
    with pytest.raises(tn.errors.ToleranceError, match="under these bonds"):
        m.round(max_bond=1, rtol=1e-3)


def test_account_takes_networks_only():
    with pytest.raises(tn.errors.ShapeError, match="empty sequence"):
        tn.account([])
    with pytest.raises(tn.errors.ArrayTypeError, match="network"):
        tn.account([W])
    with pytest.raises(tn.errors.ArrayTypeError, match="network"):
        tn.account(3)


def test_huge_logical_sizes_are_exact_integers():
    n = 72
    t = tn.TensorTrain([np.ones((1, 4, 1))] * n)
    report = tn.account(t)
    assert report.dense == 2**144
    assert report.total == 4 * n
    assert report.unique == 4 * n


def test_half_precision_overflow_is_an_error():
    # The norm, 30000 * 32, lies beyond float16's 65504; the entries do not.
    big = np.full((32, 32), 30000.0, dtype="float16")
    with pytest.raises(tn.errors.ToleranceError, match="range of float16"):
        tn.mpo(big, ((4, 8), (4, 8)))
    m = tn.mpo(big, ((4, 8), (4, 8)), gauge="symmetric")
    assert np.allclose(m.to_matrix().astype("float32"), 30000.0, rtol=5e-3)


@pytest.mark.parametrize("package", ["tensornet", "tensornet.streaming", "tensornet.testing"])
def test_whatever_a_package_takes_in_is_public(package):
    module = importlib.import_module(package)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", package).startswith("tensornet.")
        and name != "keep_public_names"
    }
    assert own <= set(module.__all__)
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)
