"""What each array library makes of numbers from files, and of arrays that lie in strange ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backend import dtype_name, load_backend

BITS = np.array([[0x3FC0, 0xC000], [0x0080, 0x7F7F]], dtype=np.uint16)
VALUES = [[1.5, -2.0], [2.0**-126, 255 * 2.0**120]]


@pytest.mark.parametrize("library", ["pytorch", "jax"])
def test_bfloat16_is_made_from_its_bits(library):
    if library == "jax":
        pytest.importorskip("jax", reason="jax is not installed")
    backend = load_backend(library)
    made = backend.made(BITS.copy(), "bfloat16")
    assert dtype_name(made) == "bfloat16"
    assert backend.numbers(backend.cast(made, "float64")).tolist() == VALUES


@pytest.mark.parametrize("library", ["numpy", "pytorch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_other_numbers_keep_their_type(library, dtype):
    if library == "jax":
        pytest.importorskip("jax", reason="jax is not installed")
    backend, values = load_backend(library), np.array([1.0, -0.5, 3.0]).astype(dtype)
    made = backend.made(values, dtype)
    assert dtype_name(made) == dtype
    assert np.array_equal(backend.numbers(made), values)


def test_torch_arrays_that_are_owned_are_free_of_the_graph_and_of_others():
    backend = load_backend("pytorch")
    a = torch.ones(3, 3, dtype=torch.complex64, requires_grad=True)
    owned = backend.own(a.conj())
    assert not owned.requires_grad
    assert not owned.is_conj()
    plain = torch.ones(3)
    backend.own(plain).zero_()
    assert plain.tolist() == [1.0] * 3
    copied = backend.copy(a.mT)
    assert copied.is_contiguous()
    copied.abs().sum().backward()
    assert a.grad is not None


NUMBERS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("library", ["pytorch", "numpy"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_that_overflow_are_no_entries_that_do(dtype, library):
    if library == "numpy" and dtype == torch.bfloat16:
        return  # numpy has none
    backend, largest = load_backend(library), torch.finfo(dtype).max

    def whether(a):
        return backend.all_finite(a if library == "pytorch" else a.detach().numpy())

    big = torch.full((1000,), largest, dtype=dtype)
    for finite in (big, big[::3], torch.stack([big, -big]), big[:0], big.requires_grad_()):
        assert whether(finite)
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = torch.ones(9, dtype=dtype)
        spoilt[4] = bad
        assert not whether(spoilt)
    assert not whether(torch.tensor([np.inf, -np.inf, 1.0], dtype=dtype))


def test_views_that_torch_negates_lazily_are_read():
    lazy = torch.complex(torch.eye(4), torch.arange(16.0).reshape(4, 4)).conj().imag
    assert lazy.is_neg()
    np.testing.assert_allclose(tn.mpo(lazy, 2).to_matrix().numpy(), -np.arange(16.0).reshape(4, 4))
    assert tn.common_bonds([lazy], 2, rtol=1e-3) == tn.mpo(lazy.clone(), 2, rtol=1e-3).bond_dims
