"""Networks in every library, and how they are compared with their dense twins."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensornet as tn
from tensornet.backend import library_of, load_backend

torch = pytest.importorskip("torch")

NAMES = {"numpy": "numpy", "torch": "pytorch", "jax": "jax"}
EPS = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-5, "complex64": 2e-5}


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
SMALL = tn.MatrixLayout((4, 1), (2, 2), 4, 4)
