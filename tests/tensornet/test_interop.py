"""Other libraries get the same matrix, and give it back."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import interop
from tensornet.testing import assert_close, layouts, mpo_cores

W = np.random.default_rng(0).normal(size=(12, 30))
ROWS, COLS = (2, 3, 2), (3, 2, 5)
KRON = np.kron([[1.0, 2], [3, 4]], [[1.0, 10], [100, 1000]])  # shows any permutation of sites


def chain(n_dims=4):
    m = tn.mpo(W, (ROWS, COLS), max_bond=7)
    return m if n_dims == 4 else tn.tt(W.reshape(4, 9, 10), max_bond=5)


class TestArrays:
    @pytest.mark.parametrize("axes", ["lijr", "lrij", "jilr", "rjil"])
    def test_every_order_there_and_back(self, axes):
        m = chain()
        arrays = interop.to_arrays(m, axes)
        assert arrays[1].shape == tuple(m.cores[1].shape["lijr".index(letter)] for letter in axes)
        back = interop.from_arrays(arrays, axes)
        assert np.array_equal(back.to_matrix(), m.to_matrix())

    @pytest.mark.parametrize("axes", ["lir", "lri", "irl"])
    def test_tensor_trains(self, axes):
        t = chain(3)
        back = interop.from_arrays(interop.to_arrays(t, axes), axes)
        assert isinstance(back, tn.TensorTrain)
        assert np.array_equal(back.to_tensor(), t.to_tensor())

    def test_the_cores_themselves_by_default(self):
        m = chain()
        assert all(a is b for a, b in zip(interop.to_arrays(m), m.cores, strict=True))
        assert isinstance(interop.from_arrays(list(m.cores)), tn.MPO)
        assert isinstance(interop.from_arrays(list(chain(3).cores)), tn.TensorTrain)

    def test_outer_bonds_may_be_missing(self):
        m = chain()
        first, middle, last = m.cores
        back = interop.from_arrays([first[0], middle, last[..., 0]])
        assert np.array_equal(back.to_matrix(), m.to_matrix())
        one = interop.from_arrays([np.eye(3)], "lijr")
        assert np.array_equal(one.to_matrix(), np.eye(3))

    def test_the_true_size_comes_back(self):
        m = tn.mpo(W[:11, :29], tn.MatrixLayout(ROWS, COLS, 11, 29))
        back = interop.from_arrays(interop.to_arrays(m), rows=11, cols=29)
        assert_close(back.to_matrix(), W[:11, :29])

    @given(st.data())
    def test_any_chain(self, data):
        m = tn.MPO(data.draw(mpo_cores(data.draw(layouts(max_size=100)))))
        axes = "".join(data.draw(st.permutations("lijr")))
        back = interop.from_arrays(interop.to_arrays(m, axes), axes)
        assert all(np.array_equal(a, b) for a, b in zip(m.cores, back.cores, strict=True))

    @pytest.mark.parametrize("axes", ["lij", "lijj", "abcd", "", 3])
    def test_unknown_orders(self, axes):
        with pytest.raises(tn.errors.OptionError, match="axes must be a permutation of 'lijr'"):
            interop.to_arrays(chain(), axes)

    def test_refusals(self):
        with pytest.raises(tn.errors.ShapeError, match="arrays must be a sequence of at least one"):
            interop.from_arrays([])
        with pytest.raises(tn.errors.ArrayTypeError, match="network must be an MPO or a Tensor"):
            interop.to_arrays([np.eye(2)])
        with pytest.raises(tn.errors.OptionError, match=re.escape("got (2, None). A tensor train")):
            interop.from_arrays([np.ones((1, 2, 1))], rows=2)
        with pytest.raises(tn.errors.ShapeError, match=re.escape("cores[1] must have 4 dimens")):
            interop.from_arrays([np.ones((1, 2, 2, 1)), np.ones((2, 2)), np.ones((1, 2, 2, 1))])

    def test_torchtt_takes_the_list(self):
        torchtt = pytest.importorskip("torchtt", reason="torchTT is not installed")
        import torch

        m = tn.mpo(torch.as_tensor(W), (ROWS, COLS))
        theirs = torchtt.TT(interop.to_arrays(m))
        full = theirs.full().reshape(12, 30)
        assert_close(full, torch.as_tensor(W))
        assert_close(interop.from_arrays(theirs.cores).to_matrix(), torch.as_tensor(W))


class TestTensorLy:
    def test_t27_no_permutation(self):
        theirs = interop.to_tensorly(tn.mpo(KRON, 2))
        assert theirs.rank == (1, 1, 1)
        assert_close(theirs.to_matrix(), KRON)

    def test_matrix(self):
        m = chain()
        theirs = interop.to_tensorly(m)
        assert theirs.left_shape == ROWS
        assert theirs.right_shape == COLS
        assert_close(theirs.to_matrix(), m.to_matrix())
        assert np.array_equal(interop.from_tensorly(theirs).to_matrix(), m.to_matrix())

    def test_decomposed_there(self):
        from tensorly.decomposition import tensor_train_matrix

        theirs = tensor_train_matrix(W.reshape(*ROWS, *COLS), rank=[1, 6, 10, 1])
        assert_close(interop.from_tensorly(theirs).to_matrix(), theirs.to_matrix())

    def test_tensor(self):
        t = chain(3)
        theirs = interop.to_tensorly(t)
        assert_close(theirs.to_tensor(), t.to_tensor())
        assert np.array_equal(interop.from_tensorly(theirs).to_tensor(), t.to_tensor())

    @pytest.mark.parametrize("library", ["torch", "jax"])
    def test_other_libraries_need_no_switch(self, library):
        array = pytest.importorskip(library, reason=f"{library} is not installed")
        make = array.as_tensor if library == "torch" else array.numpy.asarray
        m = tn.mpo(make(W.astype("float32")), (ROWS, COLS))
        back = interop.from_tensorly(interop.to_tensorly(m))
        assert all(a is b for a, b in zip(m.cores, back.cores, strict=True))

    def test_refusals(self):
        with pytest.raises(tn.errors.ArrayTypeError, match="source must be a TTMatrix or a TTTens"):
            interop.from_tensorly([np.eye(2)])
        theirs = interop.to_tensorly(chain(3))
        with pytest.raises(tn.errors.OptionError, match="rows and cols must be left out"):
            interop.from_tensorly(theirs, rows=3)


class TestQuimb:
    @pytest.fixture(autouse=True)
    def quimb(self):
        self.qtn = pytest.importorskip("quimb.tensor", reason="quimb is not installed")

    def test_t27_no_permutation(self):
        assert_close(interop.to_quimb(tn.mpo(KRON, 2)).to_dense(), KRON)

    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_matrix(self, n):
        m = tn.mpo(W, n)
        theirs = interop.to_quimb(m)
        assert_close(theirs.to_dense()[:12, :30], W)  # four sites are padded to 12 x 32
        back = interop.from_quimb(theirs, rows=12, cols=30)
        assert back.bond_dims == m.bond_dims
        assert np.array_equal(back.to_matrix(), m.to_matrix())

    def test_tensor(self):
        t = chain(3)
        theirs = interop.to_quimb(t)
        assert_close(theirs.to_dense().reshape(t.shape), t.to_tensor())
        assert np.array_equal(interop.from_quimb(theirs).to_tensor(), t.to_tensor())
        one = tn.TensorTrain([np.ones((1, 3, 1))])
        assert interop.from_quimb(interop.to_quimb(one)).shape == (3,)

    def test_options_reach_quimb(self):
        theirs = interop.to_quimb(chain(), upper_ind_id="out{}", tags="W")
        assert theirs.upper_ind(1) == "out1"
        assert "W" in theirs.tags
        assert_close(interop.from_quimb(theirs).to_matrix(), chain().to_matrix())

    def test_torch_cores_stay_torch(self):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        m = tn.mpo(torch.as_tensor(W), (ROWS, COLS))
        back = interop.from_quimb(interop.to_quimb(m))
        assert isinstance(back.cores[0], torch.Tensor)
        assert_close(back.to_matrix(), m.to_matrix())

    def test_compressed_there(self):
        theirs = interop.to_quimb(tn.mpo(W, (ROWS, COLS)))
        theirs.compress(max_bond=4)
        back = interop.from_quimb(theirs)
        assert max(back.bond_dims) == 4
        assert_close(back.to_matrix(), theirs.to_dense(), 1e-12)

    def test_exponents_count(self):
        theirs = interop.to_quimb(chain())
        theirs.exponent = 3.0
        assert_close(interop.from_quimb(theirs).to_matrix(), 1000.0 * chain().to_matrix())

    def test_sums_and_products_made_there(self):
        m = tn.mpo(np.random.default_rng(1).normal(size=(8, 8)), ((2, 2, 2), (2, 2, 2)))
        theirs = interop.to_quimb(m)
        doubled = interop.from_quimb(theirs + theirs)
        assert_close(doubled.to_matrix(), 2 * m.to_matrix(), 1e-12)

    def test_neighbours_without_a_bond(self):
        first = self.qtn.Tensor(np.eye(2), ["k0", "b0"], tags="I0")
        second = self.qtn.Tensor(2 * np.eye(2), ["k1", "b1"], tags="I1")
        theirs = self.qtn.TensorNetwork([first, second]).view_as(
            self.qtn.MatrixProductOperator,
            L=2,
            cyclic=False,
            upper_ind_id="k{}",
            lower_ind_id="b{}",
            site_tag_id="I{}",
        )
        assert np.array_equal(interop.from_quimb(theirs).to_matrix(), 2 * np.eye(4))

    def test_rings_are_refused(self):
        for ring in (
            self.qtn.MPO_rand(4, 3, cyclic=True),
            self.qtn.MPS_rand_state(4, 3, cyclic=True),
        ):
            with pytest.raises(tn.errors.BondError, match="source must have open ends, got a cycl"):
                interop.from_quimb(ring)

    def test_several_tensors_at_a_site_are_refused(self):
        theirs = interop.to_quimb(chain())
        theirs |= self.qtn.Tensor(np.ones(2), ["z"], tags="I0")
        with pytest.raises(tn.errors.ShapeError, match="one tensor at each site, got 4 tensors at"):
            interop.from_quimb(theirs)

    def test_further_indices_are_refused(self):
        theirs = interop.to_quimb(chain())
        theirs["I1"].new_ind("extra", size=1)
        with pytest.raises(tn.errors.BondError, match="source must have open ends, with"):
            interop.from_quimb(theirs)

    def test_other_objects_are_refused(self):
        expected = "source must be a MatrixProductOperator or a MatrixProductState, got list"
        with pytest.raises(tn.errors.ArrayTypeError, match=expected):
            interop.from_quimb([W])


def test_a_missing_library_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "quimb.tensor", None)
    with pytest.raises(tn.errors.MissingLibraryError, match="pip install quimb"):
        interop.to_quimb(chain())
