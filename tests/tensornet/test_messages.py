"""What is said of arguments that are easily mistaken: exact words, and a way out that works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import tensornet as tn
from tensornet.certificate import MetricCertificate
from tensornet.errors import (
    ArrayTypeError,
    BondError,
    DTypeError,
    OptionError,
    RangeError,
    ShapeError,
)

torch = pytest.importorskip("torch")

W = np.random.default_rng(0).standard_normal((64, 48))
TYPES = "float16, bfloat16, float32, float64, complex64, complex128"


def said(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("sparse", [scipy.sparse.csr_array(np.eye(4)), scipy.sparse.eye(4)])
def test_sparse_matrices_are_made_dense_by_their_own_method(sparse):
    text = said(ArrayTypeError, lambda: tn.mpo(sparse))
    assert text.endswith("A sparse matrix is made dense first: .toarray().")
    assert text.startswith("W must be a numpy array, a torch tensor or a jax array, got scipy.")
    assert tn.mpo(sparse.toarray(), 2).shape == (4, 4)


@pytest.mark.parametrize(
    ("array", "given", "remedy"),
    [
        (
            W.astype(object),
            "object: its elements are Python objects",
            "Make numbers of them first: .astype(float).",
        ),
        (W.astype("int64"), "int64", "Convert it to the precision you want: .astype(float)."),
        (torch.ones(2, 2).long(), "int64", "Convert it to the precision you want: .double()."),
    ],
)
def test_element_types_are_named_with_the_call_that_converts(array, given, remedy):
    text = said(DTypeError, lambda: tn.mpo(array))
    assert text == f"W must have an element type among {TYPES}, got {given}. {remedy}"


@pytest.mark.parametrize("array", [W, torch.as_tensor(W), tn.mpo(W, 2)])
def test_operands_in_the_place_of_shapes(array):
    text = said(ShapeError, lambda: tn.plan("ij,jk->ik", array, (48, 3)))
    given = "an array of shape (64, 48). Pass its shape: W.shape."
    assert text == f"shapes[0] must be a shape, got {given}"
    vector = said(ShapeError, lambda: tn.plan("ij,j->i", (64, 48), W[0]))
    assert vector.startswith("shapes[1] must be a shape, got an array of shape (48,).")
    assert tn.plan("ij,jk->ik", array.shape, np.array([48, 3])).shapes == ((64, 48), (48, 3))


@pytest.mark.parametrize("caps", [[2, 2], (1, 2, 2, 1), np.array([2, 2])])
def test_caps_of_single_bonds_are_another_option(caps):
    text = "max_bond must be one integer for every bond, got "
    text += f"{caps!r}. Caps of single bonds are given as bonds=."
    stack = np.stack([W, W])
    for call in (
        lambda: tn.mpo(W, 3, max_bond=caps),
        lambda: tn.mpo(W, 3).round(max_bond=caps),
        lambda: tn.tt(W.reshape(8, 8, 48), max_bond=caps),
        lambda: tn.shared_mpo(stack, 3, max_bond=caps),
    ):
        assert said(BondError, call) == text
    assert tn.mpo(W, 3, bonds=caps).bond_dims == (1, 2, 2, 1)
    assert tn.mpo(W, 3, max_bond=np.array(2)).bond_dims == (1, 2, 2, 1)
    assert "got 99 values." in said(BondError, lambda: tn.mpo(W, 3, max_bond=[2] * 99))


def test_one_and_several():
    assert "must have 1 operand, as" in said(ShapeError, lambda: tn.plan("i->", (2,), (3,)))
    text = said(ShapeError, lambda: tn.plan("i->", (2, 3)))
    assert text == "shapes[0] must have 1 dimension for the label 'i', got (2, 3)."
    assert "must be 1, one for each operand" in said(ShapeError, lambda: tn.contract("i->", W, W))
    swept = MetricCertificate(5.0, (), 0.0, metric_error=0.25, history=(0.5, 0.25))
    assert "at the start   0.5, then 1 sweep\n" in str(swept)
    assert "0.5, then 2 sweeps\n" in str(replace(swept, history=(0.5, 0.3, 0.25)))
    noise = np.stack([W, W[::-1]])
    shared = tn.shared_mpo(noise, 2, max_bond=2, max_sweeps=1, starts=1)
    assert "in 1 group, sites" in repr(shared)
    assert repr(shared).endswith(", 1 sweep, not converged)")
    layout = tn.MatrixLayout((4,), (4,))
    assert "2 entries for 1 site," in said(ShapeError, lambda: layout.core_shapes((1,)))


def test_articles():
    network, train = tn.mpo(W, 2), tn.tt(W)
    assert "got an MPO. Call .to_matrix()." in said(ArrayTypeError, lambda: np.asarray(network))
    assert "got a TensorTrain. Call" in said(ArrayTypeError, lambda: np.asarray(train))


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (["a", "b"], "weights[0] must be a positive number, got 'a'."),
        ([1j, 1], "weights[0] must be a positive number, got 1j."),
        ([[1], [2, 3]], "weights[0] must be a positive number, got [1]."),
        (3 * W, "weights must have 2 values, one for each matrix, got 64."),
        (
            torch.ones(2, device="meta"),
            "weights must hold values, got Tensor of shape (2,). Pass plain numbers.",
        ),
    ],
)
def test_weights_that_are_no_numbers(weights, text):
    both = {"shape": 2, "weights": weights}
    assert said(OptionError, lambda: tn.shared_mpo([W, W], **both)) == text
    assert said(OptionError, lambda: tn.allocate([W, W], ratio=0.5, **both)) == text
    text = "weights must be 2 positive numbers, one for each matrix, got {0: 1}."
    assert said(OptionError, lambda: tn.shared_mpo([W, W], weights={0: 1})) == text


def test_weights_of_any_library_are_numbers():
    small = np.stack([W[:4, :4], W[4:8, :4]])
    plain = tn.shared_mpo(small, 2, max_bond=1, weights=[1.0, 2.0]).relative_error
    for weights in (
        torch.tensor([1.0, 2.0], requires_grad=True),
        [torch.tensor(1.0, requires_grad=True), np.float32(2)],
    ):
        found = tn.shared_mpo(small, 2, max_bond=1, weights=weights)
        assert found.relative_error == plain
        assert tn.allocate(list(small), ratio=0.9, weights=weights)


@pytest.mark.parametrize("groups", [[0, 1], [None, [1]]])
def test_groups_that_list_nothing(groups):
    text = f"groups[0] must be a sequence of indices of matrices, got {groups[0]}. Write groups="
    assert said(OptionError, lambda: tn.shared_mpo([W, W], 2, groups=groups)).startswith(text)


def test_what_float32_cannot_hold_is_not_widened_to_it():
    ones = torch.ones(1, 2, 2, 1, dtype=torch.bfloat16)
    m = tn.MPO([2e38 * ones, ones])
    total = m + m + m
    text = said(RangeError, total.to_matrix)
    assert "got entries beyond float32 too. Widen it first, as by astype('float64'), or" in text
    assert float(total.astype("float64").to_matrix().max()) == pytest.approx(6e38, rel=0.01)
    assert said(RangeError, tn.MPO([1e38 * ones] * 9).to_matrix).endswith("too. Scale it down.")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tn.mpo(W, bonds=4), "One cap for every bond is given as max_bond=4."),
        (lambda: tn.mpo(W[0]), "A stack of matrices has 3, and tensors of any number go to tn.tt."),
        (lambda: tn.search_shape(W, ratio=0.5, n=[]), "sites from 2 to 32, got none."),
        (
            lambda: tn.save("x.safetensors", tn.mpo(W, 2)),
            "must name a file, got an object MPO.",
        ),
        (lambda: tn.load(3), "path must name a file, got an object int."),
        (lambda: tn.mpo(W.astype("float16"), 5, rtol=0.00125), "at least 0.0013, got 0.00125."),
        (
            lambda: tn.plan(["ij", "jk"], (2, 3), (3, 4)),
            "output labels that an operand has, got 'k'. The last list is the output's.",
        ),
        (lambda: tn.plan([(1, 2), (2, 3), (3, 3)], (2, 3), (3, 4)), "in the output, got 3 twice."),
        (lambda: tn.plan([(1, 2), (2, 3), (1, 3)], (2, 3), (4, 4)), "size 3 at label 2, as before"),
        (
            lambda: tn.plan([(1, 2), (2,), (1,)], (2, 3, 4), (3,)),
            "the labels 1, 2, got (2, 3, 4)",
        ),
    ],
)
def test_words_are_those_of_the_caller(call, text):
    with pytest.raises(tn.errors.TensorNetError) as error:
        call()
    assert text in str(error.value)


def test_a_tolerance_that_sweeps_do_not_reach_is_told():
    Ws = np.random.default_rng(0).standard_normal((4, 16, 16))
    with pytest.warns(tn.errors.ToleranceWarning, match=r"rtol=0\.3 was not reached: .* is 0\."):
        made = tn.shared_mpo(Ws, 3, rtol=0.3)
    assert made.relative_error > 0.3
    with pytest.warns(tn.errors.ToleranceWarning, match=r"Try more sweeps \(max_sweeps\)"):
        tn.shared_mpo(Ws, 3, rtol=0.3, max_sweeps=2)
    tn.shared_mpo(Ws, 3, rtol=0.9)
